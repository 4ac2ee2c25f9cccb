// A checkpoint directory: one file or shards, and everything that can be wrong with them.
#include "offload/convert/checkpoint.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/support/torch_writer.h"

namespace spillway::checkpoint_test {
namespace {

const TensorData kA = make_tensor("a", {2, 3});
const TensorData kB = make_tensor("b", {4}, DType::kF16);

void write_index(const TempDirectory& temp, const std::map<std::string, std::string>& map,
                 const std::string& name = "model.safetensors.index.json") {
  const nlohmann::json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
  write_file(temp / name, index.dump());
}

void check_refused(const TempDirectory& temp, const std::string& reason) {
  const auto result = Checkpoint::open(temp.path());
  INFO(reason);
  REQUIRE_FALSE(result.ok());
  CHECK_THAT(std::string(result.status().message()), Catch::Contains(reason));
}

void check_reads(const Checkpoint& checkpoint, const TensorData& tensor) {
  const CheckpointTensor* found = checkpoint.find(tensor.name);
  REQUIRE(found != nullptr);
  Bytes bytes(tensor.data.size());
  REQUIRE(checkpoint.read(*found, 0, bytes).ok());
  CHECK(bytes == tensor.data);
  Bytes tail(tensor.data.size() - 2);
  REQUIRE(checkpoint.read(*found, 2, tail).ok());
  CHECK(std::equal(tail.begin(), tail.end(), tensor.data.begin() + 2));
}

TEST_CASE("one file of either format is read") {
  for (const bool torch : {false, true}) {
    const TempDirectory temp;
    write_file(temp / (torch ? "pytorch_model.bin" : "model.safetensors"),
               torch ? torch_file({kA, kB}) : safetensors_file({kA, kB}));
    const auto opened = Checkpoint::open(temp.path());
    INFO(opened.status().message());
    REQUIRE(opened.ok());
    CHECK(opened.value().notes().empty());
    CHECK(opened.value().records().size() == (torch ? 2 : 0));
    check_reads(opened.value(), kA);
    check_reads(opened.value(), kB);
    CHECK(opened.value().find("c") == nullptr);
    CHECK(opened.value().check_unchanged().ok());
    for (const CheckpointRecord& record : opened.value().records()) {
      CHECK(opened.value().verify(record).ok());
    }
  }
}

TEST_CASE("shards of either format are read, also through symbolic links") {
  for (const bool torch : {false, true}) {
    const TempDirectory temp;
    const std::string extension = torch ? ".bin" : ".safetensors";
    const auto file = [&](const TensorData& t) {
      return torch ? torch_file({t}) : safetensors_file({t});
    };
    write_file(temp / "blob", file(kA));
    std::filesystem::create_symlink("blob", temp / ("m-1" + extension));
    write_file(temp / ("m-2" + extension), file(kB));
    write_index(temp, {{"a", "m-1" + extension}, {"b", "m-2" + extension}},
                torch ? "pytorch_model.bin.index.json" : "model.safetensors.index.json");
    const auto opened = Checkpoint::open(temp.path());
    INFO(opened.status().message());
    REQUIRE(opened.ok());
    CHECK(opened.value().file_count() == 2);
    check_reads(opened.value(), kA);
    check_reads(opened.value(), kB);
  }
}

TEST_CASE("safetensors win over .bin with a note, and a broken one is not passed over") {
  const TempDirectory temp;
  write_file(temp / "model.safetensors", safetensors_file({kA}));
  write_file(temp / "pytorch_model.bin", torch_file({kB}));
  const auto opened = Checkpoint::open(temp.path());
  REQUIRE(opened.ok());
  CHECK(opened.value().find("a") != nullptr);
  REQUIRE(opened.value().notes().size() == 1);
  CHECK_THAT(opened.value().notes()[0], Catch::Contains("ignoring pytorch_model.bin"));
  write_file(temp / "model.safetensors", "broken");
  check_refused(temp, "model.safetensors");
}

TEST_CASE("an index that does not fit its shards is refused") {
  const TempDirectory temp;
  write_file(temp / "m-1.safetensors", safetensors_file({kA}));
  write_file(temp / "m-2.safetensors", safetensors_file({kB}));
  write_index(temp, {{"a", "m-1.safetensors"}});
  REQUIRE(Checkpoint::open(temp.path()).ok());
  write_index(temp, {{"a", "m-1.safetensors"}, {"c", "m-2.safetensors"}});
  check_refused(temp, "'c' of the index is not in it");
  write_index(temp, {{"a", "m-1.safetensors"}, {"b", "m-1.safetensors"}});
  check_refused(temp, "'b' of the index is not in it");
  write_index(temp, {{"a", "m-3.safetensors"}});
  check_refused(temp, "m-3.safetensors, which is missing");
  write_file(temp / "m-2.safetensors", safetensors_file({kA, kB}));
  write_index(temp, {{"a", "m-1.safetensors"}, {"b", "m-2.safetensors"}});
  check_refused(temp, "its tensor 'a' is not in the index");
  write_file(temp / "m-1.safetensors", safetensors_file({kA, kB}));
  write_file(temp / "m-2.safetensors", safetensors_file({make_tensor("c", {1})}));
  write_index(temp, {{"a", "m-1.safetensors"}, {"c", "m-2.safetensors"}});
  check_refused(temp, "its tensor 'b' is not in the index");
}

TEST_CASE("an index cannot name files outside its directory") {
  const TempDirectory temp;
  std::filesystem::create_directory(temp / "model");
  write_file(temp / "secret.safetensors", safetensors_file({kA}));
  for (const char* name :
       {"../secret.safetensors", "/etc/passwd", "..", ".", "", "a/b.safetensors",
        "..\\x.safetensors", "x.safetensors\n", "x.bin", "\xc3\xa9.safetensors"}) {
    INFO(name);
    const nlohmann::json index = {{"weight_map", {{"a", name}}}};
    write_file(temp / "model/model.safetensors.index.json", index.dump());
    const auto result = Checkpoint::open(temp / "model");
    REQUIRE_FALSE(result.ok());
    CHECK_THAT(std::string(result.status().message()), Catch::Contains("plain file name"));
  }
}

TEST_CASE("malformed indexes are refused") {
  const TempDirectory temp;
  for (const char* text : {"", "[]", "{", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})",
                           R"({"weight_map":{"a":1}})",
                           R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"}) {
    INFO(text);
    write_file(temp / "model.safetensors.index.json", text);
    CHECK_FALSE(Checkpoint::open(temp.path()).ok());
  }
}

TEST_CASE("a Git-LFS pointer is called by its name") {
  const TempDirectory temp;
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n";
  write_file(temp / "pytorch_model.bin", pointer);
  check_refused(temp, "Git-LFS");
  write_file(temp / "model.safetensors", pointer);
  check_refused(temp, "Git-LFS");
}

TEST_CASE("a directory without weights says what it looked for") {
  const TempDirectory temp;
  check_refused(temp, "no model.safetensors");
  CHECK(Checkpoint::open(temp / "nowhere").status().code() == Code::kNotFound);
}

TEST_CASE("a record with a wrong checksum is found by verify") {
  const TempDirectory temp;
  auto members = torch_members({kA, kB});
  for (ZipSpec& spec : members) {
    if (spec.name == "archive/data/1") spec.crc = 12345;
  }
  write_file(temp / "pytorch_model.bin", zip_file(members));
  const auto opened = Checkpoint::open(temp.path());
  REQUIRE(opened.ok());
  const auto& records = opened.value().records();
  REQUIRE(records.size() == 2);
  CHECK(opened.value().verify(records[0]).ok());
  const Status status = opened.value().verify(records[1]);
  CHECK(status.code() == Code::kCorruption);
  CHECK_THAT(std::string(status.message()), Catch::Contains("data/1"));
}

TEST_CASE("a file that changes after it was opened is noticed") {
  const TempDirectory temp;
  write_file(temp / "model.safetensors", safetensors_file({kA}));
  const auto opened = Checkpoint::open(temp.path());
  REQUIRE(opened.ok());
  std::filesystem::resize_file(temp / "model.safetensors", 100);
  CHECK(opened.value().check_unchanged().code() == Code::kCorruption);
  Bytes bytes(kA.data.size());
  CHECK_FALSE(opened.value().read(*opened.value().find("a"), 0, bytes).ok());
}

}  // namespace
}  // namespace spillway::checkpoint_test
