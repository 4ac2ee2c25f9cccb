#include "server/tokenizer/bpe_model.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "server/tokenizer/byte_alphabet.h"

namespace spillway {
namespace {

constexpr uint32_t kNoMerge = UINT32_MAX;
constexpr size_t kNone = SIZE_MAX;
// 20 bits of rank and 44 of position fill a heap entry; a piece of 2^44 bytes fits no machine.
constexpr unsigned kPositionBits = 44;
static_assert(kVocabularyMax <= size_t{1} << (64 - kPositionBits));

// 0xC0, 0xC1 and 0xF5..0xFF do not occur in UTF-8.
bool occurs_in_utf8(unsigned byte) {
  return byte < 0xC0 || (byte > 0xC1 && byte < 0xF5);
}

}  // namespace

Result<BpeModel> BpeModel::create(const std::vector<std::string>& pieces,
                                  std::vector<Merge> merges) {
  SPILLWAY_CHECK(pieces.size() <= kVocabularyMax && merges.size() <= kVocabularyMax);
  BpeModel model;
  model.byte_ids_.fill(-1);
  for (size_t id = 0; id < pieces.size(); ++id) {
    const std::string& piece = pieces[id];
    if (piece.size() > 2) continue;
    const auto bytes = bytes_of_piece(piece);
    if (!bytes || bytes->size() != 1) continue;
    model.byte_ids_[static_cast<uint8_t>((*bytes)[0])] = static_cast<int32_t>(id);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (model.byte_ids_[byte] >= 0 || !occurs_in_utf8(byte)) continue;
    return invalid_argument("the vocabulary has no piece for byte " + std::to_string(byte) +
                            " (\"" + symbol_of_byte(static_cast<uint8_t>(byte)) +
                            "\"), it is not byte-level");
  }
  model.first_.assign(pieces.size() + 1, 0);
  for (const Merge& merge : merges) ++model.first_[static_cast<size_t>(merge.left) + 1];
  for (size_t id = 0; id < pieces.size(); ++id) model.first_[id + 1] += model.first_[id];
  model.entries_.resize(merges.size());
  std::vector<uint32_t> next(model.first_.begin(), model.first_.end() - 1);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint32_t slot = next[static_cast<size_t>(merges[rank].left)]++;
    model.entries_[slot] = {merges[rank].right, static_cast<uint32_t>(rank)};
  }
  for (size_t id = 0; id < pieces.size(); ++id) {
    std::sort(model.entries_.begin() + model.first_[id],
              model.entries_.begin() + model.first_[id + 1],
              [](const Entry& a, const Entry& b) { return a.right < b.right; });
  }
  model.merges_ = std::move(merges);
  return model;
}

uint32_t BpeModel::rank_of(int32_t left, int32_t right) const {
  const auto begin = entries_.begin() + first_[static_cast<size_t>(left)];
  const auto end = entries_.begin() + first_[static_cast<size_t>(left) + 1];
  const auto found = std::lower_bound(
      begin, end, right, [](const Entry& entry, int32_t value) { return entry.right < value; });
  return found != end && found->right == right ? found->rank : kNoMerge;
}

void BpeModel::load_symbols(std::string_view text, BpeScratch* scratch) const {
  auto& symbols = scratch->symbols_;
  symbols.resize(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(text[i])];
    SPILLWAY_CHECK(id >= 0);
    symbols[i] = {id, kNoMerge, i == 0 ? kNone : i - 1, i + 1 < text.size() ? i + 1 : kNone};
  }
  auto& heap = scratch->heap_;
  heap.clear();
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    symbols[i].rank = rank_of(symbols[i].id, symbols[i + 1].id);
    if (symbols[i].rank == kNoMerge) continue;
    heap.push_back(uint64_t{symbols[i].rank} << kPositionBits | i);
  }
  scratch->candidates_ += heap.size();
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
}

// Updates the rank of a symbol with a new id or a new right neighbour.
void BpeModel::set_rank(size_t position, BpeScratch* scratch) const {
  BpeScratch::Symbol& symbol = scratch->symbols_[position];
  symbol.rank =
      symbol.next == kNone ? kNoMerge : rank_of(symbol.id, scratch->symbols_[symbol.next].id);
  if (symbol.rank == kNoMerge) return;
  ++scratch->candidates_;
  scratch->heap_.push_back(uint64_t{symbol.rank} << kPositionBits | position);
  std::push_heap(scratch->heap_.begin(), scratch->heap_.end(), std::greater<>());
}

void BpeModel::merge_at(size_t position, BpeScratch* scratch) const {
  BpeScratch::Symbol& left = scratch->symbols_[position];
  BpeScratch::Symbol& right = scratch->symbols_[left.next];
  left.id = merges_[left.rank].merged;
  left.next = right.next;
  if (right.next != kNone) scratch->symbols_[right.next].previous = position;
  right.rank = kNoMerge;
  set_rank(position, scratch);
  if (left.previous != kNone) set_rank(left.previous, scratch);
}

void BpeModel::encode(std::string_view text, BpeScratch* scratch, std::vector<int32_t>* ids) const {
  if (text.empty()) return;
  SPILLWAY_CHECK(text.size() < uint64_t{1} << kPositionBits);
  load_symbols(text, scratch);
  auto& heap = scratch->heap_;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const size_t position = top & ((uint64_t{1} << kPositionBits) - 1);
    // An entry is stale when its pair has changed since; a changed pair has an entry of its own.
    if (scratch->symbols_[position].rank == top >> kPositionBits) merge_at(position, scratch);
  }
  for (size_t i = 0; i != kNone; i = scratch->symbols_[i].next) {
    ids->push_back(scratch->symbols_[i].id);
  }
}

}  // namespace spillway
