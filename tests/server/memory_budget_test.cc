// What is left of the host's memory for the KV cache.
#include "server/memory_budget.h"

#include <catch2/catch.hpp>

namespace spillway {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

KvBudgetRequest request(uint64_t budget_bytes) {
  return {.budget = {budget_bytes, true},
          .weight_bytes = 2 * kGiB,
          .buffer_bytes = kGiB / 4,
          .longest_sequence_bytes = kGiB / 2,
          .block_sequences = 4};
}

TEST_CASE("the cache takes what the block can use, and no more than is left") {
  CHECK(kv_budget(request(100 * kGiB)).value() == 2 * kGiB);
  const uint64_t tight = kv_budget(request(4 * kGiB)).value();
  CHECK(tight == 4 * kGiB - (2 * kGiB + kGiB / 4 + kGiB / 4));
}

TEST_CASE("a budget without room for one sequence is infeasible, and the message says what fits") {
  const Status status = kv_budget(request(2 * kGiB)).status();
  CHECK(status.code() == Code::kInfeasible);
  const std::string message(status.message());
  INFO(message);
  CHECK(message.find("1.00 GiB short") != std::string::npos);
  // 2 + 0.25 + 0.25 + 0.5 GiB, rounded up to the next MiB: what it names really fits.
  CHECK(message.find("--host-memory 3073MiB") != std::string::npos);
  CHECK(kv_budget(request(3073 * (uint64_t{1} << 20))).ok());
  CHECK(kv_budget(request(3 * kGiB)).ok());
  CHECK_FALSE(kv_budget(request(3 * kGiB - 1)).ok());
}

TEST_CASE("without a flag the budget is what is available, less a reserve") {
  const MemoryBudget free = host_budget(std::nullopt);
  CHECK_FALSE(free.from_flag);
  CHECK(free.bytes > 0);
  const MemoryBudget flag = host_budget(5 * kGiB);
  CHECK(flag.from_flag);
  CHECK(flag.bytes == 5 * kGiB);
}

}  // namespace
}  // namespace spillway
