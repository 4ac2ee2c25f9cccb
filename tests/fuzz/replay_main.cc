// Runs a fuzz target over the files of its corpus, so that every past crash is an ordinary test:
// fuzz_replay NAME FOLDER. One program has all targets, as functions fz_NAME()
// (tests/CMakeLists.txt): linked one by one they would take minutes.
#include "tests/fuzz/replay.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

int main(int count, char** arguments) {
  if (count != 3 || !std::filesystem::is_directory(arguments[2])) {
    std::fprintf(stderr, "usage: fuzz_replay NAME FOLDER\n");
    return 2;
  }
  const std::string_view name = arguments[1];
  for (const FuzzTarget* target = kFuzzTargets; target->name != nullptr; ++target) {
    if (target->name != name) continue;
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(arguments[2])) {
      std::ifstream in(entry.path(), std::ios::binary);
      const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(in)), {});
      target->run(bytes.data(), bytes.size());
      ++files;
    }
    std::printf("%d corpus files replayed\n", files);
    return files > 0 ? 0 : 1;
  }
  std::fprintf(stderr, "there is no fuzz target %s\n", arguments[1]);
  return 2;
}
