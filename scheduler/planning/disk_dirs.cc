#include "scheduler/planning/disk_dirs.h"

#include <filesystem>
#include <set>

namespace spillway {

Result<std::vector<std::string>> parse_disk_dirs(const std::string& list) {
  std::vector<std::string> paths(1);
  for (size_t i = 0; i < list.size(); ++i) {
    const bool escaped =
        list[i] == '\\' && i + 1 < list.size() && (list[i + 1] == ',' || list[i + 1] == '\\');
    if (list[i] == ',') {
      paths.emplace_back();
    } else {
      paths.back() += list[escaped ? ++i : i];
    }
  }
  if (paths.size() > kDiskDirsMax) {
    return invalid_argument("scratch files are striped over " + std::to_string(kDiskDirsMax) +
                            " folders at most, not " + std::to_string(paths.size()));
  }
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    if (path.empty()) {
      return invalid_argument("\"" + list +
                              "\" has an empty name among its folders; a comma separates them, and "
                              "\"\\,\" is one that belongs to a name");
    }
    const std::string whole = std::filesystem::path(path + "/").lexically_normal().string();
    if (!seen.insert(whole).second) {
      return invalid_argument(path + " is named twice; a folder on each disk is enough");
    }
  }
  return paths;
}

std::string disk_dirs_text(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) {
    if (!text.empty()) text += ',';
    for (size_t i = 0; i < path.size(); ++i) {
      // A backslash that stands before a comma, another one or the list's next name.
      const char next = i + 1 < path.size() ? path[i + 1] : ',';
      const bool special = path[i] == ',' || (path[i] == '\\' && (next == ',' || next == '\\'));
      if (special) text += '\\';
      text += path[i];
    }
  }
  return text;
}

}  // namespace spillway
