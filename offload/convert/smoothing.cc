#include "offload/convert/smoothing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/check.h"
#include "offload/io/parallel_tasks.h"

namespace spillway {

namespace {

constexpr WeightRole kSmoothed[] = {WeightRole::kQkvWeight, WeightRole::kAttentionOutWeight,
                                    WeightRole::kMlpUpWeight, WeightRole::kMlpDownWeight};

// A channel that the text hardly used may be used by another text: it counts as this share of the
// mean channel at least, lest its weights be made too small to be kept.
constexpr float kLeastOfMean = 0.01f;

// sqrt(a / w) for each channel; 1 where one of them is 0 or not finite.
std::vector<float> balance(const std::vector<float>& inputs, const std::vector<float>& columns) {
  const float sum = std::accumulate(inputs.begin(), inputs.end(), 0.0f);
  const float least = kLeastOfMean * sum / static_cast<float>(std::max<size_t>(1, inputs.size()));
  std::vector<float> factors(inputs.size(), 1.0f);
  for (size_t i = 0; i < factors.size(); ++i) {
    const float s = std::sqrt(std::max(inputs[i], least)) / std::sqrt(columns[i]);
    if (std::isnormal(s) && std::isnormal(1 / s)) factors[i] = s;
  }
  return factors;
}

// The factors of one layer.
class LayerFactors {
 public:
  LayerFactors(const ModelShape& shape, const InputMaxima& inputs, const InputMaxima& columns)
      : shape_(shape), inputs_(inputs), columns_(columns), by_role_(kWeightRoles) {
    if (shape.norm_place == NormPlace::kPre && shape.norm_affine) {
      smooth_norm(WeightRole::kAttentionNormWeight, WeightRole::kAttentionNormBias,
                  WeightRole::kQkvWeight, balance(inputs.qkv, columns.qkv));
      smooth_norm(WeightRole::kMlpNormWeight, WeightRole::kMlpNormBias, WeightRole::kMlpUpWeight,
                  balance(inputs.mlp_up, columns.mlp_up));
    }
    smooth_values();
    smooth_mlp();
  }

  WeightFactors take(WeightRole role) { return std::move(of(role)); }

 private:
  WeightFactors& of(WeightRole role) { return by_role_[static_cast<size_t>(role)]; }

  // Divides `factors` out of the rows of `role` from row `first` of `rows` on.
  void divide_rows(WeightRole role, int64_t rows, int64_t first,
                   const std::vector<float>& factors) {
    std::vector<float>& to = of(role).rows;
    to.resize(static_cast<size_t>(rows), 1.0f);
    for (size_t i = 0; i < factors.size(); ++i) to[static_cast<size_t>(first) + i] /= factors[i];
  }

  void smooth_norm(WeightRole weight, WeightRole bias, WeightRole matrix,
                   const std::vector<float>& factors) {
    divide_rows(weight, shape_.hidden, 0, factors);
    divide_rows(bias, shape_.hidden, 0, factors);
    of(matrix).columns = factors;
  }

  void smooth_values() {
    const int64_t size = shape_.head_size, together = shape_.heads / shape_.kv_heads;
    // The channels of the query heads that share a value head are one.
    const auto head_channel = [&](int64_t head, int64_t i) {
      return static_cast<size_t>(head * size + i);
    };
    std::vector<float> inputs(static_cast<size_t>(shape_.kv_width())), columns(inputs.size());
    for (int64_t head = 0; head < shape_.heads; ++head) {
      for (int64_t i = 0; i < size; ++i) {
        const size_t value = head_channel(head / together, i), channel = head_channel(head, i);
        inputs[value] = std::max(inputs[value], inputs_.attention_out[channel]);
        columns[value] = std::max(columns[value], columns_.attention_out[channel]);
      }
    }
    const std::vector<float> factors = balance(inputs, columns);
    const int64_t first = shape_.query_width() + shape_.kv_width();
    divide_rows(WeightRole::kQkvWeight, shape_.qkv_width(), first, factors);
    divide_rows(WeightRole::kQkvBias, shape_.qkv_width(), first, factors);
    std::vector<float>& out = of(WeightRole::kAttentionOutWeight).columns;
    out.resize(static_cast<size_t>(shape_.query_width()));
    for (int64_t head = 0; head < shape_.heads; ++head) {
      for (int64_t i = 0; i < size; ++i) {
        out[head_channel(head, i)] = factors[head_channel(head / together, i)];
      }
    }
  }

  void smooth_mlp() {
    const bool gated = shape_.mlp_kind == MlpKind::kGated;
    if (!gated && shape_.activation != Activation::kRelu) return;
    const std::vector<float> factors = balance(inputs_.mlp_down, columns_.mlp_down);
    const int64_t rows = gated ? 2 * shape_.mlp : shape_.mlp;
    divide_rows(WeightRole::kMlpUpWeight, rows, rows - shape_.mlp, factors);
    divide_rows(WeightRole::kMlpUpBias, rows, rows - shape_.mlp, factors);
    of(WeightRole::kMlpDownWeight).columns = factors;
  }

