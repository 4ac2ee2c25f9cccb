// Models of one file and of several.
#include "offload/convert/gguf_model.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/support/gguf_writer.h"
#include "tests/support/temp_directory.h"

namespace spillway::gguf_model_test {
namespace {

// File `number` of `count`, from 0, with one tensor.
GgufWriter part(int64_t number, int64_t count) {
  GgufWriter writer;
  writer.add("split.no", number, GgufType::kU16);
  writer.add("split.count", count, GgufType::kU16);
  writer.add("split.tensors.count", count, GgufType::kI32);
  writer.add_tensor("t" + std::to_string(number), {2}, {1, static_cast<float>(number)});
  return writer;
}

std::string refused(const std::string& path) {
  const auto model = GgufModel::open(path);
  REQUIRE_FALSE(model.ok());
  return std::string(model.status().message());
}

TEST_CASE("paths are told by their end, models by their name") {
  CHECK(is_gguf_path("a/b.gguf"));
  CHECK_FALSE(is_gguf_path("a/b.safetensors"));
  CHECK_FALSE(is_gguf_path(".gguf"));
  CHECK(gguf_model_name("a/Model-Q4_K_M.gguf") == "Model-Q4_K_M");
  CHECK(gguf_model_name("a/Model-00001-of-00003.gguf") == "Model");
  CHECK(gguf_model_name("a/Model-0001-of-00003.gguf") == "Model-0001-of-00003");
}

TEST_CASE("a model of several files is opened by its first") {
  TempDirectory temp;
  for (int64_t i = 0; i < 3; ++i) {
    write_file(temp / ("m-0000" + std::to_string(i + 1) + "-of-00003.gguf"), part(i, 3).file());
  }
  const auto model = GgufModel::open(temp / "m-00001-of-00003.gguf");
  INFO(model.status().message());
  REQUIRE(model.ok());
  CHECK(model->files().size() == 3);
  REQUIRE(model->tensors().size() == 3);
  const GgufModelTensor* last = model->find("t2");
  REQUIRE(last != nullptr);
  CHECK(last->file == 2);
  CHECK(model->read_numbers(*last, 2).value() == std::vector<float>{1, 2});
  CHECK_FALSE(model->read_numbers(*last, 1).ok());
  CHECK(model->find("t3") == nullptr);

  CHECK_THAT(refused(temp / "m-00002-of-00003.gguf"), Catch::Contains("m-00001-of-00003.gguf"));
  std::filesystem::copy(temp / "m-00001-of-00003.gguf", temp / "renamed.gguf");
  CHECK_THAT(refused(temp / "renamed.gguf"), Catch::Contains("must end in -00001-of-00003.gguf"));
  write_file(temp / "m-00003-of-00003.gguf", part(1, 3).file());
  CHECK_THAT(refused(temp / "m-00001-of-00003.gguf"), Catch::Contains("says it is file 2 of 3"));
  std::filesystem::remove(temp / "m-00003-of-00003.gguf");
  CHECK_THAT(refused(temp / "m-00001-of-00003.gguf"),
             Catch::Contains("m-00003-of-00003.gguf is missing"));
}

TEST_CASE("files of two models do not make one") {
  TempDirectory temp;
  write_file(temp / "m-00001-of-00002.gguf", part(0, 2).file());
  GgufWriter other = part(1, 2);
  other.add_tensor("t9", {1}, {1});
  write_file(temp / "m-00002-of-00002.gguf", other.file());
  CHECK_THAT(refused(temp / "m-00001-of-00002.gguf"), Catch::Contains("split.tensors.count is 2"));
  GgufWriter wrong = part(0, 2);
  wrong.remove("split.no");
  wrong.add("split.no", int64_t{2}, GgufType::kU16);
  write_file(temp / "m-00001-of-00002.gguf", wrong.file());
  CHECK_THAT(refused(temp / "m-00001-of-00002.gguf"), Catch::Contains("'split.no'"));
}

TEST_CASE("a missing or special file is an error of its own") {
  TempDirectory temp;
  CHECK(GgufModel::open(temp / "none.gguf").status().code() == Code::kNotFound);
  std::filesystem::create_directory(temp / "folder.gguf");
  CHECK_FALSE(GgufModel::open(temp / "folder.gguf").ok());
}

}  // namespace
}  // namespace spillway::gguf_model_test
