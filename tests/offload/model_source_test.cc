// From a user's MODEL to a packed file, through the cache.
#include "offload/model_source.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "offload/convert/fingerprint.h"
#include "offload/model_file/model_file.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_directory.h"

namespace spillway::model_source_test {
namespace {

namespace fs = std::filesystem;

struct Setup {
  TempDirectory temp;
  std::string directory = temp / "model";
  ModelSourceOptions options;
  std::vector<std::string> said;

  Setup() {
    fs::create_directory(directory);
    write_file(directory + "/config.json", opt_config(checkpoint_shape()));
    write_file(directory + "/model.safetensors", safetensors_file(opt_tensors(checkpoint_shape())));
    options.cache_directory = temp / "cache/deep";
    options.announce = [this](const std::string& text) { said.push_back(text); };
  }
  ModelSource resolve() {
    auto source = resolve_model(directory, options);
    INFO(source.status().message());
    REQUIRE(source.ok());
    return source.value();
  }
};

TEST_CASE("a directory is converted once, with an announcement") {
  Setup setup;
  const ModelSource first = setup.resolve();
  CHECK(first.converted);
  CHECK(first.path.starts_with(setup.temp / "cache/deep/model-"));
  REQUIRE(setup.said.size() == 1);
  CHECK_THAT(setup.said[0], Catch::StartsWith("converting " + setup.directory + " as f32 to " +
                                              first.path + ": ") &&
                                Catch::Contains("are free there"));
  CHECK(ModelFile::open(first.path).value().table().format == Format::kF32);
  const ModelSource second = setup.resolve();
  CHECK_FALSE(second.converted);
  CHECK(second.path == first.path);
  CHECK(setup.said.size() == 1);
}

TEST_CASE("a checkpoint that is not the one that is meant is not converted") {
  Setup setup;
  std::string source;
  setup.options.accepts_source = [&](const std::string& what) -> Status {
    source = what;
    return invalid_argument("another one");
  };
  const Status refused = resolve_model(setup.directory, setup.options).status();
  CHECK(refused.message() == "another one");
  CHECK(setup.said.empty());
  CHECK_FALSE(fs::exists(setup.options.cache_directory));
  setup.options.accepts_source = [&](const std::string& what) -> Status {
    CHECK(what == source);
    return {};
  };
  CHECK(ModelFile::open(setup.resolve().path).value().table().source == source);
}

TEST_CASE("a model that its user cannot compute with is not converted") {
  Setup setup;
  setup.options.accepts = [](const ModelShape& shape) -> Status {
    CHECK(shape.layers == checkpoint_shape().layers);
    return invalid_argument("too wide");
  };
  const Status status = resolve_model(setup.directory, setup.options).status();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message() == "too wide");
  CHECK(setup.said.empty());
  CHECK_FALSE(fs::exists(setup.options.cache_directory));
}

TEST_CASE("another format and a changed checkpoint are converted again") {
  Setup setup;
  const ModelSource first = setup.resolve();
  setup.options.format = Format::kBF16;
  const ModelSource bf16 = setup.resolve();
  CHECK(bf16.converted);
  CHECK(bf16.path != first.path);
  CHECK(ModelFile::open(bf16.path).value().table().format == Format::kBF16);
  setup.options.format.reset();
  setup.options.bf16_for_f16 = true;
  CHECK(setup.resolve().path != first.path);
  setup.options.bf16_for_f16 = false;
  fs::last_write_time(setup.directory + "/model.safetensors",
                      fs::file_time_type::clock::now() + std::chrono::hours(1));
  CHECK(setup.resolve().path != first.path);
  ModelShape shape = checkpoint_shape();
  shape.eos_tokens = {7};
  write_file(setup.directory + "/config.json", opt_config(shape));
  CHECK(setup.resolve().converted);
}

TEST_CASE("a cached file that is damaged is made anew, which is said") {
  Setup setup;
  const ModelSource first = setup.resolve();
  CHECK(first.cached);
  fs::resize_file(first.path, fs::file_size(first.path) / 2);
  setup.said.clear();
  CHECK(setup.resolve().converted);
  CHECK(ModelFile::open(first.path).ok());
  REQUIRE(setup.said.size() == 2);
  CHECK_THAT(setup.said[0], Catch::Contains(first.path) && Catch::Contains("packed again"));
  // One whose slabs are damaged is known by who loads it; another process may have been faster.
  const auto id = ModelFile::open(first.path).value().table().file_id;
  setup.options.damaged = id;
  CHECK(setup.resolve().converted);
  CHECK(ModelFile::open(first.path).value().table().file_id != id);
  CHECK_FALSE(setup.resolve().converted);
}

TEST_CASE("a cached q4 file with a head in 4 bits, of an earlier version, is made anew") {
  Setup setup;
  setup.options.format = Format::kQ4;
  const std::string path = setup.resolve().path;
  const ModelShape shape = ModelFile::open(path).value().table().shape;
  const std::vector<Format> all(weight_specs(shape).size(), Format::kQ4);
  auto writer = ModelFileWriter::create(
                    path, plan_model_file(shape, Format::kQ4, MatrixLayout::kPanels16, all))
                    .value();
  const std::vector<SlabInfo> slabs = writer->table().slabs;
  for (uint32_t i = 0; i < slabs.size(); ++i) {
    REQUIRE(writer->write_slab(i, std::vector<std::byte>(slabs[i].bytes)).ok());
  }
  REQUIRE(writer->finish().ok());
  REQUIRE_FALSE(ModelFile::open(path).value().table().mixed());
  setup.said.clear();
  CHECK(setup.resolve().converted);
  REQUIRE_FALSE(setup.said.empty());
  CHECK(setup.said[0] ==
        path + " is not what --format q4 stands for now; the model is packed again");
  CHECK(ModelFile::open(path).value().table().in_named_format());
  CHECK_FALSE(setup.resolve().converted);
}

TEST_CASE("fine-tunings of one shape and one time do not share a packed file") {
  Setup setup;
  const std::string weights = setup.directory + "/model.safetensors";
  const auto time = fs::last_write_time(weights);
  const ModelSource first = setup.resolve();
  const std::string source = ModelFile::open(first.path).value().table().source;
  auto tensors = opt_tensors(checkpoint_shape());
  tensors.back().data[0] ^= std::byte{1};
  write_file(weights, safetensors_file(tensors));
  fs::last_write_time(weights, time);
  const ModelSource second = setup.resolve();
  CHECK(second.converted);
  CHECK(second.path != first.path);
  // By which a batch's journal knows the model.
  CHECK(ModelFile::open(second.path).value().table().source != source);
}

TEST_CASE("each tensor of a large file counts for its fingerprint") {
  const TempDirectory temp;
  const std::string weights = temp / "model.safetensors";
  std::vector<TensorData> tensors;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
    tensors.push_back(make_tensor(name, {300, 1000}));  // 1.1 MiB
  }
  tensors.push_back(make_tensor("small", {100}));
  const auto print = [&] {
    write_file(weights, safetensors_file(tensors));
    fs::last_write_time(weights, fs::file_time_type() + std::chrono::hours(1));
    return checkpoint_fingerprint(temp.path()).value();
  };
  const std::string before = print();
  CHECK(print() == before);
  for (TensorData& tensor : tensors) {
    INFO(tensor.name);
    const Bytes data = tensor.data;
    for (size_t i = 0; i < data.size(); i += 4) tensor.data[i] ^= std::byte{1};
    CHECK(print() != before);
    tensor.data = data;
  }
  CHECK(print() == before);
}

