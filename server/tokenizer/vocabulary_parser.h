// Builds the vocabulary of a TokenizerDescription from the entries of a file, one at a time, and
// refuses invalid ones. Used by read_tokenizer_files() alone; belongs to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernels/base/status.h"
#include "server/tokenizer/tokenizer_files.h"

namespace spillway {

class VocabularyParser {
 public:
  // Adds a piece with the file's id. Errors: out of range, twice, too long. An entry with the same
  // text and id as an earlier one changes nothing.
  Status add_piece(std::string_view text, int64_t id);

  // Checks that every id below the highest has a piece. Errors name the first that has none.
  Status check_complete() const;

  // Adds a merge; its rank is the order of the calls. Errors: a piece that the vocabulary lacks, a
  // pair twice.
  Status add_merge(std::string_view left, std::string_view right);

  // Adds a line of merges.txt: two pieces and one space between them.
  Status add_merge_line(std::string_view line);

  // -1: no such piece.
  int32_t id_of(std::string_view text) const;

  // Whether an id has a piece.
  bool has(int32_t id) const {
    const auto index = static_cast<size_t>(id);
    return id >= 0 && index < pieces_.size() && pieces_[index] != nullptr;
  }

  // Leaves the parser empty.
  std::vector<std::string> take_pieces();
  std::vector<Merge> take_merges() { return std::move(merges_); }

 private:
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<const std::string*> pieces_;  // By id, the keys of ids_; null: not seen yet.
  std::unordered_set<uint64_t> pairs_;
  std::vector<Merge> merges_;
};

}  // namespace spillway
