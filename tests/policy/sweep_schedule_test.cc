#include "policy/sweep_schedule.h"

#include <catch2/catch.hpp>
#include <random>

namespace spillway::sweep_schedule_test {
namespace {

struct Sweep {
  int64_t decoding = 0, prompts = 0, unfinished = 0, prompt_tokens = 0;
  double prompt_rows = 0, prompt_pairs = 0, cached_rows = 0;
  friend bool operator==(const Sweep&, const Sweep&) = default;
};

// The definition: one sequence and one sweep at a time.
std::vector<Sweep> one_by_one(const std::vector<RequestGroup>& groups,
                              const std::vector<KvReservation>& reservations,
                              const SweepLimits& limits) {
  struct Sequence {
    size_t group;
    int64_t positions, left;
    int64_t done = -1;  // Of a prompt in chunks; -1: none, or it has ended.
  };
  std::vector<Sequence> waiting, running;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int64_t i = 0; i < groups[g].count; ++i) {
      waiting.push_back({g, groups[g].prompt_tokens, groups[g].new_tokens});
    }
  }
  // Means over layers without a window and with one
  const auto mean = [](const KvReservation& kv, int64_t full, int64_t windowed) {
    return static_cast<double>(full) * (1 - kv.window_share) +
           static_cast<double>(windowed) * kv.window_share;
  };
  const auto pairs = [&](const KvReservation& kv, int64_t position) {
    return mean(kv, position + 1, std::min(position + 1, kv.window));
  };
  std::vector<Sweep> sweeps;
  size_t next = 0;
  uint64_t reserved = 0;
  int64_t owed = 0;  // Where nothing runs, nothing is gained by waiting.
  while (next < waiting.size() || !running.empty()) {
    Sweep sweep;
    const auto in_chunks = [](const Sequence& sequence) { return sequence.done >= 0; };
    for (Sequence& sequence : running) {
      if (in_chunks(sequence)) continue;
      const KvReservation& kv = reservations[sequence.group];
      const int64_t rows = sequence.positions++;
      ++sweep.decoding;
      sweep.cached_rows +=
          mean(kv, std::min(rows, kv.rows_max) + 1, std::min(rows, kv.window_rows_max) + 1);
    }
    if (running.empty()) owed = 0;
    SweepContents contents{.owed = owed};
    const auto chunk = [&](Sequence& sequence, int64_t tokens) {
      const int64_t prompt = groups[sequence.group].prompt_tokens, done = sequence.done;
      contents.prompt_tokens += tokens;
      sweep.prompt_tokens += tokens;
      const KvReservation& kv = reservations[sequence.group];
      sweep.prompt_rows += static_cast<double>(tokens);
      for (int64_t i = 0; i < tokens; ++i) sweep.prompt_pairs += pairs(kv, done + i);
      sweep.cached_rows += mean(kv, done, std::min(done, kv.window - 1));
      sequence.done += tokens;
      if (sequence.done < prompt) return ++sweep.unfinished;
      sequence.done = -1;
      sequence.positions = prompt;
      return ++sweep.prompts;
    };
    const auto next_chunk = [&](const Sequence& sequence, int64_t taken) {
      const int64_t prompt = groups[sequence.group].prompt_tokens;
      return chunk_tokens(sequence.done, prompt - sequence.done, taken, limits);
    };
    for (Sequence& sequence : running) {
      if (!in_chunks(sequence)) continue;
      const int64_t prompt = groups[sequence.group].prompt_tokens;
      const int64_t tokens = next_chunk(sequence, owed);
      if (sequence.done + tokens == prompt) {
        chunk(sequence, tokens);
      } else {
        contents.prompt_in_chunks = prompt;
      }
    }
    while (next < waiting.size()) {
      const RequestGroup& group = groups[waiting[next].group];
      const KvReservation& kv = reservations[waiting[next].group];
      contents.sequences = static_cast<int64_t>(running.size());
      contents.kv_bytes = reserved;
      const AdmittedRequests joins = requests_admitted(
          {1, group.prompt_tokens, kv.bytes, may_be_cut(kv.keeps_all_rows, limits)}, contents,
          limits);
      if (joins.count() == 0) break;
      reserved += kv.bytes;
      running.push_back(waiting[next++]);
      if (joins.in_chunks) {
        running.back().done = 0;
        contents.prompt_in_chunks = group.prompt_tokens;
        continue;
      }
      contents.prompt_tokens += group.prompt_tokens;
      ++sweep.prompts;
      sweep.prompt_tokens += group.prompt_tokens;
      sweep.prompt_rows += mean(kv, std::min(group.prompt_tokens, kv.rows_max),
                                std::min(group.prompt_tokens, kv.window_rows_max));
      for (int64_t i = 0; i < group.prompt_tokens; ++i) sweep.prompt_pairs += pairs(kv, i);
    }
    for (Sequence& sequence : running) {
      if (!in_chunks(sequence)) continue;
      chunk(sequence, next_chunk(sequence, owed + contents.prompt_tokens));
    }
    owed = owed_after(contents, limits);
    std::erase_if(running, [&](Sequence& sequence) {
      if (in_chunks(sequence)) return false;
      if (--sequence.left > 0) return false;
      reserved -= reservations[sequence.group].bytes;
      return true;
    });
    sweeps.push_back(sweep);
  }
  return sweeps;
}

