// What `bench` prints, from numbers made up here.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/base/linear_shapes.h"
#include "scheduler/planning/plan_json.h"
#include "server/cli/bench/bench_ceilings.h"
#include "server/cli/bench/bench_check.h"
#include "server/cli/bench/bench_report.h"
#include "server/cli/bench/bench_run.h"
#include "tests/support/tiny_shape.h"

namespace spillway::cli_bench_test {
namespace {

using nlohmann::json;

// Peaks of f32, bf16 and int8 in GFLOP/s.
Peaks peaks_of(double f32, double bf16, double int8) {
  return {{f32 * 1e9, "FMA"}, {bf16 * 1e9, "DPBF16"}, {int8 * 1e9, "DPBUSD"}};
}

// A prefill of 4 s and two decodes of 2 s, weights three quarters on disk.
BenchResult made_up() {
  BenchResult r;
  r.flags = {.prompt_tokens = 100, .new_tokens = 3, .sequences = 10};
  r.model = "opt-test";
  r.device = "CPU, 2 threads";
  r.plan.format = Format::kQ4;
  r.plan.engine.kv_format = Format::kBF16;
  r.plan.weights = {1000, 0, 3000};
  r.plan.kv = {500, 0, 0};
  r.plan.activations = {0, 200, 100};
  r.plan.scheduling.block_sequences_max = 10;
  r.plan.budget_bytes = uint64_t{8} << 30;
  r.peak_host_bytes = 123456;
  r.prefill_seconds = 4.5;
  r.decode_seconds = 4.5;
  r.total_seconds = 9;
  r.generated = 30;
  LoggedSweep prefill{{.prompts = 10, .prompt_tokens = 1000}};
  prefill.disk_read_bytes = 3000;
  prefill.disk_write_bytes = 7;
  prefill.seconds = 4;
  prefill.weights_wait_seconds = 1;
  prefill.activations_wait_seconds = 0.5;
  LoggedSweep decode{{.decoding = 10}};
  decode.disk_read_bytes = 3000;
  decode.seconds = 2;
  decode.weights_wait_seconds = 0.75;
  decode.kv_wait_seconds = 0.25;
  decode.staging_wait_seconds = 0.125;
  r.sweeps = {prefill, decode, decode};
  r.before.rates.memory = 2e10;
  r.before.rates.disk_read = 1e9;
  r.before.rates.matrix = {{10, 64, 32, 9e10}};
  r.before.matrix = {{8e10, 9e10}};
  r.before.rates.prompt_attention = 3e10;
  r.before.rates.cache = 1.5e10;
  r.before.peaks = peaks_of(100, 190, 400);
  r.before.copies = {.to_device = 1, .to_host = 2, .both = 3};
  r.after = r.before;
  r.after.rates.disk_read = 2e9;
  r.after.rates.matrix = {{10, 64, 32, 11e10}};
  r.after.matrix = {{11e10, 10e10}};
  r.after.peaks = peaks_of(90, 200, 380);
  r.ceilings = ceilings_of_run(r);
  r.total = {{.resource = Resource::kDiskRead, .seconds = 8.1, .seconds_any_schedule = 6.3},
             {.resource = Resource::kCompute, .seconds = 8.55}};
  r.prefill = {{.resource = Resource::kCompute, .seconds = 3},
               {.resource = Resource::kCompute, .seconds = 3.8}};
  r.decode = {{.resource = Resource::kDiskRead, .seconds = 3.6},
              {.resource = Resource::kDiskRead, .seconds = 3.7}};
  return r;
}

TEST_CASE("a block of as many sequences as fit is prefilled in sweeps as large as any") {
  CHECK(bench_prefill_tokens({.prompt_tokens = 512, .sequences = 0}, std::nullopt) == 16384);
  CHECK(bench_prefill_tokens({.prompt_tokens = 512, .sequences = 0}, 4) == 2048);
  CHECK(bench_prefill_tokens({.prompt_tokens = 512, .sequences = 8}, std::nullopt) == 4096);
  CHECK(bench_prefill_tokens({.prompt_tokens = 512, .sequences = 8}, 4) == 4096);
  CHECK(bench_prefill_tokens({.prompt_tokens = 512, .sequences = 64}, std::nullopt) == 16384);
}

TEST_CASE("memory's ceiling is the best that it gave before, during or after the run") {
  BenchResult r = made_up();
  CHECK(ceilings_of_run(r).rates.memory == 2e10);
  CHECK(json::parse(bench_json(r))["hardware"]["during"].is_null());
  r.during.memory = {1e10, 1.5e10};
  CHECK(ceilings_of_run(r).rates.memory == 2e10);
  r.during.memory = {1e10, 2.5e10, 1.5e10};
  r.ceilings = ceilings_of_run(r);
  const json hardware = json::parse(bench_json(r))["hardware"];
  CHECK(hardware["memory_bytes_per_second"] == 2.5e10);
  CHECK(hardware["during"]["memory_samples"] == 3);
  CHECK(hardware["during"]["memory_bytes_per_second_low"] == 1e10);
  CHECK(hardware["during"]["memory_bytes_per_second_high"] == 2.5e10);
  CHECK_THAT(
      bench_table(r),
      Catch::Contains("25.00 GB/s (20.00 before, 10.00 to 25.00 between sweeps, 20.00 after"));
}

TEST_CASE("what ceilings are measured with fits beside the plan") {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  Plan plan;
  plan.process_bytes = 256 * kMiB;
  plan.weights = {300 * kMiB, 100 * kMiB, uint64_t{1} << 40};
  plan.kv.device = 40 * kMiB;
  plan.activations.host = 4 * kMiB;
  plan.budget_bytes = 840 * kMiB;  // 140 MiB are left.
  CHECK(ceiling_bytes(plan) == 140 * kMiB);
  plan.shape.ranks = 2;
  CHECK(ceiling_bytes(plan) == 128 * kMiB);
  plan.shape.ranks = 1;
  plan.budget_bytes = 700 * kMiB - 1;
  CHECK(ceiling_bytes(plan) == 128 * kMiB);
  plan.budget_bytes = uint64_t{1} << 50;
  CHECK(ceiling_bytes(plan) >= 128 * kMiB);
  CHECK_THAT(caches_note(128 * kMiB), Catch::Contains("with 128 MiB, which the caches may hold"));
  CHECK(caches_note(bytes_past_caches(size_t{1} << 50)).empty());
}

TEST_CASE("products are held against the widest arithmetic that their weights allow") {
  BenchResult r = made_up();  // 4-bit weights, a cache in bf16
  CHECK(r.ceilings.products.operations_per_second == 4e11);
  CHECK(r.ceilings.products.instruction == "DPBUSD");
  CHECK(r.ceilings.attention.operations_per_second == 2e11);
  CHECK(r.ceilings.hardware().products == 4e11);
  CHECK(r.ceilings.hardware().prompt_attention == 2e11);
  CHECK(r.ceilings.hardware().memory == 2e10);
  CHECK(r.ceilings.hardware().cache == 0);
  const json hardware = json::parse(bench_json(r))["hardware"];
  CHECK(hardware["products_peak"] == json{{"operations_per_second", 4e11}, {"by", "DPBUSD"}});
  CHECK(hardware["peaks"]["bf16"]["operations_per_second"] == 2e11);
  CHECK(hardware["matrix"][0]["own_of_peak"].get<double>() == Approx(1.1e11 / 4e11));
  CHECK(hardware["attention_of_peak"].get<double>() == Approx(0.15));
  CHECK(hardware["decode_attention_of_memory"].get<double>() == Approx(0.75));

  r.plan.format = Format::kBF16;
  CHECK(ceilings_of_run(r).products.operations_per_second == 2e11);
  r.plan.format = Format::kF32;
  CHECK(ceilings_of_run(r).products.operations_per_second == 1e11);
  // A short time between sweeps in which the machine was faster counts, too.
  r.during.peaks = peaks_of(120, 0, 0);
  CHECK(ceilings_of_run(r).products.operations_per_second == 1.2e11);
}

TEST_CASE("8-bit products that reach half of the integer peak are half as fast as can be") {
  // A prefill of one layer's worth of rows, which takes exactly as long as its products need at
  // what our kernel was measured at: by itself it is as fast as can be, by the hardware it is not.
  BenchResult r = made_up();
  const ModelShape shape = test::make_shape(
      {.layers = 3, .hidden = 64, .heads = 1, .mlp = 256, .vocabulary = 1000, .positions = 0});
  CostedPlan plan;
  plan.shape = shape;
  plan.kv_row_bytes = 80;
  count_weight_bytes([](const LinearShape&) { return 1; }, &plan);
  Ceilings kernels;
  for (const LinearShape& linear : linear_shapes(shape)) {
    kernels.matrix.push_back({1, linear.outputs, linear.inputs, 2.28e11});  // 0.57 of 4e11
  }
  kernels.prompt_attention = kernels.memory = 1e15;
  r.ceilings.rates = kernels;
  const SweepWork sweep{.prompt_tokens = 500, .logit_rows = 500};
  const Bound own = bound_of(plan, false, kernels, std::span(&sweep, 1));
  const Bound hardware = bound_of(plan, false, r.ceilings.hardware(), std::span(&sweep, 1));
  CHECK(efficiency(own, own.seconds) == 1);
  CHECK(efficiency(hardware, own.seconds) == Approx(0.57));
}

LoggedSweep sweep_of(int64_t decoding, int64_t prompts, int64_t unfinished = 0) {
  LoggedSweep sweep;
  sweep.decoding = decoding;
  sweep.prompts = prompts;
  sweep.prompts_unfinished = unfinished;
  sweep.seconds = 2;
  return sweep;
}

TEST_CASE("the steady part lies between the first end and the last begin") {
  // Two begin, two more join, one ends; the last prompt is in the sixth sweep.
  const std::vector<LoggedSweep> sweeps = {sweep_of(0, 2), sweep_of(2, 0, 1), sweep_of(2, 2),
                                           sweep_of(3, 1), sweep_of(4, 0),    sweep_of(3, 1),
                                           sweep_of(3, 0), sweep_of(1, 0)};
  const std::vector<LoggedSweep> steady = steady_sweeps(sweeps);
  REQUIRE(steady.size() == 3);
  CHECK(steady[0].decoding == 3);
  CHECK(steady[0].prompts == 1);
  CHECK(generated_tokens(steady) == 4 + 4 + 4);
  CHECK(generated_tokens(sweeps) == 2 + 2 + 4 + 4 + 4 + 4 + 3 + 1);
  BenchResult r = made_up();
  r.flags.requests = 6;
  CHECK_THAT(bench_table(r), Catch::Contains("no sequence ended before the last prompt"));
  CHECK(json::parse(bench_json(r))["steady"].is_null());
  r.sweeps = sweeps;
  r.steady.hardware.seconds = 3;
  r.steady.hardware.seconds_any_schedule = 1.5;
  r.plan.scheduling.prefill_target = 40;
  r.prefill_target_at_end = 55;
  const std::string table = bench_table(r);
  CHECK_THAT(table, Catch::Contains("steady         6.00 s        2.0 tokens/s"));
  CHECK_THAT(table, Catch::Contains("bounds of the steady part by the hardware: 3.00 s"));
  CHECK_THAT(table, Catch::Contains("1.50 s for any schedule (0.25)"));
  CHECK_THAT(table, Catch::Contains("40 tokens a sweep planned, 55 at the end"));
  const json object = json::parse(bench_json(r));
  CHECK(object["steady"]["tokens_per_second"].get<double>() == Approx(2));
  CHECK(object["steady"]["efficiency_any_schedule"].get<double>() == Approx(0.25));
  CHECK(object["steady"]["time"]["sweeps"] == 3);
  CHECK(object["prefill_target"] == 40);
  CHECK(object["prefill_target_at_end"] == 55);
  // One block: its sequences end together, after the last prompt.
  CHECK(steady_sweeps(std::vector{sweep_of(0, 3), sweep_of(3, 0), sweep_of(3, 0)}).empty());
  CHECK(steady_sweeps({}).empty());
}

TEST_CASE("both bounds are shown by name, and neither for what it is not") {
  const BenchResult r = made_up();
  const std::string table = bench_table(r);
  CHECK_THAT(table, Catch::Contains("8.10 s sweep by sweep"));
  CHECK_THAT(table, Catch::Contains("(efficiency 0.90); 6.30 s for any schedule (0.70)"));
  CHECK_THAT(table, Catch::Contains("efficiency 0.90, of our kernels 0.95"));
  CHECK_THAT(table, !Catch::Contains("nvalid"));
  const json object = json::parse(bench_json(r));
  CHECK(object["bound"]["seconds"] == 8.1);
  CHECK(object["bound"]["seconds_any_schedule"] == 6.3);
  CHECK(object["bound_of_kernels"]["seconds"] == 8.55);
  CHECK(object["efficiency_any_schedule"].get<double>() == Approx(0.7));
  CHECK(object["efficiency_of_kernels"].get<double>() == Approx(0.95));
  CHECK(object["prefill_efficiency_of_kernels"].get<double>() == Approx(0.95));
  CHECK(object["beaten_bounds"] == json::array());
}

TEST_CASE("a bound that was beaten is invalid, in the table and for --check") {
  BenchResult r = made_up();
  CHECK(check_result(r).ok());
  r.prefill.hardware.seconds = 4 * 1.02 - 0.001;  // Noise
  CHECK(beaten_bounds(r).empty());
  r.prefill.hardware.seconds = 4 * 1.03;
  CHECK(beaten_bounds(r) == std::vector<std::string>{"prefill"});
  r.total.hardware.seconds = 9.5;
  CHECK(beaten_bounds(r) == std::vector<std::string>{"total", "prefill"});
  const std::string table = bench_table(r);
  CHECK_THAT(table, Catch::Contains("efficiency 1.03 (invalid)"));
  CHECK_THAT(table, Catch::Contains("INVALID: total took less than its bound allows"));
  CHECK(json::parse(bench_json(r))["beaten_bounds"] == json{"total", "prefill"});
  const Status status = check_result(r);
  CHECK(status.code() == Code::kIoError);  // Exit status 1
  CHECK_THAT(std::string(status.message()), Catch::Contains("the bound of prefill was beaten"));
}

TEST_CASE("gates hold kernels against the arithmetic that they use, or memory where it decides") {
  BenchResult r = made_up();
  r.flags.prompt_tokens = 512;
  r.plan.format = Format::kBF16;
  r.plan.matrix_layout = MatrixLayout::kPanels16;
  r.ceilings.peaks = peaks_of(100, 200, 400);
  r.ceilings.rates.memory = 2e10;
  r.ceilings.rates.cache = 1.7e10;           // 0.85
  r.ceilings.rates.prompt_attention = 5e10;  // 0.5
  // Two bytes a weight: at 2e10 bytes per second a row makes 2e10 operations per second, one of
  // 2 rows 4e10, one of 512 rows the peak of 2e11.
  r.ceilings.rates.matrix = {{2, 1024, 1024, 0}, {512, 1024, 1024, 0}, {512, 4096, 1024, 0}};
  r.ceilings.matrix = {{3.6e10, 9e11}, {1.9e11, 9e11}, {1.8e11, 9e11}};
  const auto value = [&](const std::string& name) {
    for (const Gate& gate : gates_of(r)) {
      if (gate.name == name) return gate.value;
    }
    return -1.0;
  };
  CHECK(value("products of 2 rows") == Approx(0.9));
  CHECK(value("products of 512 rows") == Approx(0.9));  // The slower shape
  CHECK(value("decode attention of memory's rate") == Approx(0.85));
  CHECK(value("prompt attention of the f32 peak") == Approx(0.5));
  CHECK(check_result(r).ok());
  r.ceilings.rates.cache = 1.5e10;
  CHECK_THAT(std::string(check_result(r).message()),
             Catch::Contains("decode attention of memory's rate: 0.75, at least 0.80"));
  r.flags.check = true;
  CHECK_THAT(bench_table(r), Catch::Contains("MISSED decode attention of memory's rate: 0.75"));
  r.plan.engine.kv_format = Format::kQ8;  // Its arithmetic takes longer than its bytes.
  CHECK(check_result(r).ok());
  r.ceilings.rates.cache = 1.2e10;
  CHECK_THAT(std::string(check_result(r).message()), Catch::Contains("0.60, at least 0.70"));
  r.plan.engine.kv_format = Format::kQ4;
  CHECK(check_result(r).ok());
  // Each query head that shares a KV head adds its arithmetic.
  r.plan.engine.kv_format = Format::kQ8;
  r.plan.shape.heads = 32;
  r.plan.shape.kv_heads = 8;
  CHECK(check_result(r).ok());
  r.ceilings.rates.cache = 0.8e10;
  CHECK_THAT(std::string(check_result(r).message()), Catch::Contains("0.40, at least 0.50"));
  r.plan.shape.kv_heads = 4;
  CHECK(check_result(r).ok());
  r.ceilings.rates.cache = 0.6e10;
  CHECK_THAT(std::string(check_result(r).message()), Catch::Contains("0.30, at least 0.35"));
  r.plan.shape.kv_heads = 2;
  CHECK(check_result(r).ok());
  r.flags.prompt_tokens = 255;  // Too little work to tell
  CHECK(value("prompt attention of the f32 peak") == -1);
  r.plan.format = Format::kQ4;  // Expanded to bf16
  CHECK(value("products of 512 rows") == Approx(0.9));
  r.plan.in_int8 = true;
  CHECK(value("products of 512 rows") == Approx(0.45));
  // No peak is known of other devices, and small models are not made of arithmetic.
  r.plan.discrete = true;
  CHECK(gates_of(r).empty());
  r.plan.discrete = false;
  for (MatrixRate& rate : r.ceilings.rates.matrix) rate.inputs = 1023;
  CHECK(gates_of(r).empty());
}

TEST_CASE("bench --json has every field that programs rely on") {
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
                          "efficiency_of_kernels",
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
  CHECK(object["plan"] == plan_json(made_up().plan));
  CHECK(object["hardware"]["disk_read_bytes_per_second"] == 2e9);
  CHECK(object["hardware"]["before"]["disk_read_bytes_per_second"] == 1e9);
  CHECK(object["hardware"]["after"]["disk_read_bytes_per_second"] == 2e9);
  CHECK(object["hardware"]["memory_bytes_per_second"] == 2e10);
  CHECK(object["hardware"]["both_directions_bytes_per_second"] == 3);
  CHECK(object["hardware"]["matrix"][0]["own_flops_per_second"] == 1.1e11);
  CHECK_FALSE(object["hardware"]["matrix"][0].contains("library_flops_per_second"));
  BenchResult discrete = made_up();
  discrete.plan.discrete = true;
  const json matrix = json::parse(bench_json(discrete))["hardware"]["matrix"][0];
  CHECK(matrix["library_flops_per_second"] == 1e11);
}

TEST_CASE("the ceilings of a run are the best of both times") {
  const BenchResult r = made_up();
  CHECK(r.ceilings.rates.matrix[0].flops_per_second == 1.1e11);
  CHECK(r.ceilings.rates.disk_write == 0);
  CHECK(r.ceilings.copies.to_host == 2);
  CHECK(r.ceilings.peaks.f32.operations_per_second == 1e11);
  CHECK(r.ceilings.peaks.bf16.operations_per_second == 2e11);
  CHECK_FALSE(r.ceilings.of_own_file);
}

TEST_CASE("the disk's ceiling is that of the file which the run read, where it was measured") {
  BenchResult r = made_up();
  r.before.rates.disk_read = 3e9;  // Of another file
  r.after.of_own_file = true;
  r.ceilings = ceilings_of_run(r);
  CHECK(r.ceilings.rates.disk_read == 2e9);
  CHECK_THAT(bench_table(r), Catch::Contains("disk read     2.00 GB/s, of the run's own file after "
                                             "it (3.00 before, of a new one)"));
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
  CHECK_THAT(table, Catch::Contains("disk read     2.00 GB/s (1.00 before, 2.00 after)"));
  CHECK_THAT(table, !Catch::Contains("disk write"));
}

TEST_CASE("the warm-up is short for a small model, and shorter for a large one or a disk") {
  ModelShape small = test::make_shape(
      {.hidden = 64, .heads = 1, .mlp = 256, .vocabulary = 1000, .positions = 2048});
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
}  // namespace spillway::cli_bench_test
