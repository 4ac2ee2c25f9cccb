// ZIP and pickle held against each other, and the formats that are refused by name.
#include "offload/convert/torch_reader.h"

#include <catch2/catch.hpp>

#include "tests/support/torch_writer.h"

namespace spillway::torch_reader_test {
namespace {

std::vector<TensorData> tensors() {
  return {make_tensor("a", {3, 4}), make_tensor("b", {7}, DType::kBF16),
          make_tensor("c", {2, 2}, DType::kF16)};
}

Result<TorchFile> read(Bytes bytes) {
  return read_torch(*memory_source("x.bin", std::move(bytes)));
}

void check_refused(Bytes bytes, const std::string& reason) {
  const auto result = read(std::move(bytes));
  INFO(reason);
  REQUIRE_FALSE(result.ok());
  CHECK_THAT(std::string(result.status().message()), Catch::Contains(reason));
  CHECK_THAT(std::string(result.status().message()), Catch::Contains("x.bin"));
}

template <class Change>
Bytes changed(Change change) {
  std::vector<ZipSpec> members = torch_members(tensors());
  change(members);
  return zip_file(members);
}

ZipSpec& find(std::vector<ZipSpec>& members, const std::string& name) {
  for (ZipSpec& spec : members) {
    if (spec.name == "archive/" + name) return spec;
  }
  FAIL("no member " << name);
  return members.front();
}

TEST_CASE("the tensors of a .bin file come back with their bytes") {
  const auto expected = tensors();
  const Bytes file = torch_file(expected);
  const auto result = read(file);
  INFO(result.status().message());
  REQUIRE(result.ok());
  REQUIRE(result.value().tensors.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const StoredTensor& found = result.value().tensors[i];
    CHECK(found.name == expected[i].name);
    CHECK(found.shape == expected[i].shape);
    CHECK(found.format->name == expected[i].dtype);
    REQUIRE(found.bytes == expected[i].data.size());
    CHECK(std::equal(expected[i].data.begin(), expected[i].data.end(),
                     file.begin() + static_cast<std::ptrdiff_t>(found.offset)));
    REQUIRE(found.record.has_value());
    CHECK(result.value().records[*found.record].offset == found.offset);
  }
}

TEST_CASE("another root and no byteorder are fine") {
  auto members = torch_members(tensors(), "pytorch_model");
  members.erase(members.begin() + 1);
  CHECK(read(zip_file(members)).ok());
}

TEST_CASE("members that do not belong into a state dict are refused") {
  const auto add = [](const std::string& name) {
    return changed([&](std::vector<ZipSpec>& members) {
      members.push_back(members.back());
      members.back().name = "archive/" + name;
    });
  };
  for (const char* name : {"code/__torch__.py", "constants.pkl", "data/00", "data/x", "data/1x",
                           "data/1234567890", "extra/x"}) {
    check_refused(add(name), "does not belong");
  }
  check_refused(add("data/3"), "does not use");
}

TEST_CASE("small members are held to what they may say") {
  const auto with = [](const std::string& name, const std::string& text) {
    return changed(
        [&](std::vector<ZipSpec>& members) { find(members, name).data = bytes_of(text); });
  };
  CHECK(read(with("version", "10\n")).ok());
  check_refused(with("version", "0\n"), "version");
  check_refused(with("version", "11\n"), "version");
  check_refused(with("version", "3 \n"), "version");
  check_refused(with("version", ""), "version");
  check_refused(with("version", std::string(17, '0') + "3"), "larger");
  check_refused(with("byteorder", "big"), "byte order");
  check_refused(changed([](std::vector<ZipSpec>& m) { m.erase(m.begin()); }), "data.pkl");
  for (const char* name : {"data.pkl", "version", "byteorder"}) {
    check_refused(changed([&](std::vector<ZipSpec>& m) { find(m, name).crc = 1; }), "CRC32");
  }
}

TEST_CASE("storages and records must agree byte for byte") {
  check_refused(
      changed([](std::vector<ZipSpec>& m) { find(m, "data/1").data.push_back(std::byte{0}); }),
      "data/1 has 15 bytes");
  check_refused(changed([](std::vector<ZipSpec>& m) { find(m, "data/1").data.resize(12); }),
                "data/1 has 12 bytes");
  check_refused(changed([](std::vector<ZipSpec>& m) { find(m, "data/2").name = "archive/data/9"; }),
                "data/2 is missing");
}

TEST_CASE("legacy and foreign formats are named") {
  Bytes legacy = bytes_of(
      std::string_view("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e", 15));
  legacy.resize(1000);
  check_refused(legacy, "before 1.6");
  check_refused(bytes_of("PYTORCH1" + std::string(100, 'x')), "preview");
  std::string tar(1024, '\0');
  tar.replace(0, 8, "storages");
  tar.replace(257, 5, "ustar");
  check_refused(bytes_of(tar), "tar");
  check_refused(bytes_of("<!DOCTYPE html>"), "not a PyTorch file");
  check_refused({}, "not a PyTorch file");
}

}  // namespace
}  // namespace spillway::torch_reader_test
