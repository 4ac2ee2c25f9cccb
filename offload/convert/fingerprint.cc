#include "offload/convert/fingerprint.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "offload/file.h"

namespace spillway {

namespace {

bool counts(std::string_view name) {
  return name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".json") ||
         name.ends_with(".txt");
}

std::string hex(const XXH128_hash_t& hash) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace

Result<std::string> checkpoint_fingerprint(const std::string& directory) {
  SPILLWAY_ASSIGN_OR_RETURN(const File opened, File::open(directory, O_RDONLY | O_DIRECTORY));
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (counts(name)) names.push_back(std::move(name));
  }
  if (error) return io_error("list " + directory, error.value());
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) {
    SPILLWAY_ASSIGN_OR_RETURN(const File file, File::open_in(opened, name, O_RDONLY));
    SPILLWAY_ASSIGN_OR_RETURN(const FileStamp stamp, file.stamp());
    text +=
        name + '\n' + std::to_string(stamp.bytes) + ' ' + std::to_string(stamp.modified_ns) + '\n';
  }
  return hex(XXH3_128bits(text.data(), text.size()));
}

}  // namespace spillway