std::vector<Sweep> unfolded(const std::vector<PlannedSweeps>& planned) {
  std::vector<Sweep> sweeps;
  for (const PlannedSweeps& p : planned) {
    const SweepWork& work = p.work;
    for (int64_t i = 0; i < p.count; ++i) {
      sweeps.push_back({work.decoding, work.prompts, work.prompts_unfinished, work.prompt_tokens,
                        work.prompt_rows, work.prompt_pairs,
                        work.cached_rows + p.cached_rows_step * static_cast<double>(i)});
    }
  }
  return sweeps;
}

TEST_CASE("a block is prefilled, then decodes") {
  const std::vector<RequestGroup> groups = {{100, 5, 4}};
  const auto sweeps = plan_sweeps(groups, std::vector<KvReservation>{{10, 104}},
                                  {.block_sequences = 8, .prefill_tokens = 1000, .kv_bytes = 40});
  REQUIRE(sweeps.size() == 2);
  CHECK(sweeps[0].work.prompts == 4);
  CHECK(sweeps[0].work.prompt_tokens == 400);
  CHECK(sweeps[0].work.decoding == 0);
  CHECK(sweeps[1].count == 4);
  CHECK(sweeps[1].work.decoding == 4);
  CHECK(sweeps[1].work.cached_rows == 4 * 101);
  CHECK(sweeps[1].mean_cached_rows() == 4 * 102.5);
}

TEST_CASE("with a target prompts are spread over the sweeps, and sequences end one by one") {
  const std::vector<RequestGroup> groups = {{256, 64, 318}};
  const auto sweeps = plan_sweeps(
      groups, std::vector<KvReservation>{{.bytes = 1, .rows_max = 320, .keeps_all_rows = true}},
      {.block_sequences = 106, .prefill_tokens = 8192, .prefill_target = 400, .kv_bytes = 1000});
  int64_t most = 0, tokens = 0, prompts = 0, decoded = 0;
  for (const PlannedSweeps& one : sweeps) {
    most = std::max(most, one.work.prompt_tokens);
    tokens += one.work.prompt_tokens;
    prompts += one.work.prompts;
    decoded += one.count * one.work.decoding;
  }
  CHECK(most <= 400 + 64);
  CHECK(tokens == 318 * 256);
  CHECK(prompts == 318);
  CHECK(decoded == 318 * 63);
}

TEST_CASE("planned sweeps are those of sequences taken one by one") {
  std::mt19937_64 random(7);
  const auto number = [&](int64_t most) {
    return static_cast<int64_t>(1 + random() % static_cast<uint64_t>(most));
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<RequestGroup> groups;
    std::vector<KvReservation> reservations;
    for (int64_t g = number(4); g > 0; --g) {
      groups.push_back({number(40), number(12), number(9)});
      const int64_t positions = groups.back().prompt_tokens + groups.back().new_tokens;
      reservations.push_back(
          {static_cast<uint64_t>(number(50)), round % 2 == 0 ? positions : number(positions)});
      if (round % 3 != 0) continue;
      reservations.back().window = 1 + number(20);
      reservations.back().window_rows_max =
          std::min(reservations.back().window - 1, reservations.back().rows_max);
      reservations.back().window_share = static_cast<double>(number(4)) / 4;
    }
    SweepLimits limits{.block_sequences = number(12),
                       .prefill_tokens = number(100),
                       .kv_bytes = static_cast<uint64_t>(50 + number(300))};
    if (round % 5 > 1) limits.prefill_target = number(limits.prefill_tokens);
    for (KvReservation& kv : reservations) {
      kv.keeps_all_rows = kv.window == 0 && round % 2 == 0 && number(4) > 1;
    }
    INFO("round " << round);
    CHECK(unfolded(plan_sweeps(groups, reservations, limits)) ==
          one_by_one(groups, reservations, limits));
  }
}

}  // namespace
}  // namespace spillway::sweep_schedule_test
