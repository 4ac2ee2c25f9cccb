#include "server/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "server/tokenizer/utf8.h"

namespace spillway {
namespace {

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
                            BpeModel::create(description.pieces, std::move(description.merges),
                                             description.bpe, description.outside_model));
  auto normalizer = Normalizer::create(description.normalizer);
  if (!normalizer.ok()) return normalizer.status().at("normalizer");
  auto pre_tokenizer = PreTokenizer::create(description.pre_tokenizer);
  if (!pre_tokenizer.ok()) return pre_tokenizer.status().at("pre_tokenizer");
  Tokenizer tokenizer(std::move(model), std::move(normalizer).value(),
                      std::move(pre_tokenizer).value());
  SPILLWAY_RETURN_IF_ERROR(tokenizer.set_bytes(description).at("decoder"));
  tokenizer.set_special(&description, defaults);
  SPILLWAY_RETURN_IF_ERROR(tokenizer.set_finders(std::move(description.added)));
  return tokenizer;
}

Status Tokenizer::set_bytes(const TokenizerDescription& files) {
  SPILLWAY_ASSIGN_OR_RETURN(const TokenDecoder decoder, TokenDecoder::create(files.decoder));
  start_rule_ = decoder.start_rule();
  is_added_.assign(files.pieces.size(), false);
  for (const AddedToken& token : files.added) is_added_[static_cast<size_t>(token.id)] = true;
  bytes_.reserve(files.pieces.size());
  for (size_t id = 0; id < files.pieces.size(); ++id) {
    SPILLWAY_ASSIGN_OR_RETURN(std::string bytes, decoder.bytes_of(files.pieces[id], is_added_[id]));
    bytes_.push_back(std::move(bytes));
  }
  return {};
}

void Tokenizer::set_special(TokenizerDescription* files, const TokenizerDefaults& defaults) {
  bos_ = files->bos >= 0 ? files->bos : defaults.bos;
  eos_ = files->eos >= 0 ? files->eos : defaults.eos;
  pad_ = files->pad >= 0 ? files->pad : defaults.pad;
  if (files->around) {
    around_ = std::move(*files->around);
    if (bos_ < 0 && around_.before.size() == 1) bos_ = around_.before[0];
  } else if (files->add_bos.value_or(defaults.add_bos) && bos_ >= 0) {
    around_.before = {bos_};
  }
  std::vector<AddedToken>& added = files->added;
  for (int32_t id : {bos_, eos_, pad_}) {
    const auto same = [id](const AddedToken& token) { return token.id == id; };
    if (id < 0) continue;
    const auto found = std::find_if(added.begin(), added.end(), same);
    if (found != added.end()) {
      found->special = true;
    } else {
      added.push_back({id, files->pieces[static_cast<size_t>(id)]});
    }
  }
  special_.assign(bytes_.size(), false);
  for (const AddedToken& token : added) special_[static_cast<size_t>(token.id)] = token.special;
}

Status Tokenizer::set_finders(std::vector<AddedToken> added) {
  std::vector<AddedTokenFinder::Entry> plain;
  std::vector<AddedTokenFinder::Entry> normalized;
  for (AddedToken& token : added) {
    std::string text = token.text;
    if (!token.normalized) {
      plain.push_back({std::move(text), std::move(token)});
      continue;
    }
    SPILLWAY_ASSIGN_OR_RETURN(text, normalizer_.normalize(std::move(text)));
    if (text.empty()) {
      return invalid_argument("added token " + std::to_string(token.id) +
                              " is empty when it is normalized");
    }
    normalized.push_back({std::move(text), std::move(token)});
  }
  plain_finder_ = AddedTokenFinder(std::move(plain));
  normalized_finder_ = AddedTokenFinder(std::move(normalized));
  return {};
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  std::string replaced;
  if (!is_valid_utf8(text)) {
    replaced = to_utf8(text);
    text = replaced;
  }
  std::vector<int32_t> ids;
  if (options.add_bos) ids = around_.before;
  BpeScratch scratch;
  for (const auto& part : plain_finder_.split(text, options.parse_special)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    SPILLWAY_RETURN_IF_ERROR(encode_text(text.substr(part.begin, part.end - part.begin),
                                         part.begin == 0, options, &scratch, &ids));
  }
  if (options.add_bos) ids.insert(ids.end(), around_.behind.begin(), around_.behind.end());
  return ids;
}

Status Tokenizer::encode_text(std::string_view text, bool starts, const EncodeOptions& options,
                              BpeScratch* scratch, std::vector<int32_t>* ids) const {
  SPILLWAY_ASSIGN_OR_RETURN(std::string normal, normalizer_.normalize(std::string(text)));
  const auto parts = normalized_finder_.split(normal, options.parse_special);
  if (parts.size() == 1 && parts[0].id < 0) {
    return encode_pieces(std::move(normal), starts, scratch, ids);
  }
  for (const auto& part : parts) {
    if (part.id >= 0) {
      ids->push_back(part.id);
      continue;
    }
    SPILLWAY_RETURN_IF_ERROR(encode_pieces(normal.substr(part.begin, part.end - part.begin),
                                           starts && part.begin == 0, scratch, ids));
  }
  return {};
}

Status Tokenizer::encode_pieces(std::string text, bool starts, BpeScratch* scratch,
                                std::vector<int32_t>* ids) const {
  PieceList pieces(std::move(text), starts);
  SPILLWAY_RETURN_IF_ERROR(pre_tokenizer_.cut(&pieces));
  for (const PieceList::Span& span : pieces.spans) model_.encode(pieces.piece(span), scratch, ids);
  return {};
}

StartOfText Tokenizer::start_of_text(TextPosition position) const {
  return {start_rule_, position == TextPosition::kContinuation};
}

void Tokenizer::append_bytes(int32_t id, bool skip_special, StartOfText* start,
                             std::string* bytes) const {
  if (id < 0 || static_cast<size_t>(id) >= bytes_.size()) return;
  if (skip_special && is_special(id)) return;
  start->append(token_bytes(id), is_added_[static_cast<size_t>(id)], bytes);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special,
                              TextPosition position) const {
  StartOfText start = start_of_text(position);
  std::string bytes;
  for (const int32_t id : ids) append_bytes(id, skip_special, &start, &bytes);
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
