#include "server/tokenizer/tokenizer.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <utility>

#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/pretokenizer.h"
#include "server/tokenizer/utf8.h"

namespace spillway {
namespace {

// The end of the whitespace that starts at `begin`.
size_t space_end(std::string_view text, size_t begin) {
  const auto* data = reinterpret_cast<const uint8_t*>(text.data());
  size_t next = begin;
  while (next < text.size()) {
    const size_t start = next;
    UChar32 point;
    U8_NEXT(data, next, text.size(), point);
    if (!u_isUWhiteSpace(point)) return start;
  }
  return next;
}

// The start of the whitespace in front of `end`, not before `begin`.
size_t space_begin(std::string_view text, size_t begin, size_t end) {
  while (end > begin) {
    size_t start = end - 1;
    while (start > begin && U8_IS_TRAIL(text[start])) --start;
    if (space_end(text.substr(0, end), start) != end) return end;
    end = start;
  }
  return end;
}

Status check_default(const char* name, int32_t id, size_t vocabulary) {
  if (id < 0 || static_cast<size_t>(id) < vocabulary) return {};
  return invalid_argument(std::string("the model's ") + name + " token is " + std::to_string(id) +
                          ", the tokenizer has only " + std::to_string(vocabulary) +
                          " ids; are its files another model's?");
}

}  // namespace

Result<Tokenizer> Tokenizer::load(std::span<const NamedFile> files,
                                  const TokenizerDefaults& defaults) {
  SPILLWAY_ASSIGN_OR_RETURN(TokenizerDescription description, read_tokenizer_files(files));
  const size_t vocabulary = description.pieces.size();
  SPILLWAY_RETURN_IF_ERROR(check_default("bos", defaults.bos, vocabulary));
  SPILLWAY_RETURN_IF_ERROR(check_default("eos", defaults.eos, vocabulary));
  SPILLWAY_RETURN_IF_ERROR(check_default("pad", defaults.pad, vocabulary));
  SPILLWAY_ASSIGN_OR_RETURN(BpeModel model,
                            BpeModel::create(description.pieces, std::move(description.merges)));
  Tokenizer tokenizer(std::move(model));
  tokenizer.bytes_.reserve(vocabulary);
  for (std::string& piece : description.pieces) {
    auto bytes = bytes_of_piece(piece);
    tokenizer.bytes_.push_back(bytes ? std::move(*bytes) : std::move(piece));
  }
  tokenizer.set_special(std::move(description), defaults);
  return tokenizer;
}

void Tokenizer::set_special(TokenizerDescription files, const TokenizerDefaults& defaults) {
  bos_ = files.bos >= 0 ? files.bos : defaults.bos;
  eos_ = files.eos >= 0 ? files.eos : defaults.eos;
  pad_ = files.pad >= 0 ? files.pad : defaults.pad;
  add_bos_ = files.add_bos.value_or(defaults.add_bos);
  added_ = std::move(files.added);
  for (int32_t id : {bos_, eos_, pad_}) {
    const auto same = [id](const AddedToken& token) { return token.id == id; };
    if (id < 0) continue;
    const auto found = std::find_if(added_.begin(), added_.end(), same);
    if (found != added_.end()) {
      found->special = true;
    } else {
      added_.push_back({id, std::string(token_bytes(id)), true, false, false});
    }
  }
  special_.assign(bytes_.size(), false);
  for (const AddedToken& token : added_) {
    bytes_[static_cast<size_t>(token.id)] = token.text;
    special_[static_cast<size_t>(token.id)] = token.special;
    any_plain_added_ = any_plain_added_ || !token.special;
  }
  std::sort(added_.begin(), added_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.text > b.text; });
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::string replaced;
  if (!is_valid_utf8(text)) {
    replaced = to_utf8(text);
    text = replaced;
  }
  std::vector<int32_t> ids;
  if (options.add_bos && bos_ >= 0) ids.push_back(bos_);
  BpeScratch scratch;
  size_t begin = 0;
  while (const auto found = find_added(text, begin, options.parse_special)) {
    encode_plain(text.substr(begin, found->begin - begin), &scratch, &ids);
    ids.push_back(found->token->id);
    begin = found->end;
  }
  encode_plain(text.substr(begin), &scratch, &ids);
  return ids;
}

void Tokenizer::encode_plain(std::string_view text, BpeScratch* scratch,
                             std::vector<int32_t>* ids) const {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = next_piece_end(text, begin);
    model_.encode(text.substr(begin, end - begin), scratch, ids);
    begin = end;
  }
}

std::optional<Tokenizer::Found> Tokenizer::find_added(std::string_view text, size_t begin,
                                                      bool special) const {
  if (!special && !any_plain_added_) return std::nullopt;
  for (size_t i = begin; i < text.size(); ++i) {
    const char first = text[i];
    auto token = std::lower_bound(
        added_.begin(), added_.end(), first, [](const AddedToken& entry, char value) {
          return static_cast<uint8_t>(entry.text[0]) > static_cast<uint8_t>(value);
        });
    for (; token != added_.end() && token->text[0] == first; ++token) {
      if (token->special && !special) continue;
      if (text.compare(i, token->text.size(), token->text) != 0) continue;
      const size_t end = i + token->text.size();
      return Found{token->strip_left ? space_begin(text, begin, i) : i,
                   token->strip_right ? space_end(text, end) : end, &*token};
    }
  }
  return std::nullopt;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  }
  return is_valid_utf8(bytes) ? bytes : to_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= bytes_.size()) return {};
  return bytes_[static_cast<size_t>(id)];
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < special_.size() && special_[static_cast<size_t>(id)];
}

}  // namespace spillway
