// Ids and names of files as clients may send them, against a store on disk: only the id itself
// finds a file, and only for its owner; names come back as they were; whatever is asked, the
// store's folder has the files that it should have, and none of another name.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "kernels/base/check.h"
#include "server/batches/file_store.h"

namespace spillway {
namespace {

constexpr int64_t kNow = 1'700'000'000;

// A store with one file, in a folder of its own that goes at the end.
struct Fixture {
  std::filesystem::path folder;
  std::unique_ptr<FileStore> store;
  StoredFile file;

  Fixture() {
    std::string pattern = std::filesystem::temp_directory_path() / "spillway-fuzz-XXXXXX";
    SPILLWAY_CHECK(::mkdtemp(pattern.data()) != nullptr);
    folder = pattern;
    store = FileStore::open(folder / "store", {}).value();
    file = add("contents", "a.jsonl");
  }
  ~Fixture() {
    store.reset();
    std::filesystem::remove_all(folder);
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  StoredFile add(const std::string& contents, const std::string& name) const {
    auto upload = store->begin("me").value();
    SPILLWAY_CHECK(upload.append(contents).ok());
    return store->keep(std::move(upload), name, "batch", kNow, {}).value();
  }
  size_t on_disk() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "store/files")) {
      const std::string name = entry.path().filename();
      SPILLWAY_CHECK(name.starts_with("file-") && name.size() == 29);
      SPILLWAY_CHECK(name.find_first_not_of("0123456789abcdef", 5) == std::string::npos);
      ++count;
    }
    return count;
  }
};

}  // namespace
}  // namespace spillway

// The first byte says what is done with the others; an 'I' in front stands for the id that is
// there.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  static Fixture fixture;
  FileStore& store = *fixture.store;
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (text.starts_with('I')) text.replace(0, 1, fixture.file.id);
  const bool known = text == fixture.file.id;
  switch (data[0] % 4) {
    case 0: {
      const auto found = store.find("me", text);
      SPILLWAY_CHECK(found.ok() == known);
      SPILLWAY_CHECK(!store.find("another", text).ok());
      SPILLWAY_CHECK(store.find(text, fixture.file.id).ok() == (text == "me"));
      break;
    }
    case 1: {
      const auto listed = store.list("me", {.purpose = "", .after = text});
      SPILLWAY_CHECK(listed.ok() == (known || text.empty()));
      SPILLWAY_CHECK(!listed.ok() || listed->files.size() == (text.empty() ? 1U : 0U));
      break;
    }
    case 2:
      SPILLWAY_CHECK(!store.remove("another", text).ok());
      SPILLWAY_CHECK(store.remove("me", text).ok() == known);
      if (known) fixture.file = fixture.add("contents", "a.jsonl");
      break;
    default: {
      const StoredFile file = fixture.add("x", text);
      SPILLWAY_CHECK(file.name == text && store.find("me", file.id)->name == text);
      SPILLWAY_CHECK(store.path_of(file.id) == fixture.folder / "store/files" / file.id);
      SPILLWAY_CHECK(fixture.on_disk() == 2);
      SPILLWAY_CHECK(store.remove("me", file.id).ok());
      break;
    }
  }
  SPILLWAY_CHECK(fixture.on_disk() == 1);
  return 0;
}
