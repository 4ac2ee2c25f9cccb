// Files of clients: uploads, lists, owners, quotas, expiry, and what a crash leaves.
#include "server/batches/file_store.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/support/temp_directory.h"

namespace spillway::file_store_test {
namespace {

struct Store {
  explicit Store(FileLimits given = {}) : limits(given) { open(); }
  void open() {
    store.reset();
    store = FileStore::open(folder.path() + "/files", limits).value();
  }
  StoredFile add(const std::string& owner, const std::string& text, int64_t now = 1000,
                 std::optional<int64_t> expires = {}, const std::string& purpose = "batch") {
    auto upload = store->begin(owner);
    REQUIRE(upload.ok());
    REQUIRE(upload->append(text).ok());
    return store->keep(std::move(upload).value(), "in.jsonl", purpose, now, expires).value();
  }
  std::string content(const std::string& id) const {
    std::ifstream in(store->path_of(id));
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  size_t on_disk() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(folder.path() + "/files/files")) {
      ++count;
    }
    return count;
  }

  TempDirectory folder;
  FileLimits limits;
  std::unique_ptr<FileStore> store;
};

TEST_CASE("an upload is a file once it is kept, also after a new start") {
  Store s;
  auto upload = s.store->begin("me").value();
  CHECK(upload.append("{\"a\":").ok());
  CHECK(upload.append("1}\n").ok());
  CHECK(s.store->list("me", {})->files.empty());
  const StoredFile file =
      s.store->keep(std::move(upload), "../../x\n.jsonl", "batch", 1000, 5000).value();
  CHECK(file.bytes == 8);
  CHECK(file.id.starts_with("file-"));
  s.open();
  const StoredFile found = s.store->find("me", file.id).value();
  CHECK(found.name == "../../x\n.jsonl");
  CHECK(found.purpose == "batch");
  CHECK(found.bytes == 8);
  CHECK(found.created_at == 1000);
  CHECK(found.expires_at == 5000);
  CHECK(s.content(file.id) == "{\"a\":1}\n");
}

TEST_CASE("files are their owner's alone") {
  Store s;
  const StoredFile file = s.add("me", "a");
  CHECK(s.store->find("you", file.id).status().code() == Code::kNotFound);
  CHECK(s.store->remove("you", file.id).code() == Code::kNotFound);
  CHECK(s.store->list("you", {})->files.empty());
  FileStore::Page page;
  page.after = file.id;
  CHECK(s.store->list("you", page).status().code() == Code::kNotFound);
  for (const char* id : {"", "../store.db", "file-", "' OR 1=1 --"}) {
    CHECK(s.store->find("me", id).status().code() == Code::kNotFound);
  }
  CHECK(s.store->remove("me", file.id).ok());
  CHECK(s.store->find("me", file.id).status().code() == Code::kNotFound);
  CHECK(s.on_disk() == 0);
}

TEST_CASE("lists go by age, in pages, by purpose") {
  Store s;
  std::vector<std::string> ids;
  for (int i = 0; i < 7; ++i) {
    ids.push_back(s.add("me", "a", 1000, {}, i % 2 == 0 ? "batch" : "batch_output").id);
  }
  s.add("you", "a");
  FileStore::Page page;
  page.limit = 3;
  std::vector<std::string> seen;
  for (;;) {
    const FileStore::Listing listing = s.store->list("me", page).value();
    for (const StoredFile& file : listing.files) seen.push_back(file.id);
    CHECK(listing.more == (seen.size() < 7));
    if (!listing.more) break;
    page.after = seen.back();
  }
  CHECK(seen == std::vector<std::string>(ids.rbegin(), ids.rend()));
  page = {};
  page.ascending = true;
  page.purpose = "batch_output";
  const FileStore::Listing listing = s.store->list("me", page).value();
  REQUIRE(listing.files.size() == 3);
  CHECK(listing.files[0].id == ids[1]);
  CHECK_FALSE(listing.more);
}

TEST_CASE("a page goes on behind a file that was removed meanwhile") {
  Store s;
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(s.add("me", "a").id);
  REQUIRE(s.store->remove("me", ids[2]).ok());
  FileStore::Page page;
  page.after = ids[2];
  const FileStore::Listing listing = s.store->list("me", page).value();
  REQUIRE(listing.files.size() == 2);
  CHECK(listing.files[0].id == ids[1]);
  CHECK(s.store->list("you", page).status().code() == Code::kNotFound);
  CHECK(s.store->remove("me", ids[2]).code() == Code::kNotFound);
}

TEST_CASE("quotas hold for files and uploads together, and are given back") {
  FileLimits limits;
  limits.file_bytes_max = 10;
  limits.owner_bytes_max = 25;
  limits.owner_files_max = 3;
  Store s(limits);
  {
    auto upload = s.store->begin("me").value();
    CHECK(upload.append("0123456789").ok());
    CHECK(upload.append("x").code() == Code::kCapacity);
  }
  const std::string first = s.add("me", "0123456789").id;
  s.add("me", "0123456789");
  {
    auto upload = s.store->begin("me").value();
    CHECK(upload.append("012345").code() == Code::kCapacity);
    CHECK(upload.append("01234").ok());
    CHECK(s.store->begin("me").status().code() == Code::kCapacity);  // A fourth
    CHECK(s.store->begin("you").ok());
  }
  CHECK(s.on_disk() == 2);
  s.open();  // Counted anew
  CHECK(s.store->begin("me").value().append("012345").code() == Code::kCapacity);
  CHECK(s.store->remove("me", first).ok());
  CHECK(s.store->begin("me").value().append("012345").ok());
  CHECK(s.store->check_room("me").ok());
  {
    auto results = s.store->begin_results("me").value();
    CHECK(results.append("0123456789012345").ok());
    CHECK(s.store->check_room("me").code() == Code::kCapacity);
  }
  CHECK(s.store->check_room("me").ok());
}

TEST_CASE("what has expired goes, the rest stays") {
  Store s;
  const std::string gone = s.add("me", "a", 1000, 2000).id;
  const std::string later = s.add("you", "b", 1000, 2001).id;
  const std::string never = s.add("me", "c").id;
  CHECK(s.store->expire(2000).value() == std::vector<std::string>{gone});
  CHECK(s.store->expire(2000).value().empty());
  CHECK(s.store->find("me", gone).status().code() == Code::kNotFound);
  CHECK(s.store->find("you", later).ok());
  CHECK(s.store->find("me", never).ok());
  CHECK(s.on_disk() == 2);
}

TEST_CASE("what has expired stays while it is in use") {
  Store s;
  const std::string used = s.add("me", "a", 1000, 2000).id;
  const std::string gone = s.add("me", "b", 1000, 2000).id;
  CHECK(s.store->expire(3000, {used}).value() == std::vector<std::string>{gone});
  CHECK(s.store->find("me", used).ok());
}

TEST_CASE("files are removed by purpose and name, their owner's alone") {
  Store s;
  s.add("me", "a", 1000, {}, "batch_output");
  s.add("me", "b", 1000, {}, "batch_output");
  const std::string batch = s.add("me", "c").id;
  const std::string yours = s.add("you", "d", 1000, {}, "batch_output").id;
  REQUIRE(s.store->remove_named("me", "batch_output", "in.jsonl").ok());
  REQUIRE(s.store->remove_named("me", "batch_output", "in.jsonl").ok());
  CHECK(s.on_disk() == 2);
  CHECK(s.store->find("me", batch).ok());
  CHECK(s.store->find("you", yours).ok());
}

TEST_CASE("what a crash left is removed by the next start, and nothing else") {
  Store s;
  const std::string kept = s.add("me", "a").id;
  const std::string files = s.folder.path() + "/files/files/";
  std::ofstream(files + "file-0123.part") << "half";
  std::ofstream(files + "file-4567") << "without a row";
  std::ofstream(files + "notes.txt") << "not ours";
  s.open();
  CHECK_FALSE(std::filesystem::exists(files + "file-0123.part"));
  CHECK_FALSE(std::filesystem::exists(files + "file-4567"));
  CHECK(std::filesystem::exists(files + "notes.txt"));
  CHECK(s.content(kept) == "a");
}

TEST_CASE("a store belongs to one process at a time") {
  Store s;
  const auto second = FileStore::open(s.folder.path() + "/files", {});
  CHECK(second.status().code() == Code::kCapacity);
}

}  // namespace
}  // namespace spillway::file_store_test
