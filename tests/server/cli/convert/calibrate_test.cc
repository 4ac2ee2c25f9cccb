// convert --calibrate: smoothing changes no function, of any family, and keeps a model whose
// channels are far apart where plain 8 bits lose it.
#include "server/cli/convert/calibrate.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "offload/convert/converter.h"
#include "offload/convert/hf_config.h"
#include "server/cli/convert/convert.h"
#include "server/cli/eval/eval_run.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/golden.h"
#include "tests/support/places.h"
#include "tests/support/random_data.h"
#include "tests/support/temp_directory.h"

namespace spillway::calibrate_test {
namespace {

namespace fs = std::filesystem;

std::string demo() {
  return test::source_directory() + "/configs/demo";
}

std::unique_ptr<Runtime> open(const std::string& model, std::optional<Format> format = {}) {
  EngineFlags flags;
  flags.device = "cpu";
  flags.format = format;
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  RuntimeOptions options;
  options.start_scheduler = false;
  auto runtime = Runtime::open(model, flags, options);
  INFO(runtime.status().message());
  REQUIRE(runtime.ok());
  return std::move(runtime).value();
}

class Rows final : public LogitsSink {
 public:
  void on_logits(size_t, int64_t, std::span<float> logits) override {
    all.insert(all.end(), logits.begin(), logits.end());
  }
  void on_failure(size_t, const Status&) override { FAIL("a sequence failed"); }
  std::vector<float> all;
};

// Of every token of a prompt.
std::vector<float> logits(const std::string& model, Format format) {
  const auto runtime = open(model, format);
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 20; ++i) {
    prompt.push_back((i * 37 + 5) % static_cast<int32_t>(runtime->shape().vocabulary));
  }
  auto cache = runtime->engine().reserve(std::ssize(prompt)).value();
  Rows rows;
  const SweepItem item{.tokens = prompt, .kv = cache.get(), .all_logits = true};
  REQUIRE(runtime->engine().run({&item, 1}, rows).ok());
  runtime->engine().release(std::move(cache));
  return rows.all;
}

TEST_CASE("a smoothed model computes the same function, in every family") {
  const char* const name =
      GENERATE("pre_ln_relu", "gelu_new_untied", "post_ln_projected", "galactica_no_bias", "llama3",
               "llama_biases_linear", "qwen2", "qwen3", "gpt_neox", "gpt_neox_serial", "granite",
               "mistral", "phi3_longrope", "smollm3");
  const fs::path folder = test::source_directory() + "/tests/golden/checkpoints/" + name;
  const std::string model = fs::exists(folder / "safetensors")
                                ? (folder / "safetensors").string()
                                : fs::directory_iterator(folder)->path().string();
  INFO(model);
  const test::TemporaryCache place;
  ConvertOptions options;
  options.format = Format::kF32;
  options.calibration = no_maxima(read_hf_config(model).value().shape);
  uint64_t seed = 0;
  for (InputMaxima& layer : options.calibration) {
    for (auto* one : {&layer.qkv, &layer.attention_out, &layer.mlp_up, &layer.mlp_down}) {
      const auto numbers = test::random_floats(std::ssize(*one), ++seed);
      for (size_t i = 0; i < one->size(); ++i) (*one)[i] = std::exp(2 * numbers[i]);
    }
  }
  const std::string smoothed = place.path() + "/smoothed.spill";
  const auto report = convert_checkpoint(model, smoothed, options);
  INFO(report.status().message());
  REQUIRE(report.ok());
  const auto expected = logits(model, Format::kF32), found = logits(smoothed, Format::kF32);
  REQUIRE(found.size() == expected.size());
  CHECK(found != expected);
  CHECK(test::relative_error(found, expected) < 5e-5);
}

// The demo model's tensors, which a test may change.
std::vector<TensorData> demo_tensors() {
  std::ifstream in(demo() + "/model.safetensors", std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(in)), {});
  uint64_t length = 0;
  std::memcpy(&length, all.data(), sizeof(length));
  const auto header = nlohmann::json::parse(all.substr(8, length));
  std::vector<TensorData> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    TensorData tensor{name, entry["dtype"], entry["shape"], {}};
    const auto begin = entry["data_offsets"][0].get<size_t>();
    const auto end = entry["data_offsets"][1].get<size_t>();
    tensor.data = bytes_of(std::string_view(all).substr(8 + length + begin, end - begin));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// As float32, its rows and columns of some channels multiplied.
void scale(TensorData& tensor, float rows, float columns) {
  const size_t width = tensor.shape.size() == 2 ? static_cast<size_t>(tensor.shape[1]) : 1;
  const size_t count = tensor.data.size() / sizeof(uint16_t);
  const auto outlying = [](size_t channel) { return channel % 11 == 7; };
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = tensor_value(tensor, i) * (outlying(i / width) ? rows : 1.0f) *
                (outlying(i % width) ? columns : 1.0f);
  }
  tensor.dtype = "F32";
  tensor.data.resize(count * sizeof(float));
  std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
}