  const ModelShape& shape_;
  const InputMaxima& inputs_;
  const InputMaxima& columns_;
  std::vector<WeightFactors> by_role_;
};

// Takes in the columns of one matrix.
Status note_columns(const Checkpoint& checkpoint, const MappedWeight& weight,
                    std::vector<float>& maxima) {
  constexpr size_t kAtOnce = size_t{1} << 20;  // Bytes
  const auto columns = static_cast<size_t>(weight.row_elements);
  const size_t row_bytes = columns * dtype_bytes(weight.format);
  const auto step = static_cast<int64_t>(std::max<size_t>(1, kAtOnce / row_bytes));
  std::vector<std::byte> raw;
  std::vector<float> numbers;
  for (const MappedPart& part : weight.parts) {
    for (int64_t row = 0; row < part.rows; row += step) {
      const auto rows = static_cast<size_t>(std::min(step, part.rows - row));
      raw.resize(rows * row_bytes);
      numbers.resize(rows * columns);
      SPILLWAY_RETURN_IF_ERROR(
          checkpoint.read(checkpoint.tensors()[part.tensor],
                          static_cast<uint64_t>(part.first_row + row) * row_bytes, raw));
      convert_elements(weight.format, raw.data(), DType::kF32,
                       reinterpret_cast<std::byte*>(numbers.data()), numbers.size());
      note_inputs(numbers, maxima);
    }
  }
  return {};
}

}  // namespace

std::vector<float>& InputMaxima::of(WeightRole weight) {
  switch (weight) {
    case WeightRole::kQkvWeight:
      return qkv;
    case WeightRole::kAttentionOutWeight:
      return attention_out;
    case WeightRole::kMlpUpWeight:
      return mlp_up;
    default:
      SPILLWAY_CHECK(weight == WeightRole::kMlpDownWeight);
      return mlp_down;
  }
}

std::vector<InputMaxima> no_maxima(const ModelShape& shape) {
  InputMaxima layer;
  for (const WeightRole role : kSmoothed) {
    layer.of(role).resize(static_cast<size_t>(layer_spec(shape, role).columns));
  }
  return std::vector<InputMaxima>(static_cast<size_t>(shape.layers), layer);
}

void note_inputs(std::span<const float> values, std::vector<float>& maxima) {
  const size_t channels = maxima.size();
  SPILLWAY_CHECK(channels > 0 && values.size() % channels == 0);
  float* const most = maxima.data();
  for (const float* row = values.data(); row != values.data() + values.size(); row += channels) {
    for (size_t i = 0; i < channels; ++i) {
      const float size = std::abs(row[i]);
      most[i] = size > most[i] && size < INFINITY ? size : most[i];
    }
  }
}

std::vector<WeightFactors> smoothing_factors(const ModelShape& shape,
                                             std::span<const InputMaxima> inputs,
                                             std::span<const InputMaxima> columns) {
  SPILLWAY_CHECK(std::ssize(inputs) == shape.layers && std::ssize(columns) == shape.layers);
  std::vector<WeightFactors> factors;
  std::vector<LayerFactors> layers;
  for (size_t i = 0; i < inputs.size(); ++i) layers.emplace_back(shape, inputs[i], columns[i]);
  for (const WeightSpec& spec : weight_specs(shape)) {
    factors.push_back(spec.layer < 0 ? WeightFactors{}
                                     : layers[static_cast<size_t>(spec.layer)].take(spec.role));
  }
  return factors;
}

Result<std::vector<InputMaxima>> column_maxima(const ModelShape& shape,
                                               const Checkpoint& checkpoint, const WeightMap& map,
                                               unsigned threads,
                                               const std::function<bool()>& keep_going) {
  const std::vector<WeightSpec> specs = weight_specs(shape);
  std::vector<InputMaxima> maxima = no_maxima(shape);
  std::vector<size_t> matrices;  // By number among the weights
  for (size_t i = 0; i < specs.size(); ++i) {
    const bool smoothed =
        std::find(std::begin(kSmoothed), std::end(kSmoothed), specs[i].role) != std::end(kSmoothed);
    if (smoothed) matrices.push_back(i);
  }
  const auto note = [&](size_t index, unsigned) {
    const WeightSpec& spec = specs[matrices[index]];
    return note_columns(checkpoint, map.weights[matrices[index]],
                        maxima[static_cast<size_t>(spec.layer)].of(spec.role));
  };
  SPILLWAY_RETURN_IF_ERROR(
      run_tasks(matrices.size(), threads, note, [&] { return !keep_going || keep_going(); }));
  return maxima;
}

void apply_factors(const WeightFactors& factors, int64_t first_row, int64_t rows, int64_t columns,
                   float* values) {
  for (int64_t row = 0; row < rows; ++row, values += columns) {
    const float of_row =
        factors.rows.empty() ? 1.0f : factors.rows[static_cast<size_t>(first_row + row)];
    if (factors.columns.empty()) {
      for (int64_t i = 0; i < columns; ++i) values[i] *= of_row;
    } else {
      const float* const of_column = factors.columns.data();
      for (int64_t i = 0; i < columns; ++i) values[i] *= of_row * of_column[i];
    }
  }
}

}  // namespace spillway
