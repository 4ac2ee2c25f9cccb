// How long the tokenizer takes: ordinary text, and the inputs that make careless ones quadratic.
// Usage: tokenizer_bench FOLDER [TEXT_FILE], where FOLDER holds tokenizer files.
//
//   tokenizer_bench FOLDER --ids
//
// times nothing: for each line of standard input, {"t": text, "special": whether special tokens in
// the text are read as such, "add": whether the tokens around a text are added}, it writes a line
// {"i": ids, "d": their text, "c": their text as a continuation, both with special tokens}, or
// {"e": error}. scripts/oracle/compare_tokenizers.py compares that with PyPI's `tokenizers`.
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/tokenizer/detokenizer.h"
#include "server/tokenizer/tokenizer.h"

namespace spillway {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string repeated(const std::string& unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

// Processor time: the machine may be busy with other things.
double now() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// The best of three; one is noise.
void measure(const Tokenizer& tokenizer, const std::string& name, const std::string& text) {
  double best_seconds = 1e9;
  size_t tokens = 0;
  std::string error;
  for (int run = 0; run < 3; ++run) {
    const auto start = now();
    const auto ids = tokenizer.encode(text, {});
    tokens = ids.ok() ? ids.value().size() : 0;
    error = ids.status().message();
    const double seconds = now() - start;
    if (seconds < best_seconds) best_seconds = seconds;
  }
  std::printf("%-28s %9zu bytes %8zu tokens %8.1f ms %7.2f MB/s\n", name.c_str(), text.size(),
              tokens, best_seconds * 1e3, static_cast<double>(text.size()) / best_seconds / 1e6);
  if (!error.empty()) std::printf("  %s\n", error.c_str());
}

nlohmann::json ids_of(const Tokenizer& tokenizer, const nlohmann::json& line) {
  const EncodeOptions options = {.add_bos = line.value("add", false),
                                 .parse_special = line.value("special", false)};
  const auto ids = tokenizer.encode(line["t"].get<std::string>(), options);
  if (!ids.ok()) return {{"e", ids.status().message()}};
  Detokenizer stream(&tokenizer, false);
  std::string text;
  for (const int32_t id : ids.value()) text += stream.push(id);
  text += stream.finish();
  return {{"i", ids.value()},
          {"d", text},
          {"c", tokenizer.decode(ids.value(), false, TextPosition::kContinuation)}};
}

int write_ids(const Tokenizer& tokenizer) {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << ids_of(tokenizer, nlohmann::json::parse(line)).dump() << "\n";
  }
  return 0;
}

int run(const std::string& folder, const std::string& text_path) {
  std::vector<NamedFile> files;
  for (const char* name : kTokenizerFileNames) {
    std::string text = read_file(folder + "/" + name);
    if (!text.empty()) files.emplace_back(name, std::move(text));
  }
  const auto start = now();
  const auto tokenizer = Tokenizer::load(files, {});
  const double seconds = now() - start;
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", std::string(tokenizer.status().message()).c_str());
    return 1;
  }
  if (text_path == "--ids") return write_ids(tokenizer.value());
  std::printf("loaded in %.1f ms\n", seconds * 1e3);
  if (!text_path.empty()) measure(tokenizer.value(), "text", read_file(text_path));
  for (const auto& [name, unit] :
       {std::pair<const char*, const char*>{"letter a", "a"},
        {"^", "^"},
        {"spaces", " "},
        {"emoji", "\xF0\x9F\x98\x80"},
        {"combining marks", "\xCC\x81"},
        {"CJK", "\xE6\xBC\xA2\xE5\xAD\x97"},
        {"the", "the"},
        {"words without spaces", "antidisestablishmentarianismpneumonoultramicroscopic"}}) {
    measure(tokenizer.value(), std::string(name) + " 1 MiB", repeated(unit, size_t{1} << 20));
    measure(tokenizer.value(), std::string(name) + " 2 MiB", repeated(unit, size_t{2} << 20));
  }
  return 0;
}

}  // namespace
}  // namespace spillway

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: tokenizer_bench FOLDER [TEXT_FILE | --ids]\n");
    return 2;
  }
  return spillway::run(arguments[1], count > 2 ? arguments[2] : "");
}
