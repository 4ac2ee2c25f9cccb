#include "offload/convert/rotary_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "kernels/base/quote.h"
#include "kernels/base/rotary.h"

namespace spillway {

using nlohmann::json;

namespace {

constexpr int64_t kPositionsMax = int64_t{1} << 20;
constexpr size_t kFactorsMax = 512;
constexpr double kFactorMax = 1e4;

// The object that holds the scaling's type and numbers; empty: there is none.
json scaling_of(JsonReader& reader, const json& config) {
  const json* parameters = reader.find("rope_parameters");
  const json* scaling = reader.find("rope_scaling");
  if (parameters == nullptr) parameters = scaling;
  if (parameters == nullptr) return json::object();
  if (!parameters->is_object()) {
    reader.fail("rope_parameters or rope_scaling is not an object");
    return json::object();
  }
  for (const auto& [name, value] : parameters->items()) {
    if (!value.is_object()) continue;
    reader.fail("rope_parameters has an object for " + in_quotes(name) +
                ": positions that differ by the kind of layer are not supported");
    return json::object();
  }
  (void)config;
  return *parameters;
}

std::vector<float> read_factors(JsonReader& reader, const char* key, int64_t pairs) {
  std::vector<float> factors;
  for (const json& factor : reader.array(key, kFactorsMax)) {
    const double value = factor.is_number() ? factor.get<double>() : 0;
    if (!(value > 0 && value < 1e6)) {
      reader.fail(std::string(key) + " must be numbers above 0");
      return {};
    }
    factors.push_back(static_cast<float>(value));
  }
  if (!reader.failed() && static_cast<int64_t>(factors.size()) != pairs) {
    reader.fail(std::string(key) + " has " + std::to_string(factors.size()) +
                " numbers, must have " + std::to_string(pairs) + ", half of what is rotated");
  }
  return factors;
}

std::vector<float> divided(std::vector<float> frequencies, const std::vector<float>& factors) {
  for (size_t i = 0; i < std::min(frequencies.size(), factors.size()); ++i) {
    frequencies[i] /= factors[i];
  }
  return frequencies;
}

// Wavelengths above those of the original context are stretched by `factor`, short ones are not,
// and those between are interpolated.
void scale_llama3(JsonReader& reader, std::vector<float>& frequencies) {
  const double factor = reader.number("factor", 1, kFactorMax);
  const double low = reader.number("low_freq_factor", 1e-3, 1e6);
  const double high = reader.number("high_freq_factor", 1e-3, 1e6);
  const auto original =
      static_cast<double>(reader.integer("original_max_position_embeddings", 1, kPositionsMax));
  if (reader.failed()) return;
  if (high <= low) return reader.fail("high_freq_factor must be above low_freq_factor");
  for (float& frequency : frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength < original / high) continue;
    if (wavelength > original / low) {
      frequency = static_cast<float>(frequency / factor);
      continue;
    }
    const double smooth = (original / wavelength - low) / (high - low);
    frequency = static_cast<float>((1 - smooth) * frequency / factor + smooth * frequency);
  }
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

void scale_yarn(JsonReader& reader, double theta, ModelShape& shape) {
  Rotary& rotary = shape.rotary;
  const double factor = reader.number("factor", 1, kFactorMax);
  const int64_t original =
      reader.integer_or("original_max_position_embeddings", 1, kPositionsMax, shape.positions);
  const double fast = reader.find_number("beta_fast", 1e-3, 1e6).value_or(32);
  const double slow = reader.find_number("beta_slow", 1e-3, 1e6).value_or(1);
  const auto scale = reader.find_number("attention_factor", 1e-3, 1e3);
  const double mscale = reader.number_or("mscale", 0);
  const double mscale_all = reader.number_or("mscale_all_dim", 0);
  const bool truncate = reader.boolean_or("truncate", true);
  if (reader.failed()) return;
  if (scale) {
    rotary.scale = static_cast<float>(*scale);
  } else if (mscale != 0 && mscale_all != 0) {
    rotary.scale = static_cast<float>(yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all));
  } else {
    rotary.scale = static_cast<float>(yarn_scale(factor, 1));
  }
  const auto dims = static_cast<double>(rotary.dims);
  // The pair that turns `turns` times over the original context.
  const auto pair_of = [&](double turns) {
    return dims * std::log(static_cast<double>(original) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = pair_of(fast), high = pair_of(slow);
  if (truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < rotary.frequencies.size(); ++i) {
    const auto at = static_cast<float>(i);
    const float ramp =
        std::clamp((at - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float whole = rotary.frequencies[i];
    const float stretched = whole / static_cast<float>(factor);
    rotary.frequencies[i] = stretched * ramp + whole * (1 - ramp);
  }
  shape.positions =
      std::max(shape.positions, static_cast<int64_t>(static_cast<double>(original) * factor));
}

void scale_longrope(JsonReader& reader, int64_t original, ModelShape& shape) {
  Rotary& rotary = shape.rotary;
  const int64_t pairs = rotary.dims / 2;
  const std::vector<float> short_factors = read_factors(reader, "short_factor", pairs);
  const std::vector<float> long_factors = read_factors(reader, "long_factor", pairs);
  double factor = reader.find_number("factor", 1e-3, kFactorMax).value_or(1);
  const auto scale = reader.find_number("attention_factor", 1e-3, 1e3);
  // transformers 5 moves the original length into the object.
  original = reader.integer_or("original_max_position_embeddings", 2, kPositionsMax, original);
  if (reader.failed()) return;
  if (original > 0) {
    factor = static_cast<double>(shape.positions) / static_cast<double>(original);
  } else {
    original = shape.positions;
  }
  rotary.switch_length = original;
  rotary.scale = 1;
  if (scale) {
    rotary.scale = static_cast<float>(*scale);
  } else if (factor > 1) {
    rotary.scale = static_cast<float>(
        std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original))));
  }
  rotary.long_frequencies = divided(rotary.frequencies, long_factors);
  rotary.frequencies = divided(rotary.frequencies, short_factors);
}

void lengthen(double factor, ModelShape& shape) {
  const double positions = static_cast<double>(shape.positions) * factor;
  shape.positions = static_cast<int64_t>(std::min(positions, static_cast<double>(kPositionsMax)));
}

}  // namespace

void read_rotary(JsonReader& reader, const json& config, const RotaryDefaults& defaults,
                 ModelShape& shape) {
  const json scaling = scaling_of(reader, config);
  const double theta_outside =
      reader.find_number(defaults.theta_key, 1.001, 1e30).value_or(defaults.theta);
  const double partial_outside =
      reader.find_number(defaults.partial_key, 1e-3, 1).value_or(defaults.partial);
  const int64_t original_outside =
      reader.integer_or("original_max_position_embeddings", 2, kPositionsMax, 0);
  const bool interleaved = reader.boolean_or("rope_interleaved", false);
  const bool has_factors = reader.has("rope_frequency_factors");
  if (reader.failed()) return;
  JsonReader inner(scaling, "rope scaling");
  const double theta = inner.find_number("rope_theta", 1.001, 1e30).value_or(theta_outside);
  const double partial =
      inner.find_number("partial_rotary_factor", 1e-3, 1).value_or(partial_outside);
  // Old files call the type `type`; transformers writes both.
  std::string type = inner.string_or("type", 32, "default");
  type = inner.string_or("rope_type", 32, type);
  Rotary& rotary = shape.rotary;
  shape.position = PositionKind::kRotary;
  rotary.interleaved = interleaved;
  rotary.theta = static_cast<float>(theta);
  rotary.dims = static_cast<int64_t>(static_cast<double>(shape.head_size) * partial);
  if (rotary.dims < 2 || rotary.dims % 2 != 0) {
    return reader.fail("rotary positions over " + std::to_string(rotary.dims) + " numbers of the " +
                       std::to_string(shape.head_size) +
                       " of a head are not supported; an even number is");
  }
  rotary.frequencies = rotary_frequencies(theta, rotary.dims);
  if (type == "linear") {
    const double factor = inner.number("factor", 1, kFactorMax);
    for (float& frequency : rotary.frequencies) frequency /= static_cast<float>(factor);
    lengthen(factor, shape);
  } else if (type == "dynamic") {
    rotary.dynamic_factor = static_cast<float>(inner.number("factor", 1, kFactorMax));
    rotary.switch_length = shape.positions;
    lengthen(rotary.dynamic_factor, shape);
  } else if (type == "llama3") {
    scale_llama3(inner, rotary.frequencies);
  } else if (type == "yarn") {
    scale_yarn(inner, theta, shape);
  } else if (type == "longrope" || type == "su") {
    scale_longrope(inner, original_outside, shape);
  } else if (type != "default") {
    inner.fail("type " + in_quotes(type) +
               " is not supported; default, linear, dynamic, llama3, yarn and longrope are");
  }
  // A frequency by a factor of its own, as GGUF files store llama3's.
  if (has_factors) {
    rotary.frequencies = divided(rotary.frequencies,
                                 read_factors(reader, "rope_frequency_factors", rotary.dims / 2));
  }
  inner.find_integer("original_max_position_embeddings", 1,
                     kPositionsMax);  // Every type may say it.
  inner.find_number("factor", 0, kFactorMax);
  inner.refuse_unknown();
  if (!inner.status().ok()) reader.fail(std::string(inner.status().message()));
}

}  // namespace spillway
