// How long the tokenizer takes: ordinary text, and the inputs that make careless ones quadratic.
// Usage: tokenizer_bench FOLDER [TEXT_FILE], where FOLDER holds vocab.json and merges.txt.
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

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
  for (int run = 0; run < 3; ++run) {
    const auto start = now();
    tokens = tokenizer.encode(text, {}).size();
    const double seconds = now() - start;
    if (seconds < best_seconds) best_seconds = seconds;
  }
  std::printf("%-28s %9zu bytes %8zu tokens %8.1f ms %7.2f MB/s\n", name.c_str(), text.size(),
              tokens, best_seconds * 1e3, static_cast<double>(text.size()) / best_seconds / 1e6);
}

int run(const std::string& folder, const std::string& text_path) {
  const std::vector<NamedFile> files = {{"vocab.json", read_file(folder + "/vocab.json")},
                                        {"merges.txt", read_file(folder + "/merges.txt")}};
  const auto start = now();
  const auto tokenizer = Tokenizer::load(files, {});
  const double seconds = now() - start;
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", std::string(tokenizer.status().message()).c_str());
    return 1;
  }
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
    std::fprintf(stderr, "usage: tokenizer_bench FOLDER [TEXT_FILE]\n");
    return 2;
  }
  return spillway::run(arguments[1], count > 2 ? arguments[2] : "");
}
