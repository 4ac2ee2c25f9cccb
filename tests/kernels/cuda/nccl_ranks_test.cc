// Ranks that are GPUs, on emulated ones and a fake of NCCL.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <thread>
#include <vector>

#include "kernels/ranks/gpu_ranks.h"
#include "kernels/ranks/thread_ranks.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/rank_cases.h"

namespace spillway::nccl_ranks_test {
namespace {

constexpr int kGpus[] = {0, 1};

TEST_CASE("GPUs of one process give each other what they are asked for") {
  {
    std::vector<std::unique_ptr<RankGroup>> ranks = gpu_ranks(kGpus).value();
    REQUIRE(ranks.size() == 2);
    std::vector<std::string> wrong[2];
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto device = open_cuda_device(rank).value();
        wrong[rank] = test::run_rank_cases(*ranks[static_cast<size_t>(rank)], *device);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<std::string>& lines : wrong) CHECK(lines == std::vector<std::string>());
    CHECK(fake_nccl::communicators() == 2);
  }
  CHECK(fake_nccl::communicators() == 0);
}

TEST_CASE("GPUs of several processes find each other through these") {
  std::vector<std::unique_ptr<RankGroup>> processes = thread_ranks(2);
  std::vector<std::string> wrong[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto host = open_cpu_device(1).value();
      const auto stream = host->new_stream("host");
      const auto device = open_cuda_device(1 - rank).value();  // Ranks are those of the processes.
      const auto group = gpu_rank(*processes[static_cast<size_t>(rank)], *stream, 1 - rank).value();
      if (group->rank() != rank || group->size() != 2) wrong[rank].emplace_back("another rank");
      const std::vector<std::string> lines = test::run_rank_cases(*group, *device);
      wrong[rank].insert(wrong[rank].end(), lines.begin(), lines.end());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<std::string>& lines : wrong) CHECK(lines == std::vector<std::string>());
  CHECK(fake_nccl::communicators() == 0);
}

TEST_CASE("no GPU can be two ranks") {
  const std::vector<int> twice = {1, 1};
  CHECK(gpu_ranks(twice).status().code() == Code::kInvalidArgument);
  CHECK(gpu_ranks(std::span<const int>()).status().code() == Code::kInvalidArgument);
}

TEST_CASE("ranks that make different calls get an error, and go on getting it") {
  std::vector<std::unique_ptr<RankGroup>> ranks = gpu_ranks(kGpus).value();
  const auto first = open_cuda_device(0).value(), second = open_cuda_device(1).value();
  const auto of_first = first->new_stream("rank 0"), of_second = second->new_stream("rank 1");
  Buffer a = first->allocate(Memory::kDevice, 256).value();
  Buffer b = second->allocate(Memory::kDevice, 256).value();
  CHECK(ranks[0]->all_gather(*of_first, a.data(), a.data(), 16).ok());
  const Status other = ranks[1]->all_gather(*of_second, b.data(), b.data(), 32);
  CHECK(other.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(other.message()), Catch::Contains("rank 1 of 2: all_gather"));
  CHECK(ranks[1]->all_gather(*of_second, b.data(), b.data(), 16).code() == Code::kInvalidArgument);
  CHECK(ranks[0]->all_gather(*of_first, a.data(), a.data(), 16).code() == Code::kDeviceLost);
}

// NCCL would hang; the emulation ends the program.
TEST_CASE("a call that another rank never makes is a failure of the test") {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(1);
    fake_nccl::set_patience(0.1);
    std::vector<std::unique_ptr<RankGroup>> ranks = gpu_ranks(kGpus).value();
    const auto device = open_cuda_device(0).value();
    const auto stream = device->new_stream("rank 0");
    Buffer data = device->allocate(Memory::kDevice, 256).value();
    (void)ranks[0]->receive(*stream, data.data(), 8, 1);
    (void)stream->record().wait();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
}

}  // namespace
}  // namespace spillway::nccl_ranks_test
