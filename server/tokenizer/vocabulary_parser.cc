#include "server/tokenizer/vocabulary_parser.h"

#include <algorithm>
#include <utility>

#include "server/tokenizer/utf8.h"

namespace spillway {
namespace {

// A piece as an error message shows it: valid UTF-8 and short.
std::string quoted(std::string_view text) {
  constexpr size_t kShown = 40;
  std::string shown = to_utf8(text.substr(0, kShown));
  return "\"" + shown + (text.size() > kShown ? "...\"" : "\"");
}

}  // namespace

Status VocabularyParser::add_piece(std::string_view text, int64_t id) {
  if (text.size() > kPieceBytesMax) {
    return invalid_argument("piece " + quoted(text) + " has " + std::to_string(text.size()) +
                            " bytes, the limit is " + std::to_string(kPieceBytesMax));
  }
  if (text.empty()) return invalid_argument("id " + std::to_string(id) + " has an empty piece");
  if (!is_valid_utf8(text)) return invalid_argument("piece " + quoted(text) + " is not UTF-8");
  if (id < 0 || id >= static_cast<int64_t>(kVocabularyMax)) {
    return invalid_argument("id " + std::to_string(id) + " of piece " + quoted(text) +
                            " is not in 0.." + std::to_string(kVocabularyMax - 1));
  }
  const auto index = static_cast<size_t>(id);
  const auto [entry, fresh] = ids_.try_emplace(std::string(text), static_cast<int32_t>(id));
  if (!fresh && entry->second != id) {
    return invalid_argument("piece " + quoted(text) + " has two ids, " +
                            std::to_string(entry->second) + " and " + std::to_string(id));
  }
  if (index >= pieces_.size()) pieces_.resize(index + 1, nullptr);
  if (pieces_[index] != nullptr && *pieces_[index] != text) {
    return invalid_argument("id " + std::to_string(id) + " has two pieces, " +
                            quoted(*pieces_[index]) + " and " + quoted(text));
  }
  pieces_[index] = &entry->first;  // A map's keys stay where they are.
  return {};
}

Status VocabularyParser::check_complete() const {
  if (pieces_.empty()) return invalid_argument("the vocabulary is empty");
  const auto gap = std::find(pieces_.begin(), pieces_.end(), nullptr);
  if (gap == pieces_.end()) return {};
  return invalid_argument("id " + std::to_string(gap - pieces_.begin()) + " has no piece, the " +
                          "highest id is " + std::to_string(pieces_.size() - 1));
}

Status VocabularyParser::add_merge(std::string_view left, std::string_view right) {
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("merge " + std::to_string(merges_.size()) + " of " + quoted(left) +
                            " and " + quoted(right) + ": " + std::string(why));
  };
  if (merges_.size() >= kVocabularyMax) {
    return refuse("the limit is " + std::to_string(kVocabularyMax) + " merges");
  }
  const Merge merge{id_of(left), id_of(right), id_of(std::string(left).append(right))};
  if (merge.left < 0) return refuse("the left piece is not in the vocabulary");
  if (merge.right < 0) return refuse("the right piece is not in the vocabulary");
  if (merge.merged < 0) return refuse("the result is not in the vocabulary");
  const auto pair = static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right);
  if (!pairs_.insert(pair).second) return refuse("is there twice");
  merges_.push_back(merge);
  return {};
}

Status VocabularyParser::add_merge_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    return invalid_argument(quoted(line) + " is not two pieces with one space between them");
  }
  return add_merge(line.substr(0, space), line.substr(space + 1));
}

int32_t VocabularyParser::id_of(std::string_view text) const {
  const auto entry = ids_.find(std::string(text));
  return entry == ids_.end() ? -1 : entry->second;
}

std::vector<std::string> VocabularyParser::take_pieces() {
  std::vector<std::string> pieces;
  pieces.reserve(pieces_.size());
  for (const std::string* piece : pieces_) pieces.push_back(*piece);
  pieces_.clear();
  ids_.clear();
  return pieces;
}

}  // namespace spillway
