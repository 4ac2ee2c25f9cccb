// Small tokenizers made in memory: the 256 bytes, </s> and a few merges.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/tokenizer.h"

namespace spillway {

using Files = std::vector<NamedFile>;

// vocab.json: </s> = 0, then the 256 bytes in order, then the result of each merge.
inline nlohmann::json small_vocabulary(std::initializer_list<std::string_view> merges) {
  nlohmann::json vocabulary = {{"</s>", 0}};
  for (unsigned byte = 0; byte < 256; ++byte) {
    vocabulary[symbol_of_byte(static_cast<uint8_t>(byte))] = byte + 1;
  }
  for (std::string_view merge : merges) {
    std::string piece(merge);
    piece.erase(piece.find(' '), 1);
    if (!vocabulary.contains(piece)) vocabulary[piece] = vocabulary.size();
  }
  return vocabulary;
}

inline std::string merges_text(std::initializer_list<std::string_view> merges) {
  std::string text = "#version: 0.2\n";
  for (std::string_view merge : merges) text.append(merge).append("\n");
  return text;
}

inline Files small_files(std::initializer_list<std::string_view> merges) {
  return {{"vocab.json", small_vocabulary(merges).dump()}, {"merges.txt", merges_text(merges)}};
}

// The same as tokenizer.json, for a test to change.
inline nlohmann::json small_tokenizer_json(std::initializer_list<std::string_view> merges) {
  nlohmann::json list = nlohmann::json::array();
  for (std::string_view merge : merges) list.push_back(merge);
  const nlohmann::json end = {{"id", 0},         {"content", "</s>"}, {"special", true},
                              {"lstrip", false}, {"rstrip", false},   {"single_word", false}};
  return {{"version", "1.0"},
          {"added_tokens", {end}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", small_vocabulary(merges)}, {"merges", list}}}};
}

inline Tokenizer load_small(std::initializer_list<std::string_view> merges) {
  TokenizerDefaults defaults;
  defaults.bos = defaults.eos = 0;
  return Tokenizer::load(small_files(merges), defaults).value();
}

}  // namespace spillway
