#include "server/batches/batch_results.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/batches/batch_line.h"

namespace spillway {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr const char* kResultPurpose = "batch_output";  // No client hands in such a file.

// A file of lines that is begun with its first one.
class Lines {
 public:
  Lines(FileStore& files, std::string owner) : files_(files), owner_(std::move(owner)) {}

  Status add(std::string_view line) {
    if (!upload_) {
      auto begun = files_.begin_results(owner_);
      if (!begun.ok()) return begun.status();
      upload_.emplace(std::move(begun).value());
    }
    ++count_;
    buffer_ += line;
    buffer_ += '\n';
    return buffer_.size() < kBufferBytes ? Status() : flush();
  }

  // The file's id; empty: there was no line.
  Result<std::string> keep(const std::string& name, int64_t now, std::optional<int64_t> expires) {
    if (!upload_) return std::string();
    SPILLWAY_RETURN_IF_ERROR(flush());
    SPILLWAY_ASSIGN_OR_RETURN(
        const StoredFile file,
        files_.keep(*std::exchange(upload_, std::nullopt), name, kResultPurpose, now, expires));
    return file.id;
  }

  int64_t count() const { return count_; }

 private:
  Status flush() {
    const std::string bytes = std::exchange(buffer_, {});
    return bytes.empty() ? Status() : upload_->append(bytes);
  }

  FileStore& files_;
  const std::string owner_;
  std::optional<FileStore::Upload> upload_;
  std::string buffer_;
  int64_t count_ = 0;
};

// Whether a line of the journal is an answer: its status is 200.
bool is_answer(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  return json.is_object() && json.contains("response") && json["response"].is_object() &&
         json["response"].value("status_code", 0) == 200;
}

std::string line_not_run(const BatchRecord& record, const BatchLine& line, BatchState end) {
  const bool expired = end == BatchState::kExpired;
  nlohmann::ordered_json json = {
      {"id", "batch_req_" + record.id.substr(record.id.find('_') + 1) + "_" +
                 std::to_string(line.number)},
      {"custom_id", nullptr},
      {"response", nullptr},
      {"error",
       {{"code", expired ? "batch_expired" : "batch_cancelled"},
        {"message", expired ? "This request could not be executed before the completion window "
                              "expired."
                            : "This request was not executed: the batch was cancelled."}}}};
  if (line.custom_id) json["custom_id"] = *line.custom_id;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

Result<BatchResults> write_batch_results(const Journal& journal, BatchInput* input,
                                         const BatchRecord& record, BatchState end,
                                         const ApiContext& context, int64_t now, FileStore& files) {
  // A crash between here and the batch's last state leaves files that no batch names.
  const std::string output_name = record.id + "_output.jsonl";
  const std::string error_name = record.id + "_error.jsonl";
  for (const std::string& name : {output_name, error_name}) {
    SPILLWAY_RETURN_IF_ERROR(files.remove_named(record.owner, kResultPurpose, name));
  }
  Lines answers(files, record.owner), errors(files, record.owner);
  SPILLWAY_RETURN_IF_ERROR(journal.for_each([&](int64_t, std::string_view line) {
    return is_answer(line) ? answers.add(line) : errors.add(line);
  }));
  if (input != nullptr && (end == BatchState::kExpired || end == BatchState::kCancelled)) {
    InputLine text;
    for (;;) {
      SPILLWAY_ASSIGN_OR_RETURN(const bool found, input->next(&text));
      if (!found) break;
      if (journal.finished(text.number)) continue;
      SPILLWAY_RETURN_IF_ERROR(
          errors.add(line_not_run(record, read_batch_line(text, context), end)));
    }
  }
  const std::optional<int64_t> expires =
      record.output_seconds ? std::optional(now + *record.output_seconds) : std::nullopt;
  BatchResults results;
  SPILLWAY_ASSIGN_OR_RETURN(results.output_file, answers.keep(output_name, now, expires));
  auto kept = errors.keep(error_name, now, expires);
  if (!kept.ok()) {
    if (!results.output_file.empty()) (void)files.remove(record.owner, results.output_file);
    return kept.status();
  }
  results.error_file = std::move(kept).value();
  results.completed = answers.count();
  results.failed = errors.count();
  return results;
}

}  // namespace spillway
