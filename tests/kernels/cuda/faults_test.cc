// A device that is lost or has no memory: requests end with an error that says so, nothing hangs,
// nothing leaks, and the process goes on.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <catch2/catch.hpp>
#include <chrono>
#include <future>

#include "server/cli/serve/serve.h"
#include "server/runtime.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/golden.h"
#include "tests/support/http_client.h"
#include "tests/support/patience.h"

namespace spillway::faults_test {
namespace {

using test::CollectingSink;

EngineFlags three_tiers() {
  EngineFlags flags;
  flags.device = "cuda";
  flags.format = Format::kBF16;
  flags.weights = {30, 40, 30};
  flags.kv = {30, 40, 30};
  flags.activations = {40, 30, 30};
  flags.micro_batch = 2;
  flags.block = 4;
  flags.host_memory_bytes = flags.device_memory_bytes = uint64_t{1} << 30;
  return flags;
}

std::vector<Finish> run(Runtime& runtime, int count) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < count; ++i) {
    Request request;
    request.prompt = std::vector<int32_t>(static_cast<size_t>(5 + i), 7 + i);
    request.max_tokens = 6;
    request.ignore_eos = true;
    sinks.push_back(std::make_shared<CollectingSink>());
    if (!runtime.scheduler().submit(request, sinks.back()).ok()) sinks.pop_back();
  }
  std::vector<Finish> finished;
  for (const auto& sink : sinks) finished.push_back(sink->wait());
  return finished;
}

TEST_CASE("a device lost in mid-run ends its requests and refuses new ones", "[slow]") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  const int64_t copies = GENERATE(1, 40, 90);  // Until it is lost
  const std::string attention = GENERATE("device", "host");
  INFO("lost at copy " << copies << ", attention " << attention);
  EngineFlags flags = three_tiers();
  flags.attention = attention;
  const size_t before = fake_cudart::leaks();
  {
    const auto runtime = Runtime::open(checkpoint, flags, {}).value();
    fake_cudart::fail_copy(copies);
    const std::vector<Finish> finished = run(*runtime, 3);
    REQUIRE_FALSE(finished.empty());  // The later ones may come too late to be taken.
    for (const Finish& finish : finished) {
      INFO(finish.status.message());
      CHECK(finish.status.code() == Code::kDeviceLost);
    }
    CHECK_FALSE(runtime->scheduler().stats().healthy);
    CHECK(run(*runtime, 1).empty());
  }
  fake_cudart::fail_copy(-1);
  CHECK(fake_cudart::leaks() == before);
  const auto again = Runtime::open(checkpoint, flags, {}).value();
  for (const Finish& finish : run(*again, 3)) CHECK(finish.status.ok());
}

TEST_CASE("serve answers with an error when its device is lost, and ends") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  {
    const auto runtime = Runtime::open(checkpoint, three_tiers(), {}).value();
    ServeFlags flags;
    flags.port = 0;
    std::promise<std::string> listening;
    std::future<Status> served = std::async(std::launch::async, [&] {
      ServedModel model;
      model.context.shape = &runtime->shape();
      model.context.model_names = {runtime->model_name()};
      model.scheduler = &runtime->scheduler();
      return run_serve(flags, HttpListener::bind(flags.host, flags.port).value(), model,
                       [&](std::string_view url) { listening.set_value(std::string(url)); });
    });
    const std::string url = listening.get_future().get();
    const auto port = static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
    const auto ask = [&] {
      return HttpClient(port).post("/v1/completions", R"({"prompt":[5,7],"max_tokens":4})").status;
    };
    CHECK(ask() == 200);
    fake_cudart::fail_copy(10);
    CHECK(ask() == 500);
    const int later = ask();
    CHECK((later == 503 || later == 0));  // 0: it has closed already.
    REQUIRE(served.wait_for(std::chrono::duration<double>(test::kPatience)) ==
            std::future_status::ready);
    CHECK(served.get().code() == Code::kDeviceLost);
  }
  fake_cudart::fail_copy(-1);
}

TEST_CASE("a device that is not there is named, and asking for it never means the CPU") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  EngineFlags flags = three_tiers();
  flags.gpu = 4;  // Of 0 to 3
  for (const char* device : {"cuda", "auto"}) {
    flags.device = device;
    const Status status = Runtime::open(checkpoint, flags, {}).status();
    INFO(status.message());
    CHECK(status.code() == Code::kNotFound);
    CHECK(status.message().find("CUDA device 4") != std::string_view::npos);
  }
}

TEST_CASE(
    "a device with less memory than its budget is an error that says how much was asked for") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  fake_cudart::limit_memory(size_t{64} << 10);
  const Status status = Runtime::open(checkpoint, three_tiers(), {}).status();
  fake_cudart::limit_memory(size_t{1} << 40);
  INFO(status.message());
  CHECK(status.code() == Code::kCapacity);
  CHECK(status.message().find("bytes") != std::string_view::npos);
}

}  // namespace
}  // namespace spillway::faults_test
