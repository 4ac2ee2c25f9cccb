// FlexGen's hardware constants: the file that comes with the program, and what is refused.
#include "policy/flexgen/flexgen_hardware.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "offload/io/file.h"
#include "tests/support/places.h"

namespace spillway::flexgen_hardware_test {
namespace {

using nlohmann::json;

std::string text_of_t4() {
  const auto text = read_small_file(test::source_directory() + "/configs/hardware/flexgen-t4.json",
                                    kFlexgenHardwareBytesMax);
  REQUIRE(text.ok());
  return text.value();
}

std::string refusal(const json& root) {
  const Status status = parse_flexgen_hardware(root.dump(), "t4.json").status();
  CHECK(status.code() == Code::kInvalidArgument);
  return std::string(status.message());
}

TEST_CASE("FlexGen's constants are those of its release") {
  const auto parsed = parse_flexgen_hardware(text_of_t4(), "t4.json");
  INFO(parsed.status().message());
  REQUIRE(parsed.ok());
  const FlexgenHardware& t4 = parsed.value();
  constexpr double kGiB = 1 << 30;
  CHECK(t4.source.find("experimental/cost_model.py") != std::string::npos);
  CHECK(t4.device_memory == 16 * kGiB);
  CHECK(t4.host_memory == 200 * kGiB);
  CHECK(t4.disk_memory == 1500 * kGiB);
  CHECK(t4.host_to_device == 12.89 * kGiB);
  CHECK(t4.device_to_host_cache == 0.97 * kGiB);
  CHECK(t4.device_to_host_hidden == 4.82 * kGiB);
  CHECK(t4.disk_to_host == 0.473 * kGiB);
  CHECK(t4.host_to_disk_prefill_cache == 0.746 * kGiB);
  CHECK(t4.host_to_disk_prefill_hidden == 2.015 * kGiB);
  CHECK(t4.host_to_disk_decode == 2.015 * kGiB);
  CHECK(t4.prefill_matrix == 21.24e12);
  CHECK(t4.decode_matrix == 4.3e12);
  CHECK(t4.prefill_attention == 9.97e12);
  CHECK(t4.decode_attention == 0.079e12);
  CHECK(t4.host_attention == 0.0123e12);
  CHECK(t4.loss_per_halved_micro_batch == 0.0328);
  CHECK(t4.loss_per_halved_hidden == 0.0621);
  CHECK(t4.gain_per_both_halved == 0.0168);
}

TEST_CASE("every wrong field of FlexGen's constants is refused by its name") {
  const json good = json::parse(text_of_t4());
  int numbers = 0;
  for (const auto& [key, value] : good.items()) {
    INFO(key);
    json without = good;
    without.erase(key);
    CHECK(refusal(without) == "t4.json: " + key + " is missing");
    for (const json& wrong : {json(0), json(-1.5), json(1e300), json("1"), json(true), json()}) {
      if (!value.is_number() || key == "version") continue;
      json changed = good;
      changed[key] = wrong;
      CHECK(refusal(changed).starts_with("t4.json: " + key +
                                         (wrong.is_number() ? " must be between "
                                          : wrong.is_null() ? " is missing"
                                                            : " must be a number")));
      ++numbers;
    }
  }
  CHECK(numbers == 18 * 6);

  json more = good;
  more["memory_gib"] = 3;
  CHECK(refusal(more) == "t4.json: unknown field 'memory_gib'");
  json later = good;
  later["version"] = 2;
  CHECK(refusal(later) ==
        "t4.json: is version 2 of FlexGen's hardware constants, and this program reads version 1; "
        "configs/hardware has some");
  json nowhere = good;
  nowhere["source"] = "";
  CHECK(refusal(nowhere) == "t4.json: source is empty; say where the numbers are from");
  CHECK(refusal(json::array()) == "t4.json: is not a JSON object");
}

}  // namespace
}  // namespace spillway::flexgen_hardware_test
