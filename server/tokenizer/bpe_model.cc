#include "server/tokenizer/bpe_model.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/character_classes.h"

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

// Without one of these a vocabulary is not byte-level. Real ones lack some of the others: SmolLM2
// has no 0x04 and no 0xF1.
bool is_needed(unsigned byte) {
  return byte == '\n' || (byte >= 0x20 && byte < 0x7F) || (byte >= 0x80 && byte < 0xC0);
}

}  // namespace

Result<BpeModel> BpeModel::create(const std::vector<std::string>& pieces, std::vector<Merge> merges,
                                  const BpeOptions& options, const std::vector<int32_t>& outside) {
  SPILLWAY_CHECK(pieces.size() <= kVocabularyMax && merges.size() <= kVocabularyMax);
  BpeModel model;
  model.options_ = options;
  std::vector<bool> is_outside(pieces.size(), false);
  for (const int32_t id : outside) is_outside[static_cast<size_t>(id)] = true;
  model.set_symbols(pieces, is_outside);
  SPILLWAY_RETURN_IF_ERROR(model.check_complete());
  model.set_merges(std::move(merges), pieces.size());
  return model;
}

void BpeModel::set_symbols(const std::vector<std::string>& pieces,
                           const std::vector<bool>& outside) {
  byte_ids_.fill(-1);
  byte_token_ids_.fill(-1);
  ascii_ids_.fill(-1);
  for (size_t index = 0; index < pieces.size(); ++index) {
    if (outside[index]) continue;
    const std::string& piece = pieces[index];
    const auto id = static_cast<int32_t>(index);
    const auto bytes = options_.bytes && (piece.size() <= 2 || options_.ignore_merges)
                           ? bytes_of_piece(piece)
                           : std::nullopt;
    if (bytes && bytes->size() == 1) byte_ids_[static_cast<uint8_t>((*bytes)[0])] = id;
    if (options_.ignore_merges && options_.bytes && bytes) words_.emplace(*bytes, id);
    if (options_.ignore_merges && !options_.bytes) words_.emplace(piece, id);
    if (options_.bytes) continue;
    if (options_.byte_fallback && piece.size() == 6) {
      if (const auto byte = byte_of_token(piece)) byte_token_ids_[*byte] = id;
    }
    if (piece.size() > 4) continue;
    size_t next = 0;
    const char32_t point = next_character(piece, &next);
    if (next != piece.size()) continue;
    if (point < 128) {
      ascii_ids_[point] = id;
    } else {
      character_ids_.emplace(point, id);
    }
  }
}

Status BpeModel::check_complete() const {
  for (unsigned byte = 0; options_.bytes && byte < 256; ++byte) {
    if (byte_ids_[byte] >= 0 || !is_needed(byte)) continue;
    return invalid_argument("the vocabulary has no piece for byte " + std::to_string(byte) +
                            " (\"" + symbol_of_byte(static_cast<uint8_t>(byte)) +
                            "\"), it is not byte-level");
  }
  if (options_.bytes || options_.unknown >= 0 || has_alphabet()) return {};
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (byte_token_ids_[byte] >= 0 || !occurs_in_utf8(byte)) continue;
    return invalid_argument("unknown characters would vanish: there is no unk_token, and " +
                            (options_.byte_fallback
                                 ? "no byte token for byte " + std::to_string(byte)
                                 : std::string("byte_fallback is off")));
  }
  return {};
}

// Whether the byte-level alphabet is in the vocabulary: ByteLevel is then a step, but not the last.
bool BpeModel::has_alphabet() const {
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (!is_needed(byte)) continue;
    size_t next = 0;
    if (id_of_character(next_character(symbol_of_byte(static_cast<uint8_t>(byte)), &next)) < 0) {
      return false;
    }
  }
  return true;
}

void BpeModel::set_merges(std::vector<Merge> merges, size_t pieces) {
  first_.assign(pieces + 1, 0);
  for (const Merge& merge : merges) ++first_[static_cast<size_t>(merge.left) + 1];
  for (size_t id = 0; id < pieces; ++id) first_[id + 1] += first_[id];
  entries_.resize(merges.size());
  std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint32_t slot = next[static_cast<size_t>(merges[rank].left)]++;
    entries_[slot] = {merges[rank].right, static_cast<uint32_t>(rank)};
  }
  for (size_t id = 0; id < pieces; ++id) {
    std::sort(entries_.begin() + first_[id], entries_.begin() + first_[id + 1],
              [](const Entry& a, const Entry& b) { return a.right < b.right; });
  }
  merges_ = std::move(merges);
}

int32_t BpeModel::id_of_character(char32_t point) const {
  if (point < 128) return ascii_ids_[point];
  const auto found = character_ids_.find(point);
  return found == character_ids_.end() ? -1 : found->second;
}

void BpeModel::add_known(int32_t id, bool* unknown, BpeScratch* scratch) const {
  if (std::exchange(*unknown, false)) scratch->add(options_.unknown);
  scratch->add(id);
}

void BpeModel::add_unknown(bool* unknown, BpeScratch* scratch) const {
  if (options_.unknown < 0) return;
  if (*unknown && !options_.fuse_unk) scratch->add(options_.unknown);
  *unknown = true;
}

void BpeModel::add_bytes(std::string_view text, bool* unknown, BpeScratch* scratch) const {
  for (const char byte : text) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
    if (id >= 0) {
      add_known(id, unknown, scratch);
    } else {
      add_unknown(unknown, scratch);
    }
  }
}

// As in `tokenizers`, byte tokens do not end a row of unknown characters.
void BpeModel::add_characters(std::string_view text, bool* unknown, BpeScratch* scratch) const {
  const auto token_of = [&](char byte) { return byte_token_ids_[static_cast<uint8_t>(byte)]; };
  for (size_t next = 0; next < text.size();) {
    const size_t begin = next;
    const int32_t id = id_of_character(next_character(text, &next));
    if (id >= 0) {
      add_known(id, unknown, scratch);
      continue;
    }
    const std::string_view bytes = text.substr(begin, next - begin);
    if (options_.byte_fallback &&
        std::all_of(bytes.begin(), bytes.end(), [&](char byte) { return token_of(byte) >= 0; })) {
      for (const char byte : bytes) scratch->add(token_of(byte));
    } else {
      add_unknown(unknown, scratch);
    }
  }
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
  symbols.clear();
  bool unknown = false;  // An unknown token is still to be added.
  if (options_.bytes) {
    add_bytes(text, &unknown, scratch);
  } else {
    add_characters(text, &unknown, scratch);
  }
  if (unknown) scratch->add(options_.unknown);
  auto& heap = scratch->heap_;
  heap.clear();
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = i == 0 ? kNone : i - 1;
    symbols[i].next = i + 1 < symbols.size() ? i + 1 : kNone;
    if (symbols[i].next == kNone) break;
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
  if (!words_.empty()) {
    const auto word = words_.find(text);
    if (word != words_.end()) {
      ids->push_back(word->second);
      return;
    }
  }
  load_symbols(text, scratch);
  if (scratch->symbols_.empty()) return;
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
