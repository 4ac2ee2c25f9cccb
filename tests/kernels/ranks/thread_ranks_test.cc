#include "kernels/ranks/thread_ranks.h"

#include <catch2/catch.hpp>
#include <functional>
#include <thread>

#include "tests/support/rank_cases.h"

namespace spillway::thread_ranks_test {
namespace {

using Act = std::function<void(RankGroup&, Device&)>;

// Each rank on a thread of its own, which then leaves the group.
void on_each(std::vector<std::unique_ptr<RankGroup>> ranks, const Act& act) {
  std::vector<std::thread> threads;
  for (std::unique_ptr<RankGroup>& rank : ranks) {
    threads.emplace_back([&act, own = std::move(rank)]() mutable {
      const auto device = open_cpu_device(1).value();
      act(*own, *device);
      own.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("ranks of one process give each other what they are asked for") {
  for (const int size : {1, 2, 3, 4}) {
    std::vector<std::vector<std::string>> wrong(static_cast<size_t>(size));
    on_each(thread_ranks(size), [&](RankGroup& ranks, Device& device) {
      CHECK(ranks.size() == size);
      wrong[static_cast<size_t>(ranks.rank())] = test::run_rank_cases(ranks, device);
    });
    for (const std::vector<std::string>& lines : wrong) CHECK(lines == std::vector<std::string>());
  }
}

TEST_CASE("a group of one needs nobody") {
  const std::unique_ptr<RankGroup> rank = single_rank();
  CHECK(rank->size() == 1);
  const auto device = open_cpu_device(1).value();
  CHECK(test::run_rank_cases(*rank, *device) == std::vector<std::string>());
}

// What all ranks of a group of `size` get when rank r does acts[r].
std::vector<Status> results_of(
    const std::vector<std::function<Status(RankGroup&, Stream&)>>& acts) {
  std::vector<Status> results(acts.size());
  on_each(thread_ranks(static_cast<int>(acts.size())), [&](RankGroup& ranks, Device& device) {
    const auto stream = device.new_stream("rank");
    const auto rank = static_cast<size_t>(ranks.rank());
    results[rank] = acts[rank](ranks, *stream);
  });
  return results;
}

TEST_CASE("ranks that make different calls are told which") {
  std::vector<std::byte> memory(1024);
  std::byte* const data = memory.data();
  const auto gather = [&](size_t bytes) {
    return [=](RankGroup& ranks, Stream& stream) {
      std::vector<std::byte> all(bytes * static_cast<size_t>(ranks.size()));
      return ranks.all_gather(stream, data, all.data(), bytes);
    };
  };
  const auto send = [&](int to) {
    return [=](RankGroup& ranks, Stream& stream) { return ranks.send(stream, data, 8, to); };
  };
  const auto receive = [&](size_t bytes, int from) {
    return [=](RankGroup& ranks, Stream& stream) {
      std::vector<std::byte> own(bytes);
      return ranks.receive(stream, own.data(), bytes, from);
    };
  };
  const auto broadcast = [&](int root) {
    return [=](RankGroup& ranks, Stream& stream) {
      std::vector<std::byte> own(8);
      return ranks.broadcast(stream, own.data(), 8, root);
    };
  };
  using Acts = std::vector<std::function<Status(RankGroup&, Stream&)>>;
  for (const Acts& acts : {Acts{gather(8), gather(16)}, Acts{gather(8), broadcast(0)},
                           Acts{broadcast(0), broadcast(1)}, Acts{send(1), send(0)},
                           Acts{receive(8, 1), receive(8, 0)}, Acts{send(1), receive(16, 0)},
                           Acts{send(1), gather(8)}, Acts{send(1), receive(8, 2), receive(8, 1)}}) {
    for (const Status& status : results_of(acts)) {
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK_THAT(std::string(status.message()), Catch::Contains("rank 1: "));
    }
  }
}

TEST_CASE("a rank that leaves ends the calls of the others, those to come included") {
  const auto gathers = [](int count) {
    return [count](RankGroup& ranks, Stream& stream) {
      std::byte own{};
      std::vector<std::byte> all(static_cast<size_t>(ranks.size()));
      for (int i = 0; i < count; ++i) {
        SPILLWAY_RETURN_IF_ERROR(ranks.all_gather(stream, &own, all.data(), 1));
      }
      return Status();
    };
  };
  const std::vector<Status> results = results_of({gathers(50), gathers(20), gathers(50)});
  CHECK(results[1].ok());
  for (const size_t rank : {0, 2}) {
    CHECK(results[rank].code() == Code::kDeviceLost);
    CHECK_THAT(std::string(results[rank].message()), Catch::Contains("is gone"));
  }
}

}  // namespace
}  // namespace spillway::thread_ranks_test
