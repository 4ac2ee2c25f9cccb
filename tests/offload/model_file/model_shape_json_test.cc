// A shape written into a packed file's table and read back.
#include "offload/model_file/model_shape_json.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/support/tiny_shape.h"

namespace spillway::model_shape_json_test {
namespace {

ModelShape full_shape() {
  ModelShape shape = test::rotary_shape();
  shape.name = "full";
  shape.rotary.interleaved = true;
  shape.rotary.scale = 1.25f;
  shape.rotary.theta = 5e5f;
  shape.rotary.frequencies[1] = 0.1234567f;
  shape.rotary.long_frequencies = shape.rotary.frequencies;
  shape.rotary.switch_length = 32;
  shape.rotary_layers = {1, 0, 1};
  shape.sliding_window = 5;
  shape.sliding_layers = {0, 1, 1};
  shape.qkv_bias = true;
  shape.head_norm = true;
  shape.parallel = true;
  shape.embedding_scale = 12.0f;
  shape.attention_scale = 0.015625f;
  shape.residual_scale = 0.22f;
  shape.logits_scale = 0.0625f;
  return shape;
}

// As text, as it is in a file.
nlohmann::json written(const ModelShape& shape) {
  return nlohmann::json::parse(json_of_shape(shape).dump());
}

TEST_CASE("every field of a shape survives its JSON") {
  for (const ModelShape& shape : {full_shape(), test::rotary_shape(), test::tiny_shape()}) {
    const Result<ModelShape> read = shape_of_json(written(shape));
    INFO(read.status().message());
    REQUIRE(read.ok());
    CHECK(read.value() == shape);
  }
}

TEST_CASE("a shape as earlier versions wrote it is read") {
  nlohmann::json object = written(test::tiny_shape());
  object["bias"] = false;
  const ModelShape shape = shape_of_json(object).value();
  CHECK_FALSE(shape.qkv_bias);
  CHECK_FALSE(shape.attention_out_bias);
  CHECK_FALSE(shape.mlp_bias);
}

TEST_CASE("rotary positions that do not fit the heads are refused") {
  const auto refusal = [](auto change) {
    ModelShape shape = test::rotary_shape();
    change(shape);
    return std::string(shape_of_json(written(shape)).status().message());
  };
  CHECK(refusal([](ModelShape&) {}) == "");
  CHECK_THAT(refusal([](ModelShape& s) { s.rotary.dims = s.head_size + 2; }),
             Catch::Contains("rotary dims"));
  CHECK_THAT(refusal([](ModelShape& s) { s.rotary.frequencies.pop_back(); }),
             Catch::Contains("half as many frequencies"));
  CHECK_THAT(refusal([](ModelShape& s) { s.rotary_layers = {1}; }),
             Catch::Contains("rotary_layers"));
  CHECK_THAT(refusal([](ModelShape& s) { s.rotary.dynamic_factor = 2; }),
             Catch::Contains("switch_length"));
  CHECK_THAT(refusal([](ModelShape& s) { s.residual_scale = 0; }),
             Catch::Contains("residual_scale"));
  nlohmann::json without = written(test::rotary_shape());
  without.erase("rotary");
  CHECK_THAT(std::string(shape_of_json(without).status().message()), Catch::Contains("'rotary'"));
}

TEST_CASE("a window that is none, or of no layer, is refused") {
  const auto refusal = [](int64_t window, std::vector<uint8_t> layers) {
    ModelShape shape = test::tiny_shape();
    shape.sliding_window = window;
    shape.sliding_layers = std::move(layers);
    return std::string(shape_of_json(written(shape)).status().message());
  };
  const ModelShape tiny = test::tiny_shape();
  const std::vector<uint8_t> none(static_cast<size_t>(tiny.layers), 0);
  CHECK(refusal(2, {}) == "");
  CHECK(refusal(tiny.positions - 1, {}) == "");
  CHECK_THAT(refusal(1, {}), Catch::Contains("sliding_window is 1"));
  CHECK_THAT(refusal(tiny.positions, {}), Catch::Contains("sliding_window is"));
  CHECK_THAT(refusal(8, {1}), Catch::Contains("sliding_layers is 1"));
  CHECK_THAT(refusal(8, none), Catch::Contains("layers with a window"));
  CHECK_THAT(refusal(0, none), Catch::Contains("sliding_layers without a window"));
}

}  // namespace
}  // namespace spillway::model_shape_json_test