TEST_CASE("a cached file of before contents counted is left and told of") {
  Setup setup;
  const std::string now = setup.resolve().path;
  const std::string print = checkpoint_fingerprint(setup.directory).value().substr(0, 16);
  const std::string old = checkpoint_fingerprint_of_stamps(setup.directory).value().substr(0, 16);
  std::string before = now;
  before.replace(before.find(print), print.size(), old);
  fs::rename(now, before);
  setup.said.clear();
  CHECK(setup.resolve().converted);
  REQUIRE(setup.said.size() == 2);
  CHECK_THAT(setup.said[0], Catch::Contains(before) && Catch::Contains("can be deleted"));
  CHECK(fs::exists(before));
}

TEST_CASE("a FIFO in a model directory is refused, not waited for") {
  Setup setup;
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"}) {
    const std::string path = setup.directory + "/" + name;
    const std::string aside = setup.temp / "aside";
    if (fs::exists(path)) fs::rename(path, aside);
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    const Status refused = resolve_model(setup.directory, setup.options).status();
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK_THAT(std::string(refused.message()), Catch::Contains(path + " is a FIFO"));
    fs::remove(path);
    if (fs::exists(aside)) fs::rename(aside, path);
  }
  CHECK(setup.resolve().converted);
}

TEST_CASE("files of other kinds are told apart, with what to give instead") {
  Setup setup;
  const auto refused = [&](const std::string& path) {
    const Status status = resolve_model(path, setup.options).status();
    CHECK(status.code() == Code::kInvalidArgument);
    return std::string(status.message());
  };
  write_file(setup.temp / "model.bin", "GGUF\x03 and so on");
  CHECK_THAT(refused(setup.temp / "model.bin"), Catch::Contains("ends in .gguf"));
  write_file(setup.temp / "model.gguf", GgufWriter::model("other").file());
  CHECK_THAT(refused(setup.temp / "model.gguf"),
             Catch::Contains("model.gguf") && Catch::Contains("'other', which is not supported"));
  const std::string weights = setup.directory + "/model.safetensors";
  CHECK_THAT(refused(weights), Catch::Contains("a safetensors file") &&
                                   Catch::EndsWith("tokenizer: " + setup.directory));
  fs::copy(weights, setup.temp / "renamed");
  CHECK_THAT(refused(setup.temp / "renamed"), Catch::Contains("a safetensors file"));
  write_file(setup.temp / "pytorch_model.bin", "PK\x03\x04");
  CHECK_THAT(refused(setup.temp / "pytorch_model.bin"), Catch::Contains("a PyTorch file"));
}

