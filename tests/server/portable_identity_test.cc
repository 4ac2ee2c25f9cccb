#include "server/portable_identity.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "offload/convert/fingerprint.h"
#include "tests/support/temp_directory.h"

namespace spillway::portable_identity_test {
namespace {

TEST_CASE("copies of a checkpoint have one identity, whatever their times") {
  namespace fs = std::filesystem;
  TempDirectory folder;
  std::vector<std::string> identities, fingerprints;
  for (const char* name : {"/a", "/b"}) {
    const std::string path = folder.path() + name;
    fs::create_directory(path);
    std::ofstream(path + "/config.json") << "{}";
    fs::last_write_time(path + "/config.json",
                        fs::file_time_type::clock::now() - std::chrono::hours(name[1] - 'a'));
    fingerprints.push_back(checkpoint_fingerprint(path).value());
    identities.push_back(portable_identity("model-" + fingerprints.back() + "-bf16", path));
  }
  CHECK(fingerprints[0] != fingerprints[1]);
  CHECK(identities[0] == identities[1]);
  CHECK(identities[0].find("model-") == 0);
  CHECK(portable_identity("as it is", folder.path() + "/absent") == "as it is");
}

}  // namespace
}  // namespace spillway::portable_identity_test
