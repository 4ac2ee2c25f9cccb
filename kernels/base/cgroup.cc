#include "kernels/base/cgroup.h"

#include <fstream>

namespace spillway {

namespace {

// Whether `name` is in the list "cpu,cpuacct".
bool lists(std::string_view list, std::string_view name) {
  for (;;) {
    const size_t comma = list.find(',');
    if (list.substr(0, comma) == name) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

// `path` below `mount` and all its parents.
std::vector<std::string> with_parents(const std::string& mount, std::string path) {
  std::vector<std::string> folders;
  while (!path.empty() && path.back() == '/') path.pop_back();
  for (;;) {
    folders.push_back(mount + path);
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return folders;
    path.resize(slash);
  }
}

}  // namespace

CgroupFolders cgroup_folders(std::string_view controller, const std::string& root) {
  CgroupFolders folders;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/path", "0::/path"
    const size_t name = line.find(':'), path = line.find(':', name + 1);
    if (name == std::string::npos || path == std::string::npos) continue;
    const std::string below = line.substr(path + 1);
    if (lists(std::string_view(line).substr(name + 1, path - name - 1), controller)) {
      folders.v1 = with_parents(root + "/sys/fs/cgroup/" + std::string(controller), below);
    } else if (line.compare(0, 3, "0::") == 0) {
      folders.v2 = with_parents(root + "/sys/fs/cgroup", below);
    }
  }
  return folders;
}

}  // namespace spillway
