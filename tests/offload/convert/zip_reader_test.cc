// The ZIP reader: torch's own layout is read; every second reading of a file is refused.
#include "offload/convert/zip_reader.h"

#include <catch2/catch.hpp>

#include "tests/support/torch_writer.h"

namespace spillway::zip_reader_test {
namespace {

ZipSpec member(std::string name, std::string_view text) {
  ZipSpec spec;
  spec.name = std::move(name);
  spec.data = bytes_of(text);
  return spec;
}

std::vector<ZipSpec> good_members() {
  return {member("archive/data.pkl", "pickle"), member("archive/data/0", std::string(1000, 'w')),
          member("archive/data/1", ""), member("archive/version", "3\n")};
}

Result<std::vector<ZipMember>> read(const Bytes& bytes) {
  return read_zip(*memory_source("x.bin", bytes));
}

void check_refused(const Bytes& bytes, const std::string& reason) {
  const auto result = read(bytes);
  INFO(reason);
  REQUIRE_FALSE(result.ok());
  CHECK_THAT(std::string(result.status().message()), Catch::Contains(reason));
}

// The good file with one member changed.
template <class Change>
Bytes changed(size_t index, Change change, const ZipFileOptions& options = {}) {
  std::vector<ZipSpec> members = good_members();
  change(members[index]);
  return zip_file(members, options);
}

TEST_CASE("torch's layout and a plain rezipped one are read alike") {
  for (const bool torch : {true, false}) {
    std::vector<ZipSpec> members = good_members();
    for (ZipSpec& spec : members) {
      spec.descriptor = torch;
      if (!torch) spec.flags = 0;
    }
    ZipFileOptions options;
    options.zip64_end = torch;
    const Bytes file = zip_file(members, options);
    const auto result = read(file);
    INFO(result.status().message());
    REQUIRE(result.ok());
    REQUIRE(result.value().size() == members.size());
    for (size_t i = 0; i < members.size(); ++i) {
      const ZipMember& found = result.value()[i];
      CHECK("archive/" + found.name == members[i].name);
      REQUIRE(found.bytes == members[i].data.size());
      CHECK(std::equal(members[i].data.begin(), members[i].data.end(),
                       file.begin() + static_cast<std::ptrdiff_t>(found.offset)));
    }
  }
}

TEST_CASE("ZIP64 sizes and wide descriptors are read") {
  CHECK(read(changed(1, [](ZipSpec& s) { s.wide_descriptor = true; })).ok());
  CHECK(read(changed(1, [](ZipSpec& s) { s.saturated = true; })).ok());
}

TEST_CASE("members that torch does not write are refused") {
  check_refused(changed(1, [](ZipSpec& s) { s.method = 8; }), "compressed");
  check_refused(changed(1, [](ZipSpec& s) { s.flags = 0x0809; }), "flags");
  check_refused(changed(1, [](ZipSpec& s) { s.comment = "hello"; }), "comment");
  check_refused(changed(1, [](ZipSpec& s) { s.central_extra = std::string("\x01\0\x10\0", 4); }),
                "extra field");
  check_refused(changed(1, [](ZipSpec& s) { s.central_extra = "x"; }), "extra field");
  check_refused(changed(1,
                        [](ZipSpec& s) {
                          s.saturated = true;
                          s.central_extra = std::string("\x01\0\0\0", 4);
                        }),
                "extra field");
  check_refused(changed(1, [](ZipSpec& s) { s.local_name = "archive/data/7"; }), "another name");
  check_refused(changed(1, [](ZipSpec& s) { s.central_bytes_more = 1; }), "hole or an overlap");
}

TEST_CASE("names that could mean another file are refused") {
  for (const char* name :
       {"archive/../x", "../archive/x", "archive/./x", "archive//x", "/archive/x", "archive/x/",
        "archive\\x", "archive/x\ny", "archive/\xc3\xa9", "noroot", "other/x", "archive/DATA.PKL",
        "Archive/x", "archive/data.pkl"}) {
    INFO(name);
    CHECK_FALSE(read(changed(1, [&](ZipSpec& s) { s.name = name; })).ok());
  }
  CHECK_FALSE(
      read(changed(1, [](ZipSpec& s) { s.name = "archive/" + std::string(520, 'x'); })).ok());
  CHECK_FALSE(read(changed(1, [](ZipSpec& s) { s.name = ""; })).ok());
}

TEST_CASE("holes, prefixes, tails and comments are refused") {
  check_refused(changed(0, [](ZipSpec& s) { s.gap = 1; }), "front of the first");
  check_refused(changed(1, [](ZipSpec& s) { s.gap = 1; }), "hole");
  check_refused(changed(2, [](ZipSpec& s) { s.gap = 16; }), "");
  ZipFileOptions options;
  options.gap_before_directory = 1;
  check_refused(zip_file(good_members(), options), "hole");
  options = {};
  options.comment = "polyglot";
  check_refused(zip_file(good_members(), options), "");
  Bytes tail = zip_file(good_members());
  tail.push_back(std::byte{0});
  check_refused(tail, "end record");
  check_refused(zip_file({}), "empty");
}

TEST_CASE("two entries over the same bytes are refused") {
  // The second entry of the directory is made to point at the first member.
  Bytes file = zip_file({member("archive/data.pkl", "same"), member("archive/data.pk2", "same")});
  REQUIRE(read(file).ok());
  const std::string name = "archive/data.pk2";
  const auto found =
      std::find_end(file.begin(), file.end(), reinterpret_cast<const std::byte*>(name.data()),
                    reinterpret_cast<const std::byte*>(name.data()) + name.size());
  std::fill_n(found - 4, 4, std::byte{0});
  CHECK_FALSE(read(file).ok());
}

TEST_CASE("a ZIP cut off at any byte is refused") {
  const Bytes file = zip_file(good_members());
  for (size_t size = 0; size < file.size(); ++size) {
    if (read(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size))).ok()) {
      FAIL("accepted " << size << " of " << file.size() << " bytes");
    }
  }
}

// Bytes that no reader looks at: versions and times of the headers, attributes, and padding.
TEST_CASE("a changed byte is refused or changes nothing") {
  const Bytes file = zip_file(good_members());
  const auto before = read(file).value();
  size_t refused = 0;
  for (size_t at = 0; at < file.size(); ++at) {
    Bytes changed_file = file;
    changed_file[at] ^= std::byte{0x55};
    const auto after = read(changed_file);
    if (!after.ok()) {
      ++refused;
      continue;
    }
    REQUIRE(after.value().size() == before.size());
    for (size_t i = 0; i < before.size(); ++i) {
      const bool same = after.value()[i].name == before[i].name &&
                        after.value()[i].offset == before[i].offset &&
                        after.value()[i].bytes == before[i].bytes;
      if (!same) FAIL("byte " << at << " changed member " << before[i].name);
    }
  }
  CHECK(refused > 400);
}

}  // namespace
}  // namespace spillway::zip_reader_test