// The demo model with channels that are far larger than others in front of each product, and with
// weights that are as much smaller there: the same function.
std::string write_outliers(const std::string& folder) {
  std::vector<TensorData> tensors = demo_tensors();
  for (TensorData& tensor : tensors) {
    const auto is = [&](std::string_view part) {
      return tensor.name.find(part) != std::string::npos;
    };
    const bool layer = is("layers.");
    const bool norm = layer && is("layer_norm.");
    const bool matrix = is(".weight");
    float of_rows = 1, of_columns = 1;
    if (norm) of_rows = 64;
    if (layer && !norm) {
      if (is("fc1.")) of_rows = 64;  // Behind ReLU in front of fc2
      if (is("v_proj.")) of_rows = 32;
      if (matrix && (is("fc1.") || is("q_proj.") || is("k_proj.") || is("v_proj."))) {
        of_columns = 1.0f / 64;
      }
      if (matrix && is("fc2.")) of_columns = 1.0f / 64;
      if (matrix && is("out_proj.")) of_columns = 1.0f / 32;
    }
    scale(tensor, of_rows, of_columns);
  }
  fs::create_directory(folder);
  for (const auto& entry : fs::directory_iterator(demo())) {
    if (entry.path().filename() != "model.safetensors") {
      fs::copy_file(entry.path(), fs::path(folder) / entry.path().filename());
    }
  }
  write_file(folder + "/model.safetensors", safetensors_file(tensors));
  return folder;
}

double perplexity(const std::string& model, std::optional<Format> format = {}) {
  const auto runtime = open(model, format);
  EvalFlags flags;
  flags.context = 256;
  flags.prompt_tokens = 128;
  flags.windows = 10;
  std::ifstream in(demo() + "/heldout.jsonl");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto ids = runtime->tokenizer()->encode(text, {.add_bos = false}).value();
  const auto windows = cut_windows(ids, runtime->tokenizer()->bos(), flags);
  return score_windows(*runtime, windows, flags, {}, [](int64_t) {}).value().perplexity();
}

std::string converted(const std::string& model, const std::string& output,
                      const std::string& format, bool calibrated) {
  ConvertFlags flags;
  flags.directory = model;
  flags.output = output;
  flags.format = format;
  if (calibrated) flags.calibrate = demo() + "/prompts.jsonl";
  const Status status = run_convert(flags, {});
  INFO(status.message());
  REQUIRE(status.ok());
  return output;
}

TEST_CASE("8 bits keep a model with outlying channels when it is calibrated", "[slow]") {
  const test::TemporaryCache place;
  const std::string outliers = write_outliers(place.path() + "/outliers");
  const double expected = perplexity(demo(), Format::kF32);
  // The same function.
  CHECK(perplexity(outliers, Format::kF32) == Approx(expected).epsilon(1e-4));
  const double plain = perplexity(converted(outliers, place.path() + "/p.spill", "q8", false));
  const double smoothed = perplexity(converted(outliers, place.path() + "/s.spill", "q8", true));
  INFO("perplexity: f32 " << expected << ", q8 " << plain << ", calibrated " << smoothed);
  CHECK(plain > 1.02 * expected);
  CHECK(smoothed < 1.005 * expected);
  // A model without outliers loses nothing by either.
  CHECK(perplexity(demo(), Format::kQ8) < 1.005 * expected);
  CHECK(perplexity(converted(demo(), place.path() + "/d.spill", "q8", true)) < 1.005 * expected);
}

TEST_CASE("what a calibration cannot be made of is said") {
  const test::TemporaryCache place;
  const auto said = [&](const std::string& format, const std::string& text) {
    ConvertFlags flags;
    flags.directory = demo();
    flags.output = place.path() + "/m.spill";
    flags.format = format;
    flags.calibrate = text;
    const Status status = run_convert(flags, {});
    CHECK_FALSE(status.ok());
    CHECK_FALSE(fs::exists(flags.output));
    return std::string(status.message());
  };
  const std::string empty = place.path() + "/empty";
  write_file(empty, "");
  CHECK_THAT(said("bf16", demo() + "/prompts.jsonl"), Catch::Contains("--format q8 or q4"));
  CHECK_THAT(said("auto", demo() + "/prompts.jsonl"), Catch::Contains("--format q8 or q4"));
  CHECK_THAT(said("q8", place.path() + "/none"), Catch::Contains("cannot open --calibrate"));
  CHECK_THAT(said("q8", empty), Catch::Contains("is empty"));
}

}  // namespace
}  // namespace spillway::calibrate_test
