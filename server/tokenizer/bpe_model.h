// Byte-pair encoding over a vocabulary of byte strings: turns one pre-token into ids. The pair of
// neighbours with the lowest merge rank is merged first (of equal ranks the leftmost), until no
// neighbours can be merged. O(n log n) for n bytes of any content.
//
// Owned by a Tokenizer. Thread rule: const after create(), any thread; a BpeScratch belongs to one
// thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
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
  std::vector<Symbol> symbols_;
  std::vector<uint64_t> heap_;  // rank << kPositionBits | position, lowest first
  uint64_t candidates_ = 0;
};

class BpeModel {
 public:
  // kInvalidArgument: a byte that occurs in UTF-8 has no piece. REQUIRES: ids in `merges` are
  // indices of `pieces`, no pair twice, both below 2^20 (read_tokenizer_files() sees to that).
  static Result<BpeModel> create(const std::vector<std::string>& pieces, std::vector<Merge> merges);

  // Appends the ids of `text`, one pre-token, to `ids`. REQUIRES: valid UTF-8.
  void encode(std::string_view text, BpeScratch* scratch, std::vector<int32_t>* ids) const;

 private:
  BpeModel() = default;
  // The rank of merging two pieces, kNoMerge if there is no such merge.
  uint32_t rank_of(int32_t left, int32_t right) const;
  void load_symbols(std::string_view text, BpeScratch* scratch) const;
  void merge_at(size_t position, BpeScratch* scratch) const;
  void set_rank(size_t position, BpeScratch* scratch) const;

  std::array<int32_t, 256> byte_ids_{};  // -1: a byte that never occurs in UTF-8
  std::vector<Merge> merges_;            // By rank
  // Merges by left piece: those of piece i are entries [first_[i], first_[i + 1]), by right piece.
  struct Entry {
    int32_t right;
    uint32_t rank;
  };
  std::vector<uint32_t> first_;
  std::vector<Entry> entries_;
};

}  // namespace spillway
