// What inspect finds in a directory, a packed file and a shape's name.
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "offload/io/file.h"
#include "server/cli/convert/convert.h"
#include "server/cli/inspect/inspect_report.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/support/torch_writer.h"

namespace spillway::inspect_test {
namespace {

using nlohmann::json;

constexpr const char* kFc2 = "model.decoder.layers.0.fc2.weight";

// A tiny model with one NaN, two infinities and a vocabulary.
struct Damaged {
  TempDirectory temp;
  std::vector<TensorData> tensors = opt_tensors(checkpoint_shape());

  Damaged() {
    for (TensorData& tensor : tensors) {
      if (tensor.name != kFc2) continue;
      const float values[] = {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()};
      std::memcpy(tensor.data.data() + 100, values, sizeof(values));
    }
    std::filesystem::create_directory(temp / "m");
    write_file(temp / "m/config.json", opt_config(checkpoint_shape()));
    write_file(temp / "m/model.safetensors", safetensors_file(tensors));
    write_file(temp / "m/vocab.json", "{}");
  }
  json inspect(const std::string& model, bool verify = false) const {
    InspectOptions options;
    options.verify = verify;
    const auto report = inspect_model(model, options);
    INFO(report.status().message());
    REQUIRE(report.ok());
    CHECK_FALSE(text_of(report.value()).empty());
    return json::parse(json_of(report.value()));
  }
  std::string pack() const {
    ConvertFlags flags;
    flags.directory = temp / "m";
    flags.output = temp / "m.spill";
    REQUIRE(run_convert(flags, {}).ok());
    return flags.output;
  }
};

TEST_CASE("inspect counts NaN and infinity in a directory and in a packed file") {
  const Damaged model;
  const json directory = model.inspect(model.temp / "m");
  CHECK(directory["kind"] == "checkpoint");
  CHECK(directory["nan"] == 1);
  CHECK(directory["inf"] == 2);
  REQUIRE(directory["non_finite"].size() == 1);
  CHECK(directory["non_finite"][0] == json{{"tensor", kFc2}, {"nan", 1}, {"inf", 2}});
  CHECK(directory["weights_read"] == true);
  CHECK(directory["verified"] == false);
  for (const bool verify : {false, true}) {
    const json packed = model.inspect(model.pack(), verify);
    CHECK(packed["kind"] == "packed");
    CHECK(packed["nan"] == 1);
    CHECK(packed["inf"] == 2);
    CHECK(packed["non_finite"][0]["tensor"] == "layer 0 mlp_down.weight");
    CHECK(packed["verified"] == verify);
    CHECK(packed["parameters"] == directory["parameters"]);
    CHECK(packed["bytes"] == directory["bytes"]);
    CHECK(packed["tokenizer_files"] == json{{{"name", "vocab.json"}, {"bytes", 2}}});
  }
}

TEST_CASE("the sizes of inspect add up to the packed weights") {
  const Damaged model;
  const json bytes = model.inspect(model.pack())["bytes"];
  CHECK(bytes["embeddings"].get<int>() + bytes["layers"].get<int>() + bytes["head"].get<int>() ==
        bytes["total"].get<int>());
  CHECK(bytes["layers"].get<int>() == 2 * bytes["layer"].get<int>());
}

TEST_CASE("inspect --verify finds a flipped bit in a packed file and a wrong CRC in a .bin") {
  const Damaged model;
  const std::string path = model.pack();
  std::string bytes = read_small_file(path, 1 << 30).value();
  bytes[20'000] = static_cast<char>(bytes[20'000] ^ 1);
  write_file(path, bytes);
  InspectOptions options;
  CHECK(inspect_model(path, options).ok());
  options.verify = true;
  CHECK(inspect_model(path, options).status().code() == Code::kCorruption);

  std::filesystem::remove(model.temp / "m/model.safetensors");
  write_file(model.temp / "m/pytorch_model.bin", torch_file(model.tensors));
  CHECK(inspect_model(model.temp / "m", options).value().verified);
  auto members = torch_members(model.tensors);
  members[4].crc = 7;
  write_file(model.temp / "m/pytorch_model.bin", zip_file(members));
  CHECK(inspect_model(model.temp / "m", options).status().code() == Code::kCorruption);
}

TEST_CASE("inspect knows the shapes by name") {
  const auto report = inspect_model("opt-1.3b", {});
  REQUIRE(report.ok());
  CHECK(report->parameters == 1'315'758'080);
  CHECK_THAT(text_of(report.value()), Catch::Contains("1,315,758,080"));
}

TEST_CASE("bad input ends the commands with 2, whatever is wrong with it") {
  CHECK(report_input("test", {}) == kExitSuccess);
  CHECK(report_input("test", corruption("cut off")) == kExitUsage);
  CHECK(report_input("test", invalid_argument("shape")) == kExitUsage);
  CHECK(report_input("test", not_found("nothing")) == kExitUsage);
  CHECK(report_input("test", Status(Code::kIoError, "disk")) == kExitFailure);
  CHECK(report_input("test", Status(Code::kCapacity, "full")) == kExitFailure);
  CHECK(inspect_model("/no/such/model", {}).status().code() == Code::kNotFound);
}

TEST_CASE("inspect shows what quantising cost") {
  const Damaged model;
  ConvertFlags flags;
  flags.directory = model.temp / "m";
  flags.output = model.temp / "q4.spill";
  flags.format = "q4";
  REQUIRE(run_convert(flags, {}).ok());
  InspectOptions options;
  options.verify = true;
  const auto report = inspect_model(flags.output, options);
  REQUIRE(report.ok());
  CHECK(report->verified);
  CHECK(report->format == Format::kQ4);
  CHECK(report->quantization.relative_rms() > 0);
  CHECK(report->quantization_worst_rms >= report->quantization.relative_rms());
  CHECK_THAT(text_of(report.value()),
             Catch::Contains("relative RMS error") && Catch::Contains(", by Hadamard matrices"));
  const auto root = nlohmann::json::parse(json_of(report.value()));
  CHECK(root["quantization"]["group"] == 64);
  CHECK(root["quantization"]["hadamard"] == true);
  CHECK(root["quantization"]["relative_rms"] == report->quantization.relative_rms());
}

TEST_CASE("convert refuses unknown formats") {
  const Damaged model;
  ConvertFlags flags;
  flags.directory = model.temp / "m";
  flags.output = model.temp / "x.spill";
  for (const char* format : {"q5", "int8", "i32"}) {
    flags.format = format;
    CHECK(run_convert(flags, {}).code() == Code::kInvalidArgument);
  }
  CHECK_FALSE(std::filesystem::exists(flags.output));
}

}  // namespace
}  // namespace spillway::inspect_test
