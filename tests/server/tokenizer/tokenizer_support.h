// Files that tests read, and the real OPT tokenizer where it is.
#pragma once

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "server/tokenizer/tokenizer.h"
#include "tests/server/tokenizer/small_tokenizer.h"
#include "tests/support/places.h"

namespace spillway {

inline std::optional<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// The real OPT tokenizer from the shared data beside the sources; nothing where that is absent.
inline std::optional<Tokenizer> load_opt() {
  const char* shared = std::getenv("SPILLWAY_SHARED");
  const std::string folder =
      (shared != nullptr ? std::string(shared) : test::source_directory() + "/../shared/data") +
      "/opt-tokenizer/";
  const auto vocabulary = read_file(folder + "vocab.json");
  const auto merges = read_file(folder + "merges.txt");
  if (!vocabulary || !merges) return std::nullopt;
  TokenizerDefaults defaults;
  defaults.bos = defaults.eos = 2;
  defaults.pad = 1;
  return Tokenizer::load(Files{{"vocab.json", *vocabulary}, {"merges.txt", *merges}}, defaults)
      .value();
}

}  // namespace spillway
