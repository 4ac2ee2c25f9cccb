// The real `spillway plan`, and a run of what it found.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/device.h"
#include "policy/hardware_json.h"
#include "tests/support/golden.h"
#include "tests/support/hardware.h"
#include "tests/support/json_file.h"
#include "tests/support/places.h"

namespace spillway::plan_test {
namespace {

using nlohmann::json;

TEST_CASE("a plan is found, written, read and carried out", "[slow]") {
  const test::TemporaryCache place;
  const std::string model = test::read_golden("pre_ln_relu").checkpoints.front();
  const std::string hardware = place.path() + "/hardware.json";
  const std::string plan = place.path() + "/plan.json", report = place.path() + "/report.json";
  std::ofstream(hardware) << hardware_profile_json(test::sample_hardware(false));
  const std::string lengths = " --prompt-tokens 9 --new-tokens 4";
  const std::string log = " 2> " + place.path() + "/log";
  REQUIRE(test::exit_of(test::program() + " plan " + model + lengths + " --hardware " + hardware +
                        " --host-memory 2GiB --json --output " + plan + " > " + report + log) == 0);
  const json found = test::read_json(report), written = test::read_json(plan);
  CHECK(found["plan"] == written);
  CHECK(found["cost_model"] == "spillway");
  CHECK(found["hardware"]["name"] == "a CPU of tests");
  const json& predicted = found["predicted"];
  CHECK(predicted["tokens_per_second"].get<double>() > 0);
  CHECK(predicted["total_seconds"].get<double>() ==
        Approx(predicted["prefill_seconds"].get<double>() +
               predicted["decode_seconds"].get<double>()));
  CHECK(predicted["resources"]["compute"].get<double>() > 0);

  // The engine carries it out; flags go before it.
  const std::string bench = test::program() + " bench " + model + lengths + " --device cpu";
  REQUIRE(test::exit_of(bench + " --sequences 2 --json --plan " + plan + " > " + report + log) ==
          0);
  CHECK(test::read_json(report)["plan"]["block"] == written["block"]);
  CHECK(test::read_json(report)["host_memory_bytes"] == uint64_t{2} << 30);
  REQUIRE(test::exit_of(bench + " --sequences 2 --block 5 --json --plan " + plan + " > " + report +
                        log) == 0);
  CHECK(test::read_json(report)["plan"]["block"] == 5);

  CHECK(test::exit_of(test::program() + " plan " + model + lengths + " --hardware " + hardware +
                      " --host-memory 20MiB > " + report + log) == 3);
  CHECK(test::exit_of(test::program() + " plan " + model + lengths + " --hardware " + plan + " > " +
                      report + log) == 2);
}

TEST_CASE("plan, bench and serve write one form of a plan, and --plan reads each", "[slow]") {
  const test::TemporaryCache place;
  const std::string model = test::read_golden("pre_ln_relu").checkpoints.front();
  const std::string hardware = place.path() + "/hardware.json", report = place.path() + "/report";
  const std::string log = place.path() + "/log", again = place.path() + "/again.json";
  std::ofstream(hardware) << hardware_profile_json(test::sample_hardware(false));
  const std::string lengths = " --prompt-tokens 9 --new-tokens 4";
  const std::string budget = " --host-memory 2GiB --kv-rule h2o --kv-heavy 0.2";
  const std::string bench =
      test::program() + " bench " + model + lengths + " --device cpu" + " --sequences 2 --json";

  std::vector<json> written;
  REQUIRE(test::exit_of(test::program() + " plan " + model + lengths + " --hardware " + hardware +
                        budget + " --json > " + report + " 2> " + log) == 0);
  written.push_back(test::read_json(report)["plan"]);
  REQUIRE(test::exit_of(bench + budget + " --micro-batch 2 --block 3 --no-overlap > " + report +
                        " 2> " + log) == 0);
  written.push_back(test::read_json(report)["plan"]);
  CHECK(written.back()["no_overlap"] == true);
  REQUIRE(test::exit_of("{ " + test::program() + " serve " + model + " --device cpu --port 0" +
                        budget + " > " + report + " 2> " + log +
                        " & }; pid=$!; for i in $(seq 600); do grep -q Listening " + report +
                        " && break; sleep 0.05; done; kill $pid; wait $pid") == 0);
  std::ifstream said(log);
  const std::string mark = "plan (a file for --plan): ";
  for (std::string line; std::getline(said, line);) {
    const size_t at = line.find(mark);
    if (at != std::string::npos) written.push_back(json::parse(line.substr(at + mark.size())));
  }
  REQUIRE(written.size() == 3);

  for (const json& plan : written) {
    INFO(plan.dump());
    std::ofstream(again) << plan;
    REQUIRE(test::exit_of(bench + " --plan " + again + " > " + report + " 2> " + log) == 0);
    CHECK(test::read_json(report)["plan"] == plan);
  }
}

TEST_CASE("a plan carries 8-bit products to the run, where 4-bit weights have them", "[slow]") {
  const test::TemporaryCache place;
  const std::string model = test::read_golden("pre_ln_relu").checkpoints.front();
  const std::string hardware = place.path() + "/hardware.json", plan = place.path() + "/plan.json";
  const std::string report = place.path() + "/report.json", log = place.path() + "/log";
  std::ofstream(hardware) << hardware_profile_json(test::sample_hardware(false));
  const std::string lengths = " --prompt-tokens 9 --new-tokens 4",
                    out = " > " + report + " 2> " + log;
  const auto planned = [&](const std::string& format) {
    const std::string command = test::program() + " plan " + model + lengths + " --hardware " +
                                hardware + " --host-memory 2GiB --q4-compute int8 --format " +
                                format + " --output " + plan + out;
    REQUIRE(test::exit_of(command) == 0);
    return test::read_json(plan);
  };
  CHECK(planned("f16").count("quantized_compute") == 0);
  std::ifstream said(log);
  const std::string warning{std::istreambuf_iterator<char>(said), {}};
  CHECK(warning.find("--quantized-compute int8 is for weights in q8, q4 or q4_1") !=
        std::string::npos);
  CHECK(planned("q4")["quantized_compute"] == "int8");
  const std::string gpu = place.path() + "/gpu.json";
  std::ofstream(gpu) << hardware_profile_json(test::sample_hardware(true));
  CHECK(test::exit_of(test::program() + " plan " + model + lengths + " --hardware " + gpu +
                      " --q4-compute int8 --format q4" + out) == 2);
  if (!open_cpu_device(1, CpuMatmul::kInt8).ok()) return;
  REQUIRE(test::exit_of(test::program() + " bench " + model + lengths +
                        " --sequences 2 --device cpu --json --plan " + plan + out) == 0);
  CHECK(test::read_json(report)["plan"]["quantized_compute"] == "int8");
}

TEST_CASE("plan refuses lengths that no run takes") {
  const test::TemporaryCache place;
  const std::string hardware = place.path() + "/hardware.json";
  std::ofstream(hardware) << hardware_profile_json(test::sample_hardware(false));
  const std::string out = " > " + place.path() + "/report 2> " + place.path() + "/log";
  // 128 positions, and 2,048.
  const auto plan = [&](const std::string& model, const std::string& lengths) {
    return test::exit_of(test::program() + " plan " + model + lengths + out);
  };
  const std::string small = test::read_golden("pre_ln_relu").checkpoints.front() + " --hardware " +
                            hardware + " --host-memory 2GiB";
  CHECK(plan(small, " --prompt-tokens 100 --new-tokens 28") == 0);
  CHECK(plan(small, " --prompt-tokens 100 --new-tokens 29") == 2);
  const std::string large = "opt-30b --hardware " + hardware;
  CHECK(plan(large, " --prompt-tokens 20000 --new-tokens 5000") == 2);
  CHECK(plan("opt-30b --cost-model flexgen", " --prompt-tokens 20000 --new-tokens 5000") == 2);
  std::ifstream said(place.path() + "/log");
  const std::string text{std::istreambuf_iterator<char>(said), {}};
  CHECK(text.find("2048 positions") != std::string::npos);
}

TEST_CASE("plan writes its outputs through links and devices") {
  const test::TemporaryCache place;
  const std::string base =
      test::program() + " plan opt-30b --cost-model flexgen --micro-batch 48 --block 144";
  const std::string null = place.path() + "/null", full = place.path() + "/full";
  const std::string out = place.path() + "/out";
  // By way of links, so that a fault replaces nothing that others need.
  std::filesystem::create_symlink("/dev/null", null);
  std::filesystem::create_symlink("/dev/full", full);
  CHECK(test::exit_of(base + " --output " + null + " > " + out) == 0);
  CHECK(std::filesystem::is_symlink(null));
  CHECK(test::exit_of(base + " --json --output /proc/self/fd/1 > " + out) == 0);
  std::ifstream in(out);
  CHECK(json::parse(in, nullptr, false).is_discarded());  // The plan, and then the report
  CHECK(test::exit_of(base + " --output " + full + " > " + out + " 2> " + place.path() + "/log") ==
        1);
  CHECK(std::filesystem::is_symlink(full));
}

TEST_CASE("plan answers with FlexGen's model, too") {
  const test::TemporaryCache place;
  const std::string report = place.path() + "/report.json";
  const std::string log = " 2> " + place.path() + "/log";
  const std::string ask = test::program() + " plan opt-30b --cost-model flexgen";
  REQUIRE(
      test::exit_of(ask +
                    " --micro-batch 48 --block 144 --weights 20,80,0 --kv 0,100,0 --activations "
                    "0,100,0 --json > " +
                    report + log) == 0);
  const json found = test::read_json(report);
  CHECK(found["predicted"]["prefill_seconds"].get<double>() == Approx(210.6704).epsilon(1e-4));
  CHECK(found["predicted"]["decode_seconds"].get<double>() == Approx(435.0937).epsilon(1e-4));
  CHECK(found["predicted"]["tokens_per_second"].get<double>() == Approx(7.1357).epsilon(1e-4));
  CHECK(found["cost_model"] == "flexgen");
  REQUIRE(test::exit_of(
              ask + " --device-memory 16GiB --host-memory 200GiB --disk-memory 1500GiB --json > " +
              report + log) == 0);
  CHECK(test::read_json(report)["predicted"]["tokens_per_second"].get<double>() ==
        Approx(7.09).margin(0.006));
  CHECK(test::exit_of(ask + " --block 10 --micro-batch 3 > " + report + log) == 2);
  CHECK(test::exit_of(ask + " --kv-rule h2o > " + report + log) == 2);
}

TEST_CASE("a plan for ranks names what they divide whole, and is carried out by them", "[slow]") {
  const test::TemporaryCache place;
  const std::string model = test::read_golden("llama3").checkpoints.front();
  const std::string hardware = place.path() + "/hardware.json", log = place.path() + "/log";
  const std::string file = place.path() + "/plan.json", report = place.path() + "/report.json";
  std::ofstream(hardware) << hardware_profile_json(test::sample_hardware(false));
  const std::string lengths = " --prompt-tokens 9 --new-tokens 4";
  const std::string plan = test::program() + " plan " + model + lengths + " --hardware " +
                           hardware + " --host-memory 2GiB --disk-memory 3GiB --ranks ";
  REQUIRE(test::exit_of(plan + "2 --json --output " + file + " > " + report + " 2> " + log) == 0);
  const json written = test::read_json(file);
  CHECK(written["ranks"] == 2);
  CHECK(written["host_memory"] == std::to_string(uint64_t{2} << 30));
  CHECK(written["disk_memory"] == std::to_string(uint64_t{3} << 30));
  CHECK(test::read_json(report)["predicted"]["tokens_per_second"].get<double>() > 0);

  const std::string bench = test::program() + " bench " + model + lengths +
                            " --threads 2 --sequences 2 --json --plan " + file;
  REQUIRE(test::exit_of(bench + " > " + report + " 2> " + log) == 0);
  const json ran = test::read_json(report);
  CHECK(ran["ranks"] == 2);
  CHECK(ran["host_memory_bytes"] == uint64_t{2} << 30);
  CHECK(ran["plan"]["host_memory"] == written["host_memory"]);

  CHECK(test::exit_of(plan + "3 > " + report + " 2> " + log) == 2);
  CHECK(test::exit_of(plan + "2 --cost-model flexgen > " + report + " 2> " + log) == 2);
}

TEST_CASE("a plan for several machines says what each has, and what they give", "[slow]") {
  const test::TemporaryCache place;
  const std::string hardware = place.path() + "/hardware.json", report = place.path() + "/report";
  const std::string log = place.path() + "/log";
  std::ofstream(hardware) << hardware_profile_json(test::sample_hardware(false));
  const std::string plan = test::program() + " plan opt-125m --prompt-tokens 9 --new-tokens 4" +
                           " --hardware " + hardware + " --host-memory 2GiB --stages ";
  REQUIRE(test::exit_of(plan + "3 --json > " + report + " 2> " + log) == 0);
  const json found = test::read_json(report);
  CHECK(found["stages"] == 3);
  REQUIRE(found["ranks"].size() == 3);
  int64_t layers = 0;
  for (const json& rank : found["ranks"]) layers += rank["layers"].get<int64_t>();
  CHECK(layers == 12);
  CHECK(found["ranks"][1]["first_layer"] == 0);
  CHECK(found["predicted"]["tokens_per_second"].get<double>() > 0);
  REQUIRE(found["machines"].size() == 3);
  CHECK(found["machines"][2]["machines"] == 4);

  REQUIRE(test::exit_of(plan + "2 > " + report + " 2> " + log) == 0);
  std::ifstream text(report);
  const std::string said{std::istreambuf_iterator<char>(text), {}};
  CHECK(said.find("rank 0: layers ") != std::string::npos);
  CHECK(said.find("mpirun -np 2 --host HOST1,HOST2 ") != std::string::npos);
  REQUIRE(test::exit_of(plan + "2 --ranks 2 > " + report + " 2> " + log) == 0);
  std::ifstream again(report);
  const std::string ranks{std::istreambuf_iterator<char>(again), {}};
  CHECK(ranks.find(" --stages 2 --ranks 2 --block ") != std::string::npos);
  std::ofstream(hardware) << hardware_profile_json(test::sample_hardware(true));
  REQUIRE(test::exit_of(plan + "2 --gpus 2,3 > " + report + " 2> " + log) == 0);
  std::ifstream gpus(report);
  const std::string on_gpus{std::istreambuf_iterator<char>(gpus), {}};
  CHECK(on_gpus.find(" --stages 2 --gpus 2,3 --block ") != std::string::npos);
  CHECK(test::exit_of(plan + "13 > " + report + " 2> " + log) == 2);
  CHECK(test::exit_of(plan + "2 --frontier > " + report + " 2> " + log) == 2);
}

}  // namespace
}  // namespace spillway::plan_test
