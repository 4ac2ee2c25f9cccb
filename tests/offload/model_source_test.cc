// From a user's MODEL to a packed file, through the cache.
#include "offload/model_source.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "offload/model_file.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

struct Setup {
  TempDirectory temp;
  std::string directory = temp / "model";
  ModelSourceOptions options;
  std::vector<std::string> said;

  Setup() {
    fs::create_directory(directory);
    write_file(directory + "/config.json", opt_config(tiny_shape()));
    write_file(directory + "/model.safetensors", safetensors_file(opt_tensors(tiny_shape())));
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
  CHECK_THAT(setup.said[0], Catch::Contains("converting"));
  CHECK(ModelFile::open(first.path).value().table().format == DType::kF32);
  const ModelSource second = setup.resolve();
  CHECK_FALSE(second.converted);
  CHECK(second.path == first.path);
  CHECK(setup.said.size() == 1);
}

TEST_CASE("a model that its user cannot compute with is not converted") {
  Setup setup;
  setup.options.accepts = [](const ModelShape& shape) -> Status {
    CHECK(shape.layers == tiny_shape().layers);
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
  setup.options.format = DType::kBF16;
  const ModelSource bf16 = setup.resolve();
  CHECK(bf16.converted);
  CHECK(bf16.path != first.path);
  CHECK(ModelFile::open(bf16.path).value().table().format == DType::kBF16);
  setup.options.format.reset();
  setup.options.bf16_for_f16 = true;
  CHECK(setup.resolve().path != first.path);
  setup.options.bf16_for_f16 = false;
  fs::last_write_time(setup.directory + "/model.safetensors",
                      fs::file_time_type::clock::now() + std::chrono::hours(1));
  CHECK(setup.resolve().path != first.path);
  ModelShape shape = tiny_shape();
  shape.eos_tokens = {7};
  write_file(setup.directory + "/config.json", opt_config(shape));
  CHECK(setup.resolve().converted);
}

TEST_CASE("a cached file that is damaged is made anew") {
  Setup setup;
  const ModelSource first = setup.resolve();
  fs::resize_file(first.path, fs::file_size(first.path) / 2);
  CHECK(setup.resolve().converted);
  CHECK(ModelFile::open(first.path).ok());
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
  auto tensors = opt_tensors(tiny_shape());
  tensors[0].data[3] = std::byte{0x7f};
  tensors[0].data[2] = std::byte{0xff};
  write_file(setup.directory + "/model.safetensors", safetensors_file(tensors));
  const ModelSource source = setup.resolve();
  REQUIRE(source.warnings.size() == 1);
  CHECK_THAT(source.warnings[0], Catch::Contains("NaN"));
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
}  // namespace spillway
