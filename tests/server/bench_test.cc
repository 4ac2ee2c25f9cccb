// What `bench` prints, from numbers made up here.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "server/commands/bench_report.h"
#include "server/commands/bench_run.h"

namespace spillway {
namespace {

using nlohmann::json;

// A prefill of 4 s and two decodes of 2 s, weights three quarters on disk.
BenchResult made_up() {
  BenchResult r;
  r.flags = {.prompt_tokens = 100, .new_tokens = 3, .sequences = 10};
  r.model = "opt-test";
  r.device = "CPU, 2 threads";
  r.plan.format = DType::kQ4;
  r.plan.kv_format = DType::kBF16;
  r.plan.weights = {1000, 0, 3000};
  r.plan.kv = {500, 0, 0};
  r.plan.activations = {0, 200, 100};
  r.plan.block_sequences = 10;
  r.plan.budget_bytes = uint64_t{8} << 30;
  r.peak_host_bytes = 123456;
  r.prefill_seconds = 4.5;
  r.decode_seconds = 4.5;
  r.total_seconds = 9;
  r.generated = 30;
  r.sweeps = {{.tokens = 1000,
               .prompts = 10,
               .seconds = 4,
               .disk_read_bytes = 3000,
               .disk_write_bytes = 7,
               .weights_wait_seconds = 1,
               .activations_wait_seconds = 0.5}};
  for (int i = 0; i < 2; ++i) {
    r.sweeps.push_back({.tokens = 10,
                        .seconds = 2,
                        .disk_read_bytes = 3000,
                        .weights_wait_seconds = 0.75,
                        .kv_wait_seconds = 0.25,
                        .staging_wait_seconds = 0.125});
  }
  r.before.rates.memory_bytes_per_second = 2e10;
  r.before.rates.disk_read_bytes_per_second = 1e9;
  r.before.rates.matrix = {{10, 64, 32, 9e10}};
  r.before.matrix = {{8e10, 9e10}};
  r.before.copies = {.to_device = 1, .to_host = 2, .both = 3};
  r.after = r.before;
  r.after.rates.disk_read_bytes_per_second = 2e9;
  r.after.rates.matrix = {{10, 64, 32, 11e10}};
  r.after.matrix = {{11e10, 10e10}};
  r.ceilings = mean_of(r.before, r.after);
  r.bound = {.resource = "disk read", .seconds = 8.1};
  r.prefill_bound = {.resource = "compute", .seconds = 3};
  r.decode_bound = {.resource = "disk read", .seconds = 3.6};
  return r;
}

TEST_CASE("a block of as many sequences as fit is prefilled in sweeps as large as any") {
  CHECK(bench_prefill_tokens({.prompt_tokens = 512, .sequences = 0}, std::nullopt) == 16384);
  CHECK(bench_prefill_tokens({.prompt_tokens = 512, .sequences = 0}, 4) == 2048);
  CHECK(bench_prefill_tokens({.prompt_tokens = 512, .sequences = 8}, std::nullopt) == 4096);
  CHECK(bench_prefill_tokens({.prompt_tokens = 512, .sequences = 8}, 4) == 4096);
  CHECK(bench_prefill_tokens({.prompt_tokens = 512, .sequences = 64}, std::nullopt) == 16384);
}

TEST_CASE("memory's ceiling is what it gave during the run, where that was measured") {
  BenchResult r = made_up();
  CHECK(ceilings_of_run(r).rates.memory_bytes_per_second == 2e10);
  CHECK(json::parse(bench_json(r))["hardware"]["during"].is_null());
  r.memory_during = {1e10, 4e10, 1e10};
  r.ceilings = ceilings_of_run(r);
  CHECK(r.ceilings.rates.memory_bytes_per_second == 2e10);
  CHECK(r.ceilings.rates.disk_read_bytes_per_second == 1.5e9);  // As before
  r.memory_during.push_back(4e10);
  r.ceilings = ceilings_of_run(r);
  const json hardware = json::parse(bench_json(r))["hardware"];
  CHECK(hardware["memory_bytes_per_second"] == 2.5e10);
  CHECK(hardware["during"]["memory_samples"] == 4);
  CHECK(hardware["during"]["memory_bytes_per_second_low"] == 1e10);
  CHECK(hardware["during"]["memory_bytes_per_second_high"] == 4e10);
  CHECK_THAT(bench_table(r), Catch::Contains("25.00 GB/s, between decode steps (20.00 before"));
}

TEST_CASE("bench --json has every field that INTERFACES names") {
  const json object = json::parse(bench_json(made_up()));
  for (const char* key : {"model",
                          "plan",
                          "prompt_tokens",
                          "new_tokens",
                          "sequences",
                          "prefill_seconds",
                          "decode_seconds",
                          "total_seconds",
                          "prefill_tokens_per_second",
                          "decode_tokens_per_second",
                          "tokens_per_second",
                          "peak_device_bytes",
                          "peak_host_bytes",
                          "disk_bytes_read",
                          "disk_bytes_written",
                          "bytes_by_tier",
                          "bound",
                          "efficiency",
                          "predicted_tokens_per_second",
                          "hardware",
                          "projected"}) {
    INFO(key);
    CHECK(object.contains(key));
  }
  CHECK(object["tokens_per_second"].get<double>() == Approx(30 / 9.0));
  CHECK(object["prefill_tokens_per_second"].get<double>() == Approx(1000 / 4.5));
  CHECK(object["decode_tokens_per_second"].get<double>() == Approx(20 / 4.5));
  CHECK(object["efficiency"].get<double>() == Approx(0.9));
  CHECK(object["decode_efficiency"].get<double>() == Approx(0.9));
  CHECK(object["prefill_efficiency"].get<double>() == Approx(0.75));
  CHECK(object["peak_host_bytes"] == 123456);
  CHECK(object["disk_bytes_read"] == 9000);
  CHECK(object["disk_bytes_written"] == 7);
  CHECK(object["bytes_by_tier"]["weights"] == json{{"device", 1000}, {"host", 0}, {"disk", 3000}});
  CHECK(object["bytes_by_tier"]["activations"]["disk"] == 100);
  CHECK(object["bound"]["resource"] == "disk read");
  CHECK(object["plan"]["weights"] == json{25, 0, 75});
  CHECK(object["plan"]["kv"] == json{100, 0, 0});
  CHECK(object["plan"]["activations"] == json{0, 67, 33});
  CHECK(object["plan"]["format"] == "q4");
  CHECK(object["hardware"]["disk_read_bytes_per_second"] == 1.5e9);
  CHECK(object["hardware"]["before"]["disk_read_bytes_per_second"] == 1e9);
  CHECK(object["hardware"]["after"]["disk_read_bytes_per_second"] == 2e9);
  CHECK(object["hardware"]["memory_bytes_per_second"] == 2e10);
  CHECK(object["hardware"]["both_directions_bytes_per_second"] == 3);
  CHECK(object["hardware"]["matrix"][0]["own_flops_per_second"] == 9.5e10);
  CHECK(object["hardware"]["matrix"][0]["library_flops_per_second"] == 9.5e10);
}

TEST_CASE("the ceilings of a run are the mean of both times") {
  const BenchResult r = made_up();
  CHECK(r.ceilings.rates.matrix[0].flops_per_second == 1e11);  // Of the better product each time
  CHECK(r.ceilings.rates.disk_write_bytes_per_second == 0);
  CHECK(r.ceilings.copies.to_host == 2);
  CHECK_FALSE(r.ceilings.of_own_file);
}

TEST_CASE("the disk's ceiling is that of the file which the run read, where it was measured") {
  BenchResult r = made_up();
  r.after.of_own_file = true;
  r.ceilings = mean_of(r.before, r.after);
  CHECK(r.ceilings.rates.disk_read_bytes_per_second == 2e9);
  CHECK_THAT(bench_table(r), Catch::Contains("disk read     2.00 GB/s, of the run's own file after "
                                             "it (1.00 before, of a new one)"));
  CHECK(json::parse(bench_json(r))["hardware"]["disk_read_of_own_file"] == true);
}

TEST_CASE("bench says where the time of its sweeps went") {
  const BenchResult result = made_up();
  const json object = json::parse(bench_json(result))["time_by_cause"];
  CHECK(object["prefill"]["sweeps"] == 1);
  CHECK(object["prefill"]["compute_seconds"].get<double>() == Approx(2.5));
  CHECK(object["prefill"]["activations_wait_seconds"].get<double>() == Approx(0.5));
  CHECK(object["decode"]["sweeps"] == 2);
  CHECK(object["decode"]["seconds"].get<double>() == Approx(4));
  CHECK(object["decode"]["weights_wait_seconds"].get<double>() == Approx(1.5));
  CHECK(object["decode"]["kv_wait_seconds"].get<double>() == Approx(0.5));
  CHECK(object["decode"]["staging_wait_seconds"].get<double>() == Approx(0.25));
  CHECK(object["decode"]["compute_seconds"].get<double>() == Approx(1.75));
  CHECK(object["decode"]["disk_bytes_read"] == 6000);
  CHECK(object["outside_sweeps_seconds"].get<double>() == Approx(1));

  const std::string table = bench_table(result);
  CHECK_THAT(table, Catch::Contains("waiting for weights            1.00       1.50"));
  CHECK_THAT(table, Catch::Contains("1 and 2 sweeps; 1.00 s outside of them"));
  CHECK_THAT(table, Catch::Contains("disk read     1.50 GB/s (1.00 before, 2.00 after)"));
  CHECK_THAT(table, !Catch::Contains("disk write"));
}

TEST_CASE("shares of tiers are whole per cent that add up to 100") {
  CHECK(percent_by_tier({0, 0, 0}) == TierPercent{100, 0, 0});
  CHECK(percent_by_tier({0, 0, 5}) == TierPercent{0, 0, 100});
  CHECK(percent_by_tier({1, 1, 1}) == TierPercent{33, 34, 33});
  CHECK(percent_by_tier({995, 5, 0}) == TierPercent{100, 0, 0});
  CHECK(percent_by_tier({uint64_t{1} << 62, uint64_t{1} << 62, uint64_t{1} << 63}) ==
        TierPercent{25, 25, 50});
}

TEST_CASE("the warm-up is short for a small model, and shorter for a large one or a disk") {
  ModelShape small;
  small.layers = 2;
  small.hidden = small.embedding = 64;
  small.heads = small.kv_heads = 1;
  small.head_size = 64;
  small.mlp = 256;
  small.vocabulary = 1000;
  small.positions = 2048;
  const BenchFlags flags{.prompt_tokens = 512, .new_tokens = 32, .sequences = 300};
  const BenchFlags warm = warm_up_of(flags, small, false);
  CHECK(warm.sequences == 300);
  CHECK(warm.prompt_tokens == 16);
  CHECK(warm.new_tokens == 2);
  CHECK(warm_up_of(flags, small, true).new_tokens == 1);
  CHECK(warm_up_of({.prompt_tokens = 4, .new_tokens = 1, .sequences = 2}, small, false)
            .prompt_tokens == 4);

  ModelShape large = small;  // 30e9 weights: 60 GFLOP a token
  large.layers = 48;
  large.hidden = large.embedding = large.head_size = 7168;
  large.mlp = 4 * large.hidden;
  const BenchFlags short_run = warm_up_of(flags, large, true);
  CHECK(short_run.sequences == 17);
  CHECK(short_run.prompt_tokens == 1);
}

}  // namespace
}  // namespace spillway
