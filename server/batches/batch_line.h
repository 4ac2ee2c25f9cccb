// One line of a batch: from JSON to a call, and from an answer or an error to a line of the output.
// Values, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

#include "server/api/answer_json.h"
#include "server/api/completion.h"
#include "server/batches/batch_input.h"
#include "server/http/error.h"

namespace spillway {

// A line without its envelope. An OpenAI batch line has a "body"; any other object is a body itself
// (and may carry a custom_id, too), of a chat if it has messages.
struct BatchLine {
  int64_t number = 0;
  std::optional<std::string> custom_id;  // Kept even when the line is bad, if it could be read
  std::optional<std::string> url;        // Of the envelope
  std::string body;                      // JSON
  bool seeded = false;                   // The body names a seed
  bool chat = false;                     // The body is one of /v1/chat/completions
  std::optional<ApiError> error;         // Set: body is empty
};

// `prompt`, unless null, becomes what tells whether prompts begin alike: the text of the body's
// `prompt`, JSON where it is none (token ids, several, a chat's `messages`), empty when the line
// has an error or nothing of these.
BatchLine read_batch_line(const InputLine& line, const ApiContext& context,
                          std::string* prompt = nullptr);

// The call of a line that has no error. The samples of a body without a seed follow from
// `run_seed`, the line's number and the prompt's place in it, so a resumed run gives the same
// samples as an uninterrupted one.
ApiResult<CompletionCall> parse_batch_line(const BatchLine& line, const ApiContext& context,
                                           uint64_t run_seed);

// Finds duplicate custom_ids. Remembers 128 bits of each, so millions fit.
class CustomIds {
 public:
  // Turns a line into an error if a line before it in the input has the same custom_id; then true.
  // REQUIRES: lines come in the input's order.
  bool check(BatchLine* line);

  // Memory of them, about.
  size_t bytes() const { return seen_.size() * kEntryBytes; }

 private:
  using Digest = std::pair<uint64_t, uint64_t>;
  struct HashOfDigest {
    size_t operator()(const Digest& digest) const { return digest.first; }
  };
  static constexpr size_t kEntryBytes = 48;  // A node of the table, and its place there

  std::unordered_set<Digest, HashOfDigest> seen_;
};

// Turns a line that has no error into that of a duplicate custom_id.
void refuse_repeated_id(BatchLine* line);

// The result of a line that ends the program again and again.
ApiError crashed_row();

// Collects parameters in lines of a batch that have no effect here.
class IgnoredNames {
 public:
  void add(const CompletionCall& call);
  // "2 lines have parameters that mean nothing here: foo, top_j"; empty: none has.
  std::string text() const;

 private:
  int64_t lines_ = 0;
  std::set<std::string> names_;  // A few of them
};

// One line of the output, without its newline. `run_id` tells runs apart: 16 hex digits.
std::string answer_line(const std::string& run_id, const BatchLine& line,
                        const std::string& answer_json);
std::string error_line(const std::string& run_id, const BatchLine& line, const ApiError& error);

// The head of a line's answer.
CompletionHead batch_head(const std::string& run_id, const BatchLine& line, int64_t created);

}  // namespace spillway
