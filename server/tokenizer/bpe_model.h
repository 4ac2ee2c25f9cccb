// Byte-pair encoding: turns one pre-token into ids. Its first symbols are bytes of the byte-level
// alphabet or characters (with the tokens of their bytes, or an unknown token, for those that the
// vocabulary lacks). The pair of neighbours with the lowest merge rank is merged first (of equal
// ranks the leftmost), until no neighbours can be merged. O(n log n) for n bytes of any content.
//
// Owned by a Tokenizer. Thread rule: const after create(), any thread; a BpeScratch belongs to one
// thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/base/status.h"
#include "server/tokenizer/tokenizer_files.h"

namespace spillway {

// Working memory of encode(), reused from piece to piece. Grows with the longest piece.
class BpeScratch {
 public:
  // Number of merges that were ever candidates: run time is proportional to it, times a logarithm.
  uint64_t candidates() const { return candidates_; }

 private:
  friend class BpeModel;
  struct Symbol {
    int32_t id;
    uint32_t rank;  // Of the merge with the next symbol; kNoMerge: none, or this one is gone.
    size_t previous;
    size_t next;
  };
  void add(int32_t id) { symbols_.push_back({id, UINT32_MAX, 0, 0}); }
  std::vector<Symbol> symbols_;
  std::vector<uint64_t> heap_;  // rank << kPositionBits | position, lowest first
  uint64_t candidates_ = 0;
};

class BpeModel {
 public:
  // kInvalidArgument: ordinary text would have no ids: a byte of a byte-level vocabulary has no
  // piece (bytes that are rare in text may lack one and then vanish, as they do in `tokenizers`),
  // or characters may be unknown and nothing stands for them. `outside`: ids that are not the
  // model's. REQUIRES: ids in `merges` are indices of `pieces`, no pair twice, both below 2^20
  // (read_tokenizer_files() sees to that).
  static Result<BpeModel> create(const std::vector<std::string>& pieces, std::vector<Merge> merges,
                                 const BpeOptions& options = {},
                                 const std::vector<int32_t>& outside = {});

  // Appends the ids of `text`, one pre-token, to `ids`. REQUIRES: valid UTF-8.
  void encode(std::string_view text, BpeScratch* scratch, std::vector<int32_t>* ids) const;

 private:
  BpeModel() = default;
  void set_symbols(const std::vector<std::string>& pieces, const std::vector<bool>& outside);
  Status check_complete() const;
  bool has_alphabet() const;
  void set_merges(std::vector<Merge> merges, size_t pieces);
  int32_t id_of_character(char32_t point) const;
  void add_known(int32_t id, bool* unknown, BpeScratch* scratch) const;
  void add_unknown(bool* unknown, BpeScratch* scratch) const;
  void add_bytes(std::string_view text, bool* unknown, BpeScratch* scratch) const;
  void add_characters(std::string_view text, bool* unknown, BpeScratch* scratch) const;
  // The rank of merging two pieces, kNoMerge if there is no such merge.
  uint32_t rank_of(int32_t left, int32_t right) const;
  void load_symbols(std::string_view text, BpeScratch* scratch) const;
  void merge_at(size_t position, BpeScratch* scratch) const;
  void set_rank(size_t position, BpeScratch* scratch) const;

  BpeOptions options_;
  std::array<int32_t, 256> byte_ids_{};                  // Of the alphabet; -1: none
  std::array<int32_t, 256> byte_token_ids_{};            // "<0xNN>"; -1: none
  std::array<int32_t, 128> ascii_ids_{};                 // Of characters; -1: none
  std::unordered_map<char32_t, int32_t> character_ids_;  // Of the others
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  // With ignore_merges: all pieces, as the text that they stand for.
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> words_;
  std::vector<Merge> merges_;  // By rank
  // Merges by left piece: those of piece i are entries [first_[i], first_[i + 1]), by right piece.
  struct Entry {
    int32_t right;
    uint32_t rank;
  };
  std::vector<uint32_t> first_;
  std::vector<Entry> entries_;
};

}  // namespace spillway
