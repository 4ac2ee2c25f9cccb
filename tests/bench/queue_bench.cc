// What waiting requests cost a sweep: a model of one small layer, so that a sweep is little else
// than scheduling, with few and with many requests in the queue, of mixed lengths, priorities and
// clients, and with clients that leave.
// Usage: queue_bench [WAITING]   (default: 200000)
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "kernels/base/clock.h"
#include "scheduler/block_scheduler.h"
#include "tests/support/tiny_shape.h"

namespace spillway {
namespace {

constexpr int64_t kBlock = 32;
constexpr double kSeconds = 2;  // Measured of each case

// A sink that wants every token.
class Listener final : public TokenSink {
 public:
  AfterToken on_token(int32_t, const TokenLogprobs*) override { return AfterToken::kGoOn; }
  void on_finish(const Finish&) override {}
};

Request request_of(std::mt19937_64& random) {
  Request request;
  request.prompt.assign(1 + random() % 16, 7);
  request.max_tokens = static_cast<int32_t>(1 + random() % 16);
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  request.priority = static_cast<int32_t>(random() % 10);
  request.client = random() % 1000;
  return request;
}

// Keeps `waiting` requests in the queue and cancels so many a second while sweeps run.
void measure(size_t waiting, double cancelled_per_second) {
  const ModelShape shape = test::tiny_shape(1);
  const auto device = open_cpu_device(1).value();
  const auto weights = WeightStore::dummy(*device, shape, Format::kF32, 1, {}).value();
  SchedulerOptions scheduling;
  scheduling.block_sequences_max = kBlock;
  scheduling.queue_max = 1 << 20;
  EngineOptions options;
  options.sweep_tokens_max = sweep_tokens_max(shape, scheduling);
  options.kv_bytes = kv_layout(shape, Format::kF32).sequence_bytes(64) * kBlock;
  const auto scheduler =
      start_scheduler(Engine::open(*device, *weights, options).value(), scheduling);
  std::mt19937_64 random(1);
  const auto sink = std::make_shared<Listener>();
  std::vector<RequestId> ids;
  const auto fill = [&] {
    while (scheduler->stats().waiting < static_cast<int64_t>(waiting)) {
      ids.push_back(scheduler->submit(request_of(random), sink).value());
    }
  };
  fill();
  const SchedulerStats before = scheduler->stats();
  const double start = steady_seconds();
  double cancelled = 0;
  while (steady_seconds() - start < kSeconds) {
    fill();
    const double due = cancelled_per_second * (steady_seconds() - start);
    for (; cancelled < due; ++cancelled) scheduler->cancel(ids[random() % ids.size()]);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  const SchedulerStats after = scheduler->stats();
  const double seconds = steady_seconds() - start;
  const auto sweeps = static_cast<double>(after.sweeps - before.sweeps);
  std::printf(
      "%8zu waiting, %6.0f cancelled a second: %7.3f ms a sweep, of which in the engine %.3f\n",
      waiting, cancelled_per_second, 1e3 * seconds / sweeps,
      1e3 * (after.busy_seconds - before.busy_seconds) / sweeps);
  std::fflush(stdout);
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  const size_t waiting = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200'000;
  for (const double cancelled : {0.0, 1000.0}) {
    for (const size_t count : {size_t{100}, waiting}) spillway::measure(count, cancelled);
  }
  return 0;
}
