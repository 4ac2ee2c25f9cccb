// Lists of folders as --disk-dir has them.
#include "scheduler/planning/disk_dirs.h"

#include <catch2/catch.hpp>

namespace spillway::disk_dirs_test {
namespace {

using Folders = std::vector<std::string>;

TEST_CASE("a list of folders is cut at its commas, escaped ones belong to names") {
  CHECK(parse_disk_dirs("/a").value() == Folders{"/a"});
  CHECK(parse_disk_dirs("/a,/b/c, d").value() == Folders{"/a", "/b/c", " d"});
  CHECK(parse_disk_dirs("/a\\,b,/c").value() == Folders{"/a,b", "/c"});
  CHECK(parse_disk_dirs("/a\\\\,/c\\d").value() == Folders{"/a\\", "/c\\d"});
  for (const Folders& folders : {Folders{"/a"}, Folders{"/a,b", "/c"}, Folders{"\\", "\\,", "\\\\"},
                                 Folders{"/a\\b", "c\\,d"}}) {
    CHECK(parse_disk_dirs(disk_dirs_text(folders)).value() == folders);
  }
}

TEST_CASE("a list of folders that cannot be meant is refused with the reason") {
  const auto message = [](const std::string& list) {
    const Status status = parse_disk_dirs(list).status();
    CHECK(status.code() == Code::kInvalidArgument);
    return std::string(status.message());
  };
  for (const char* list : {"/a,", ",/a", "/a,,/b", ""}) {
    CHECK_THAT(message(list), Catch::Contains("empty name") && Catch::Contains("\\,"));
  }
  CHECK_THAT(message("/a,/b,/a/"), Catch::Contains("/a/ is named twice"));
  std::string many = "/0";
  for (size_t i = 1; i <= kDiskDirsMax; ++i) many += ",/" + std::to_string(i);
  CHECK_THAT(message(many), Catch::Contains("16") && Catch::Contains("17"));
}

}  // namespace
}  // namespace spillway::disk_dirs_test
