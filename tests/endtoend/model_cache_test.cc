// The program and what it is given for a model, or finds in its cache of packed models.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "offload/model_file/model_file.h"
#include "offload/model_source.h"
#include "server/runtime.h"
#include "tests/support/golden.h"
#include "tests/support/places.h"

namespace spillway::endtoend_model_cache_test {
namespace {

namespace fs = std::filesystem;

std::string golden(const std::string& name) {
  return test::source_directory() + "/tests/golden/checkpoints/" + name + "/safetensors";
}

std::string checkpoint() {
  return golden("pre_ln_relu");
}

// Flips a bit in the middle of a slab.
void damage(const std::string& path, uint32_t slab) {
  const SlabInfo about = ModelFile::open(path).value().table().slabs[slab];
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(about.offset + about.bytes / 2);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

TEST_CASE("a cached model whose weights are damaged is packed again by who loads it") {
  const test::TemporaryCache cache;
  EngineFlags flags;
  flags.device = "cpu";
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  std::vector<std::string> said;
  RuntimeOptions options;
  options.say = [&](const std::string& line) { said.push_back(line); };
  ModelSourceOptions as_f32;
  flags.format = as_f32.format = Format::kF32;
  REQUIRE(Runtime::open(checkpoint(), flags, options).ok());
  const std::string packed = [&] {
    for (const auto& entry : fs::directory_iterator(cache.path())) {
      if (entry.path().extension() == ".spill") return entry.path().string();
    }
    return std::string();
  }();
  damage(packed, 1);
  said.clear();
  const auto again = Runtime::open(checkpoint(), flags, options);
  INFO(again.status().message());
  REQUIRE(again.ok());
  CHECK(std::count_if(said.begin(), said.end(), [&](const std::string& line) {
          return line.find(packed) != std::string::npos &&
                 line.find("packed again") != std::string::npos;
        }) == 1);
  said.clear();
  REQUIRE(Runtime::open(checkpoint(), flags, options).ok());
  CHECK(said.empty());
  // A file that the user made is his: it is refused.
  const std::string own = cache.path() + "/own.spill";
  fs::copy(packed, own);
  damage(own, 1);
  const Status refused = Runtime::open(own, flags, options).status();
  CHECK(refused.code() == Code::kCorruption);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("convert the model again"));
}

TEST_CASE("a damaged model is bad input for every command that opens it") {
  const test::TemporaryCache place;
  const std::string cut = place.path() + "/cut";
  fs::copy(checkpoint(), cut);
  const std::string weights = cut + "/model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) - 100);
  const std::string packed = place.path() + "/own.spill";
  REQUIRE(test::exit_of(test::program() + " convert " + checkpoint() + " " + packed +
                        " > /dev/null 2>&1") == 0);
  damage(packed, 1);
  const std::string bytes = place.path() + "/bytes.gguf", empty = place.path() + "/empty.gguf",
                    little = place.path() + "/short.spill", text = place.path() + "/text";
  std::ofstream(bytes) << std::string(5000, 'x');
  std::ofstream(empty).flush();
  std::ofstream(little) << "SPILL";
  std::ofstream(text) << "{\"prompt\":[5]}\n";
  for (const std::string& model : {cut, packed, bytes, empty, little}) {
    for (const std::string& command :
         {"serve --port 0 --batch-dir off " + model,
          "generate --prompt-tokens 5 --max-tokens 1 " + model, "eval --text " + text + " " + model,
          "bench --sequences 1 --prompt-tokens 4 --new-tokens 2 " + model,
          "batch --input " + text + " --output " + text + ".out " + model}) {
      INFO(command);
      CHECK(test::exit_of(test::program() + " " + command +
                          " --device cpu --host-memory 1GiB > /dev/null 2>&1") == 2);
    }
  }
}

TEST_CASE("spillway cache removes a packed model, but not while a program uses it") {
  const test::TemporaryCache cache;
  const std::string log = cache.path() + "/log";
  EngineFlags flags;
  flags.device = "cpu";
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  std::vector<std::string> said;
  RuntimeOptions options;
  options.say = [&](const std::string& line) { said.push_back(line); };
  const auto files = [&] {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(cache.path())) {
      count += entry.path().extension() == ".spill" ? 1 : 0;
    }
    return count;
  };
  const auto run = [&](const std::string& words) {
    return test::exit_of(test::program() + " cache " + words + " > " + log + " 2>&1");
  };
  {
    const auto runtime = Runtime::open(checkpoint(), flags, options);
    REQUIRE(runtime.status().message() == "");
    CHECK(std::count_if(said.begin(), said.end(), [&](const std::string& line) {
            return line.starts_with("converting " + checkpoint() + " as ") &&
                   line.find(cache.path()) != std::string::npos &&
                   line.find("are free there") != std::string::npos;
          }) == 1);
    CHECK(run("") == 0);
    CHECK(test::exit_of("grep -q 'pre_ln_relu.*safetensors' " + log) == 0);
    CHECK(test::exit_of("grep -q 'in use now' " + log) == 0);
    CHECK(run("prune --max-size 0") == 1);
    CHECK(test::exit_of("grep -q 'more than --max-size' " + log) == 0);
    CHECK(files() == 1);
  }
  CHECK(run("prune --max-size 0 --dry-run") == 0);
  CHECK(files() == 1);
  CHECK(run("--max-size 0") == 0);
  CHECK(files() == 0);
  CHECK(run("list --json") == 0);
  CHECK(run("prune --max-size") == 2);
}

TEST_CASE("a checkpoint is streamed as it lies when the command line says so") {
  const test::TemporaryCache cache;
  const std::string log = cache.path() + "/log";
  const auto generate = [&](const std::string& words) {
    return test::exit_of(test::program() + " generate " + words +
                         " --device cpu --prompt-tokens 5,7 --max-tokens 2 > " + log + " 2>&1");
  };
  const std::string from = " --weights-from checkpoint";
  CHECK(generate(golden("head_80_bf16") + " --format bf16" + from) == 0);
  CHECK(generate(checkpoint() + from) == 2);
  CHECK(test::exit_of("grep -q 'are to be f32; leave --weights-from checkpoint out' " + log) == 0);
  CHECK(generate(golden("head_80_bf16") + from + " --verify first") == 2);
  CHECK(generate("opt-125m --dummy-weights" + from) == 2);
}

TEST_CASE("a tokenizer that cannot be used is warned of, and token ids still work") {
  const test::TemporaryCache place;
  const std::string model = place.path() + "/model", log = place.path() + "/log";
  fs::copy(checkpoint(), model);
  std::ofstream(model + "/tokenizer.json") << R"({"model": {"type": "Unigram"}})";
  EngineFlags flags;
  flags.device = "cpu";
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  std::vector<std::string> said;
  RuntimeOptions options;
  options.say = [&](const std::string& line) { said.push_back(line); };
  const auto runtime = Runtime::open(model, flags, options);
  REQUIRE(runtime.status().message() == "");
  CHECK(runtime.value()->tokenizer() == nullptr);
  CHECK_THAT(runtime.value()->tokenizer_error(), Catch::Contains("tokenizer.json: decoder"));
  CHECK(std::count_if(said.begin(), said.end(), [&](const std::string& line) {
          return line.find("warning: prompts must be token ids") == 0 &&
                 line.find(runtime.value()->tokenizer_error()) != std::string::npos;
        }) == 1);
  const auto generate = [&](const std::string& prompt) {
    return test::exit_of(test::program() + " generate " + model + " --device cpu --max-tokens 2 " +
                         prompt + " > " + log + " 2>&1");
  };
  CHECK(generate("--prompt-tokens 5,7") == 0);
  CHECK(generate("--prompt hello") == 2);
  CHECK(test::exit_of("grep -q 'this model.s tokenizer cannot be used: tokenizer.json: decoder' " +
                      log) == 0);
}

TEST_CASE("a run of another model is refused before that one is packed") {
  const test::TemporaryCache place;
  const std::string model = place.path() + "/model", log = place.path() + "/log";
  fs::copy(checkpoint(), model);
  // The second line is wrong, so that the run stops and leaves its journal.
  std::ofstream(place.path() + "/in.jsonl")
      << "{\"prompt\":[5],\"max_tokens\":1}\n{\"prompt\":[-1]}\n";
  const auto batch = [&](const std::string& flags) {
    return test::exit_of(test::program() + " batch " + model + " --device cpu --input " +
                         place.path() + "/in.jsonl --output " + place.path() + "/out.jsonl " +
                         flags + " > " + log + " 2>&1");
  };
  const auto packed = [&] {
    int files = 0;
    for (const auto& entry : fs::directory_iterator(place.path())) {
      files += entry.path().extension() == ".spill" ? 1 : 0;
    }
    return files;
  };
  REQUIRE(batch("--max-errors 0") == 1);
  REQUIRE(packed() == 1);
  fs::last_write_time(model + "/config.json", fs::file_time_type::clock::now());
  CHECK(batch("--resume") == 2);
  CHECK(packed() == 1);
  std::ifstream in(log);
  const std::string said{std::istreambuf_iterator<char>(in), {}};
  CHECK_THAT(
      said, Catch::Contains("belongs to another run: model was") && !Catch::Contains("converting"));
}

TEST_CASE("convert says what it was given instead of a directory") {
  const test::TemporaryCache place;
  const std::string packed = place.path() + "/a.spill", log = place.path() + "/log";
  const auto convert = [&](const std::string& from, const std::string& to) {
    return test::exit_of(test::program() + " convert " + from + " " + to + " > " + log + " 2>&1");
  };
  const auto said = [&] {
    std::ifstream in(log);
    return std::string{std::istreambuf_iterator<char>(in), {}};
  };
  REQUIRE(convert(checkpoint(), packed) == 0);
  CHECK(convert(packed, place.path() + "/b.spill") == 2);
  CHECK_THAT(said(), Catch::Contains("a packed model already"));
  CHECK(convert(checkpoint() + "/model.safetensors", place.path() + "/b.spill") == 2);
  CHECK_THAT(said(), Catch::Contains("give the directory that holds it"));
  CHECK(convert(checkpoint() + "/config.json", place.path() + "/b.spill") == 2);
  CHECK_THAT(said(), Catch::Contains("is not a directory"));
  CHECK_FALSE(fs::exists(place.path() + "/b.spill"));
}

TEST_CASE("the output of convert replaces no device and no link") {
  const test::TemporaryCache place;
  const auto convert = [&](const std::string& to) {
    return test::exit_of(test::program() + " convert " + checkpoint() + " " + to + " > " +
                         place.path() + "/log 2>&1");
  };
  const std::string link = place.path() + "/link.spill", null = place.path() + "/null.spill";
  fs::create_symlink("target.spill", link);
  CHECK(convert(link) == 0);
  CHECK(fs::is_symlink(link));
  CHECK(ModelFile::open(place.path() + "/target.spill").ok());
  fs::create_symlink("/dev/null", null);
  CHECK(convert(null) == 2);
  CHECK(fs::is_symlink(null));
}

TEST_CASE("a command whose output is lost has failed") {
  const test::TemporaryCache place;
  const auto into = [&](const std::string& command, const std::string& output) {
    return test::exit_of(test::program() + " " + command + " > " + output + " 2> " + place.path() +
                         "/log");
  };
  const std::string lengths = " --prompt-tokens 9 --new-tokens 4 --sequences 1 --device cpu";
  for (const std::string& command :
       {std::string("--help"), std::string("--version"), std::string("serve --help"),
        std::string("serve --print-config"), "inspect " + checkpoint(),
        "inspect --json " + checkpoint(),
        std::string("plan opt-30b --cost-model flexgen --json --micro-batch 48 --block 144")}) {
    INFO(command);
    CHECK(into(command, "/dev/null") == 0);
    CHECK(into(command, "/dev/full") == 1);
    std::ifstream log(place.path() + "/log");
    const std::string said{std::istreambuf_iterator<char>(log), {}};
    CHECK_THAT(said, Catch::Contains("standard output"));
  }
  // A mistake keeps its own status.
  CHECK(into("serve --no-such-flag", "/dev/full") == 2);
  // A trace that cannot be written is told before the run, not after it.
  CHECK(into("bench " + checkpoint() + lengths + " --trace /dev/full", "/dev/null") == 1);
}

TEST_CASE("a command whose trace found the disk full has failed") {
  const test::TemporaryCache place;
  const std::string trace = place.path() + "/trace.json", log = place.path() + "/log";
  const auto run = [&](const std::string& limit) {
    return test::exit_of("ulimit -f " + limit + " && " + test::program() +
                         " plan opt-30b --cost-model flexgen --simulate --micro-batch 48 --block "
                         "144 --weights 20,80,0 --kv 0,100,0 --activations 0,100,0 --trace " +
                         trace + " > /dev/null 2> " + log);
  };
  CHECK(run("unlimited") == 0);
  CHECK(fs::file_size(trace) > 100'000);
  CHECK(run("40") == 1);
  std::ifstream in(log);
  const std::string said{std::istreambuf_iterator<char>(in), {}};
  CHECK_THAT(said, Catch::Contains("is incomplete") && Catch::Contains("events"));
}

}  // namespace
}  // namespace spillway::endtoend_model_cache_test
