// Cuts text into the pieces that BPE works on, as the pre-tokenizer of tokenizer.json says.
//
// Owned by a Tokenizer. Thread rule: const after create(), any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/tokenizer/tokenizer_steps.h"

namespace spillway {

// A text and the pieces of it: in order, without overlap, none empty. Steps may change the text.
struct PieceList {
  struct Span {
    size_t begin;  // Bytes of `text`
    size_t end;
  };
  std::string text;
  std::vector<Span> spans;
  bool at_start = false;  // The first piece begins where the whole text does.

  // All of `whole` as one piece.
  PieceList(std::string whole, bool starts);
  std::string_view piece(const Span& span) const {
    return std::string_view(text).substr(span.begin, span.end - span.begin);
  }
};

class PreTokenizer {
 public:
  // kInvalidArgument: a pattern that is none.
  static Result<PreTokenizer> create(const std::vector<PreTokenizerStep>& steps);

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // Whether the last step is ByteLevel. It leaves bytes as they are: what it would make of them,
  // characters of the byte-level alphabet, is the model's to know.
  bool ends_in_bytes() const { return ends_in_bytes_; }

  // REQUIRES: valid UTF-8. kCapacity: a limit of a pattern is reached. O(bytes) but for patterns.
  Status cut(PieceList* pieces) const;

 private:
  PreTokenizer();
  struct Step;
  std::vector<std::unique_ptr<const Step>> steps_;
  bool ends_in_bytes_ = false;
};

}  // namespace spillway
