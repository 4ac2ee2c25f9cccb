#include "server/stages/roll_call.h"

#include <catch2/catch.hpp>
#include <thread>

#include "kernels/base/processors.h"
#include "kernels/ranks/thread_mail.h"
#include "server/stages/stage_notes.h"

namespace spillway::roll_call_test {
namespace {

// What each rank has of the roll when they are these.
std::vector<Result<Roll>> call(const std::vector<RankSelf>& selves, int64_t stages) {
  const auto mail = thread_mail(static_cast<int>(selves.size()));
  std::vector<Result<Roll>> rolls(selves.size(), Result<Roll>(Roll()));
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < selves.size(); ++i) {
    ranks.emplace_back([&, i] { rolls[i] = call_roll(*mail[i], selves[i], stages); });
  }
  for (std::thread& rank : ranks) rank.join();
  return rolls;
}

RankSelf on(const std::string& host) {
  RankSelf self;
  self.host = host;
  self.flags = "--stages 2";
  self.cores = count_cores(allowed_processors());
  self.processors = allowed_processors();
  return self;
}

TEST_CASE("all ranks know all others") {
  for (const auto& roll : call({on("a"), on("b"), on("a")}, 3)) {
    REQUIRE(roll.ok());
    CHECK(roll->name(1) == "rank 1 (b)");
    CHECK(roll->on_host_of(0) == 2);
    CHECK(roll->on_host_of(1) == 1);
    CHECK(roll->ranks[2].processors == allowed_processors());
    CHECK(roll->place_on_host(2) == 1);
    CHECK(roll->place_on_host(1) == 0);
  }
}

TEST_CASE("ranks that do not fit together all learn why") {
  const auto refused = [](const std::vector<RankSelf>& selves, int64_t stages) {
    std::string message;
    for (const auto& roll : call(selves, stages)) {
      REQUIRE_FALSE(roll.ok());
      CHECK(roll.status().code() == Code::kInvalidArgument);
      message = roll.status().message();
    }
    return message;
  };
  CHECK(refused({on("a")}, 2).find("mpirun -np 2") != std::string::npos);
  CHECK(refused({on("a"), on("b"), on("c")}, 2).find("there are 3 processes") != std::string::npos);
  RankSelf old = on("b");
  old.version = "0.0.9";
  CHECK(refused({on("a"), old}, 2).find("rank 1 (b) is Spillway 0.0.9") == 0);
  RankSelf other = on("b");
  other.flags = "--stages 2 --format q4";
  CHECK(refused({on("a"), other}, 2) ==
        "rank 1 (b) was given other flags: --format q4; rank 0 (a) has none of these");
  RankSelf first = on("a");
  first.flags = "--stages 2 --format q8 --max-model-len 512";
  CHECK(refused({first, other}, 2) ==
        "rank 1 (b) was given other flags: --format q4; rank 0 (a) has --format q8 "
        "--max-model-len 512");
}

TEST_CASE("a rank whose note is another version's is told apart, and all learn it") {
  const auto mail = thread_mail(3);
  std::vector<std::thread> others;
  std::vector<Status> told(3);
  for (const int rank : {1, 2}) {
    others.emplace_back([&, rank] {
      RankMail& own = *mail[static_cast<size_t>(rank)];
      if (rank == 1) {
        ByteWriter short_note;
        short_note.add_text("0.0.1");
        post_note(own, 0, {}, std::move(short_note));
        told[1] = receive_note(own).status();
      } else {
        told[2] = call_roll(own, on("c"), 3).status();
      }
    });
  }
  const Status status = call_roll(*mail[0], on("a"), 3).status();
  for (std::thread& other : others) other.join();
  CHECK(status.message().find("rank 1 is Spillway 0.0.1") == 0);
  CHECK(told[1].message() == status.message());
  CHECK(told[2].message() == status.message());
}

TEST_CASE("flags that must be alike are in the text, others are not") {
  EngineFlags flags;
  flags.stages = 2;
  const std::string plain = shared_flags(flags);
  EngineFlags same = flags;
  same.host_memory_bytes = 5;
  same.threads = 3;
  same.seed = 9;
  CHECK(shared_flags(same) == plain);
  const auto differs = [&](const auto& change) {
    EngineFlags other = flags;
    change(other);
    return shared_flags(other) != plain;
  };
  CHECK(differs([](EngineFlags& f) { f.format = Format::kQ4; }));
  CHECK(differs([](EngineFlags& f) { f.kv_format = Format::kF32; }));
  CHECK(differs([](EngineFlags& f) { f.quantized_compute = "float"; }));
  CHECK(differs([](EngineFlags& f) { f.max_model_len = 100; }));
  CHECK(differs([](EngineFlags& f) { f.stages = 3; }));
  CHECK(differs([](EngineFlags& f) { f.ranks = 2; }));
  CHECK(differs([](EngineFlags& f) { f.gpus = {0, 1}; }));
  CHECK(differs([](EngineFlags& f) { f.stage_layers = {1, 2}; }));
  CHECK(differs([](EngineFlags& f) { f.dummy_weights = true; }));
}

TEST_CASE("ranks of one host share its cores and its memory, where no flag says how many") {
  Roll roll;
  roll.ranks = {on("a"), on("b"), on("a")};
  EngineFlags flags;
  const int64_t cores = count_cores(allowed_processors());
  REQUIRE(take_share(roll, 0, &flags).ok());
  CHECK(flags.threads == std::max<int64_t>(1, cores / 2));
  CHECK(flags.gpu == 0);
  CHECK(flags.host_memory_bytes.has_value());
  EngineFlags alone;
  REQUIRE(take_share(roll, 1, &alone).ok());
  CHECK(alone.threads == cores);
  CHECK_FALSE(alone.host_memory_bytes.has_value());
  EngineFlags asked;
  asked.threads = 7;
  asked.host_memory_bytes = 1000;
  REQUIRE(take_share(roll, 0, &asked).ok());
  CHECK(asked.threads == 7);
  CHECK(asked.host_memory_bytes == 1000u);
  EngineFlags second;
  second.device = "cuda";
  REQUIRE(take_share(roll, 2, &second).ok());
  CHECK(second.gpu == 1);
  EngineFlags several = second;
  several.threads = 8;
  several.gpu = 0;
  several.ranks = 4;
  REQUIRE(take_share(roll, 2, &several).ok());
  CHECK(several.gpu == 4);
  EngineFlags named;
  named.threads = 8;
  named.gpus = {0, 1, 4, 5};
  EngineFlags others = named, all = named;
  REQUIRE(take_share(roll, 2, &others).ok());
  CHECK(others.gpus == std::vector<int64_t>{4, 5});
  REQUIRE(take_share(roll, 1, &all).ok());
  CHECK(all.gpus == named.gpus);
  named.gpus = {0, 1, 2};
  CHECK(take_share(roll, 0, &named).message() ==
        "--gpus names 3 GPUs for the 2 stages on a; name as many for each");
  CHECK(flags.host_memory_is_free);
  CHECK_FALSE(asked.host_memory_is_free);
  CHECK(binding_warning(roll, {}).empty());
  roll.ranks[0].cores = 1;
  roll.ranks[0].bound = true;
  CHECK(binding_warning(roll, {}).find("rank 0 (a) computes with one thread") != std::string::npos);
  CHECK(binding_warning(roll, asked).empty());
  EngineFlags bound;
  REQUIRE(take_share(roll, 0, &bound).ok());
  CHECK(bound.threads == 1);
}

TEST_CASE("stages of one host that have too few of its cores are told how many there are") {
  Roll roll;
  roll.ranks = {on("a"), on("b"), on("a")};
  const int64_t cores = count_cores(allowed_processors());
  EngineFlags flags;
  flags.ranks = cores + 1;
  const std::string error(take_share(roll, 2, &flags).message());
  CHECK(error.find(std::to_string(cores + 1) +
                   " ranks need a thread each, and this process has ") == 0);
  CHECK(error.find(" of the " + std::to_string(cores) +
                   " cores of a, which 2 stages share; start fewer there, or say --threads " +
                   std::to_string(cores + 1)) != std::string::npos);
  EngineFlags alone = flags;
  alone.threads = 0;
  CHECK(take_share(roll, 1, &alone).message().find(" cores of b; start fewer there") !=
        std::string::npos);
  for (RankSelf& one : roll.ranks) one.cores = 4;
  EngineFlags some;
  CHECK(crowding_warning(roll, some).empty());
  some.threads = 2;
  CHECK(crowding_warning(roll, some).empty());
  some.threads = 3;
  CHECK(crowding_warning(roll, some)
            .find("warning: 2 stages with --threads 3 each share the 4 cores of a") == 0);
}

}  // namespace
}  // namespace spillway::roll_call_test
