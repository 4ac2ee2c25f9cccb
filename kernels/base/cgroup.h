// Where the limits of this process' control groups stand (cgroups(7)), version 1 and 2.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// Folders whose limits all hold, the process' own first, then those around it. Inside a container
// the group's files stand where the root's would, so that some of these may not exist.
struct CgroupFolders {
  std::vector<std::string> v1;  // Of the controller's own hierarchy
  std::vector<std::string> v2;  // Of the one for all controllers
};

// `controller`: "memory", "cpu". `root` goes before every path, for tests.
CgroupFolders cgroup_folders(std::string_view controller, const std::string& root = "");

}  // namespace spillway
