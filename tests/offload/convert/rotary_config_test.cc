// Rotary positions of a config.json, in the old form and the new one.
#include "offload/convert/rotary_config.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/rotary.h"

namespace spillway::rotary_config_test {
namespace {

using nlohmann::json;

struct Read {
  Status status;
  ModelShape shape;
};

Read read(const json& config, const RotaryDefaults& defaults = {}) {
  JsonReader reader(config, "config.json");
  Read read;
  read.shape.head_size = 8;
  read.shape.positions = 64;
  read_rotary(reader, config, defaults, read.shape);
  read.status = reader.status();
  return read;
}

Rotary rotary(const json& config) {
  const Read found = read(config);
  INFO(found.status.message());
  REQUIRE(found.status.ok());
  return found.shape.rotary;
}

std::string refusal(const json& config) {
  return std::string(read(config).status.message());
}

TEST_CASE("rope_parameters says what rope_theta and rope_scaling say") {
  const json scaling = {{"factor", 4.0}};
  for (const char* type : {"linear", "dynamic", "yarn"}) {
    json old = {{"rope_theta", 5000.0}, {"rope_scaling", scaling}};
    old["rope_scaling"]["type"] = type;
    json both = old;
    both["rope_scaling"]["rope_type"] = type;
    json parameters = {{"rope_parameters", scaling}};
    parameters["rope_parameters"]["rope_type"] = type;
    parameters["rope_parameters"]["rope_theta"] = 5000.0;
    CHECK(rotary(old) == rotary(parameters));
    CHECK(rotary(old) == rotary(both));
    CHECK_FALSE(rotary(old) == rotary({{"rope_theta", 5000.0}}));
  }
}

TEST_CASE("without scaling the frequencies are theta's") {
  CHECK(rotary(json::object()).frequencies == rotary_frequencies(10000, 8));
  CHECK(rotary({{"rope_theta", 500000}}).frequencies == rotary_frequencies(500000, 8));
  CHECK(rotary({{"rope_scaling", nullptr}}).frequencies == rotary_frequencies(10000, 8));
  const Rotary part = rotary({{"partial_rotary_factor", 0.5}});
  CHECK(part.dims == 4);
  CHECK(part.frequencies == rotary_frequencies(10000, 4));
}

TEST_CASE("scalings lengthen the positions, llama3 and longrope do not") {
  const auto positions = [](const json& scaling) {
    return read({{"rope_scaling", scaling}}).shape.positions;
  };
  CHECK(positions({{"type", "linear"}, {"factor", 2}}) == 128);
  CHECK(positions({{"type", "dynamic"}, {"factor", 4}}) == 256);
  CHECK(positions({{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 32}}) ==
        128);
  CHECK(positions({{"rope_type", "llama3"},
                   {"factor", 8},
                   {"low_freq_factor", 1},
                   {"high_freq_factor", 4},
                   {"original_max_position_embeddings", 32}}) == 64);
}

TEST_CASE("llama3 leaves short waves, stretches long ones, and interpolates between") {
  const Rotary scaled = rotary({{"rope_scaling",
                                 {{"rope_type", "llama3"},
                                  {"factor", 8},
                                  {"low_freq_factor", 1},
                                  {"high_freq_factor", 4},
                                  {"original_max_position_embeddings", 100}}}});
  // Wavelengths 6.3, 63, 628, 6283; the borders are 25 and 100.
  CHECK(scaled.frequencies[0] == 1.0f);
  const double smooth = (100 / (2 * M_PI / 0.1) - 1) / 3;
  CHECK(scaled.frequencies[1] == Approx((1 - smooth) * 0.1 / 8 + smooth * 0.1));
  CHECK(scaled.frequencies[2] == Approx(0.01 / 8));
  CHECK(scaled.frequencies[3] == Approx(0.001 / 8));
}

TEST_CASE("YaRN's attention factor is 0.1 ln(factor) + 1, unless the config says another") {
  json config = {{"rope_scaling", {{"type", "yarn"}, {"factor", 4}}}};
  CHECK(rotary(config).scale == Approx(0.1 * std::log(4.0) + 1));
  config["rope_scaling"]["attention_factor"] = 1.5;
  CHECK(rotary(config).scale == 1.5f);
}

TEST_CASE("LongRoPE has frequencies for short and for long sequences") {
  const json config = {
      {"original_max_position_embeddings", 16},
      {"rope_scaling",
       {{"type", "longrope"}, {"short_factor", {1, 1, 2, 2}}, {"long_factor", {1, 2, 4, 8}}}}};
  const Rotary found = rotary(config);
  const auto plain = rotary_frequencies(10000, 8);
  CHECK(found.frequencies[3] == plain[3] / 2);
  CHECK(found.long_frequencies[3] == plain[3] / 8);
  CHECK(found.switch_length == 16);
  CHECK(found.scale == Approx(std::sqrt(1 + std::log(4.0) / std::log(16.0))));
}

TEST_CASE("a factor of each frequency divides it") {
  const Rotary found =
      rotary({{"rope_frequency_factors", {1, 1, 2, 8}}, {"rope_interleaved", true}});
  CHECK(found.frequencies[3] == rotary_frequencies(10000, 8)[3] / 8);
  CHECK(found.interleaved);
}

TEST_CASE("scalings that are unknown or wrong are refused by name") {
  CHECK_THAT(refusal({{"rope_scaling", {{"type", "mrope"}}}}), Catch::Contains("'mrope'"));
  CHECK_THAT(refusal({{"rope_scaling", {{"type", "linear"}}}}), Catch::Contains("factor"));
  CHECK_THAT(refusal({{"rope_scaling", {{"type", "linear"}, {"factor", "x"}}}}),
             Catch::Contains("factor"));
  CHECK_THAT(refusal({{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"mscale_x", 2}}}}),
             Catch::Contains("mscale_x"));
  CHECK_THAT(refusal({{"rope_scaling", 3}}), Catch::Contains("not an object"));
  CHECK_THAT(refusal({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}}),
             Catch::Contains("full_attention"));
  CHECK_THAT(refusal({{"rope_scaling",
                       {{"type", "longrope"}, {"short_factor", {1, 1}}, {"long_factor", {1, 1}}}}}),
             Catch::Contains("must have 4"));
  CHECK_THAT(refusal({{"partial_rotary_factor", 0.4}}), Catch::Contains("even"));
}

}  // namespace
}  // namespace spillway::rotary_config_test