TEST_CASE("processes that want the same model convert it once") {
  Setup setup;
  setup.options.announce = nullptr;
  std::atomic<int> converted = 0;
  std::atomic<int> good = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        const auto source = resolve_model(setup.directory, setup.options);
        if (source.ok() && ModelFile::open(source.value().path).ok()) ++good;
        if (source.ok() && source.value().converted) ++converted;
      });
    }
  }
  CHECK(good == 4);
  CHECK(converted == 1);
}

TEST_CASE("damage in the checkpoint comes back as warnings") {
  Setup setup;
  auto tensors = opt_tensors(checkpoint_shape());
  tensors[0].data[3] = std::byte{0x7f};
  tensors[0].data[2] = std::byte{0xff};
  write_file(setup.directory + "/model.safetensors", safetensors_file(tensors));
  const ModelSource source = setup.resolve();
  REQUIRE(source.warnings.size() == 1);
  CHECK_THAT(source.warnings[0], Catch::Contains("NaN"));
  // The cached file knows it, too, and of the head that is packed from the same numbers.
  for (const ModelSource& later : {setup.resolve(), resolve_model(source.path, {}).value()}) {
    CHECK_FALSE(later.converted);
    REQUIRE(later.warnings.size() == 2);
    CHECK_THAT(later.warnings[0], Catch::Contains("token_embedding") && Catch::Contains("1 NaN"));
    CHECK_THAT(later.warnings[1], Catch::Contains("head") && Catch::Contains("1 NaN"));
  }
}

TEST_CASE("a .spill file is taken as it is") {
  Setup setup;
  const std::string path = setup.resolve().path;
  const auto source = resolve_model(path, {});
  REQUIRE(source.ok());
  CHECK(source.value().path == path);
  CHECK_FALSE(source.value().converted);
}

TEST_CASE("what is no model is refused with what to do") {
  Setup setup;
  const auto refused = [&](const std::string& model) {
    return std::string(resolve_model(model, setup.options).status().message());
  };
  CHECK_THAT(refused(setup.temp / "nothing"), Catch::Contains("--dummy-weights"));
  CHECK_THAT(refused(setup.temp.path()), Catch::Contains("no config.json"));
  CHECK_THAT(refused(setup.directory + "/config.json"), Catch::Contains("packed model file"));
  CHECK_THAT(refused("/dev/null"), Catch::Contains("neither"));
  CHECK_THAT(refused("https://example.org/a/b"), Catch::Contains("nothing is downloaded"));
  CHECK_THAT(refused(setup.temp / "m.gguf"), Catch::Contains("no file"));
  CHECK_THAT(refused("some-org/Some-Model-8B"),
             Catch::Contains("hf download some-org/Some-Model-8B"));
  CHECK_THAT(refused("../some-model"), !Catch::Contains("hf download"));
  fs::create_directories(setup.temp / "only");
  write_file(setup.temp / "only/b.gguf", "GGUF");
  write_file(setup.temp / "only/a.gguf", "GGUF");
  CHECK_THAT(refused(setup.temp / "only"), Catch::EndsWith("only/a.gguf"));
  const std::string snapshot =
      setup.temp / "hub/models--some-org--Some-Model-8B/snapshots/0123456789";
  fs::create_directories(snapshot);
  write_file(snapshot + "/config.json", "{}");
  ::setenv("HF_HUB_CACHE", (setup.temp / "hub").c_str(), 1);
  CHECK_THAT(refused("some-org/Some-Model-8B"), Catch::EndsWith("give " + snapshot));
  ::unsetenv("HF_HUB_CACHE");
  write_file(setup.temp / "file", "");
  setup.options.cache_directory = setup.temp / "file";
  CHECK_THAT(refused(setup.directory), Catch::Contains("SPILLWAY_CACHE"));
}

TEST_CASE("the cache folder follows the environment") {
  const auto with = [](const char* spillway, const char* xdg, const char* home) {
    const auto set = [](const char* name, const char* value) {
      value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
    };
    set("SPILLWAY_CACHE", spillway);
    set("XDG_CACHE_HOME", xdg);
    set("HOME", home);
    const auto found = default_cache_directory();
    return found.ok() ? found.value() : std::string("none");
  };
  const std::string home = ::getenv("HOME") == nullptr ? "" : ::getenv("HOME");
  CHECK(with("/s", "/x", "/h") == "/s");
  CHECK(with(nullptr, "/x", "/h") == "/x/spillway");
  CHECK(with("", "", "/h") == "/h/.cache/spillway");
  CHECK(with(nullptr, nullptr, nullptr) == "none");
  with(nullptr, nullptr, home.c_str());
}

}  // namespace
}  // namespace spillway::model_source_test
