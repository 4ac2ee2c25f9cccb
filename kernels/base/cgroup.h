// Folders with the limits of this process' control groups (cgroups(7)), version 1 and 2.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// Folders whose limits all apply, the process' own first, then its parents. Inside a container the
// group's files lie where the root's would, so some of these folders may not exist.
struct CgroupFolders {
  std::vector<std::string> v1;  // In the controller's own hierarchy
  std::vector<std::string> v2;  // In the unified hierarchy
};

// `controller`: "memory", "cpu". `root` is prepended to every path, for tests.
CgroupFolders cgroup_folders(std::string_view controller, const std::string& root = "");

}  // namespace spillway
