#include "scheduler/engine/engine_sizes.h"

#include <algorithm>

#include "kernels/base/checked_math.h"

namespace spillway {

namespace {

// A micro-batch is closed before it exceeds its limit, unless one prompt or chunk alone does.
int64_t batch_rows_max(const ModelShape& shape, const EngineOptions& options) {
  return std::min(options.sweep_tokens_max, std::max(options.micro_batch_tokens, shape.positions));
}

}  // namespace

// One row each, and those of drafts.
int64_t host_rows_max(const EngineOptions& options) {
  const int64_t rows = std::min(options.sweep_tokens_max, options.micro_batch_tokens);
  if (options.micro_batch_sequences == 0) return rows;
  return std::min(rows, std::max(options.micro_batch_sequences, options.draft_rows_max));
}

EngineSizes sizes_of(bool discrete, const ModelShape& shape, DType activation,
                     const EngineOptions& options) {
  EngineSizes sizes{.batch_rows = batch_rows_max(shape, options)};
  sizes.activations = {.columns = shape.hidden,
                       .sweep_rows_max = options.sweep_tokens_max,
                       .batch_rows_max = sizes.batch_rows,
                       .disk_share = options.activations_disk_share,
                       .host_share = options.activations_host_share,
                       .discrete = discrete,
                       .overlap = options.overlap};
  sizes.rotary = RotaryTable::bytes(shape, options.sweep_tokens_max);
  if (options.expand_layer) sizes.expanded = ExpandedLayer::bytes(shape, activation);
  if (discrete) {
    const auto sweep = static_cast<uint64_t>(options.sweep_tokens_max);
    sizes.selected_rows = std::min(kQueuedRows, static_cast<int64_t>(round_up(sweep, kHeadRows)));
    const LayerRange layers = options.layers.value_or(all_layers(shape));
    // A CPU adds biases without rounding them.
    sizes.rounded = RoundedBiases::bytes(shape, layers, activation);
    sizes.logits = Head::host_bytes(shape, sizes.selected_rows);
  }
  return sizes;
}

EngineBytes engine_bytes(const DeviceTraits& device, const ModelShape& shape, Format weights,
                         const EngineOptions& options) {
  const DType activation = device.activation_dtype(weights);
  const EngineSizes sizes = sizes_of(device.discrete(), shape, activation, options);
  const EngineBuffers buffers = place_engine_buffers(
      shape, activation, sizes.batch_rows, sizes.selected_rows, options.host_attention, nullptr);
  return {.buffers = buffers.bytes + sizes.expanded + sizes.rounded + sizes.rotary,
          .logits = sizes.logits,
          .rotary = device.discrete() ? sizes.rotary : 0,
          .host_attention = options.host_attention
                                ? HostAttention::bytes(shape, activation, host_rows_max(options))
                                : 0,
          .activations = activation_bytes(sizes.activations)};
}

}  // namespace spillway
