#include "scheduler/engine/engine.h"

#include <algorithm>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/clock.h"

namespace spillway {

namespace {

// Rows of logits computed at once: enough for the head's weights to be read once for a usual block
// of decoding sequences, and 13 MB for OPT's vocabulary.
constexpr int64_t kHeadRows = 64;

// Places views one after the other in one allocation; with no memory it only counts.
class Placer {
 public:
  explicit Placer(std::byte* memory) : memory_(memory) {}
  MatrixView matrix(DType dtype, int64_t rows, int64_t columns) {
    std::byte* data = take(static_cast<uint64_t>(rows * columns) * dtype_bytes(dtype));
    return dense_matrix(data, dtype, rows, columns);
  }
  std::byte* take(uint64_t bytes) {
    std::byte* data = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += round_up(bytes, 64);
    return data;
  }
  uint64_t used() const { return used_; }

 private:
  std::byte* memory_;
  uint64_t used_ = 0;
};

struct Views {
  MatrixView hidden, embedded, selected, normed, projected, logits;
  LayerBuffers buffers;
};

Views place(Placer& placer, const ModelShape& shape, DType activation,
            const EngineOptions& options) {
  const bool narrow = shape.embedding != shape.hidden;
  // A micro-batch is closed before it exceeds its limit, unless one prompt alone does.
  const int64_t batch_tokens =
      std::min(options.sweep_tokens_max, std::max(options.micro_batch_tokens, shape.positions));
  const LayerBufferSizes sizes = layer_buffer_sizes(shape, activation, batch_tokens);
  Views views;
  views.hidden = placer.matrix(DType::kF32, options.sweep_tokens_max, shape.hidden);
  // In the format that project_in reads: f32, converted like any layer input when it is not.
  views.embedded =
      placer.matrix(DType::kF32, narrow ? options.sweep_tokens_max : 0, shape.embedding);
  views.selected = placer.matrix(DType::kF32, kHeadRows, shape.hidden);
  views.normed = placer.matrix(activation, kHeadRows, shape.hidden);
  views.projected = placer.matrix(activation, narrow ? kHeadRows : 0, shape.embedding);
  views.logits = placer.matrix(DType::kF32, kHeadRows, shape.vocabulary);
  views.buffers = place_layer_buffers(sizes, activation, placer.take(sizes.total()));
  return views;
}

SweepWork work_of(std::span<const SweepItem> items, double seconds) {
  SweepWork work;
  work.seconds = seconds;
  for (const SweepItem& item : items) {
    const auto tokens = static_cast<int64_t>(item.tokens.size());
    work.tokens += tokens;
    work.logit_rows += item.no_logits ? 0 : item.all_logits ? tokens : 1;
    if (item.position == 0) {
      ++work.prompts;
      work.prompt_pairs += tokens * (tokens + 1) / 2;
    } else {
      work.cached_rows += item.position + 1;
    }
  }
  return work;
}

}  // namespace

uint64_t engine_buffer_bytes(const ModelShape& shape, DType activation,
                             const EngineOptions& options) {
  Placer placer(nullptr);
  place(placer, shape, activation, options);
  return placer.used();
}

Engine::Engine(Device& device, WeightStore& weights, const EngineOptions& options)
    : device_(device),
      weights_(weights),
      options_(options),
      stream_(device.new_stream("compute")) {}

Result<std::unique_ptr<Engine>> Engine::open(Device& device, WeightStore& weights,
                                             const EngineOptions& options) {
  SPILLWAY_CHECK(options.sweep_tokens_max > 0 && options.micro_batch_tokens > 0);
  std::unique_ptr<Engine> engine(new Engine(device, weights, options));
  SPILLWAY_RETURN_IF_ERROR(engine->allocate());
  return engine;
}

Status Engine::allocate() {
  const ModelShape& model = shape();
  const DType activation = device_.activation_dtype(weights_.format());
  SPILLWAY_ASSIGN_OR_RETURN(
      memory_, device_.allocate(Memory::kDevice, engine_buffer_bytes(model, activation, options_)));
  SPILLWAY_ASSIGN_OR_RETURN(kv_, KvCache::open(device_, kv_layout(model, options_.kv_dtype),
                                               model.layers, options_.kv_bytes));
  Placer placer(memory_.data());
  const Views views = place(placer, model, activation, options_);
  hidden_ = views.hidden;
  embedded_ = views.embedded;
  selected_ = views.selected;
  normed_ = views.normed;
  projected_ = views.projected;
  logits_ = views.logits;
  buffers_ = views.buffers;
  tokens_.reserve(static_cast<size_t>(options_.sweep_tokens_max));
  positions_.reserve(static_cast<size_t>(options_.sweep_tokens_max));
  return {};
}

Status Engine::run(std::span<const SweepItem> items, LogitsSink& sink) {
  tokens_.clear();
  positions_.clear();
  for (const SweepItem& item : items) {
    SPILLWAY_CHECK(!item.tokens.empty() && item.kv != nullptr);
    SPILLWAY_CHECK(item.position + static_cast<int64_t>(item.tokens.size()) <= shape().positions);
    for (size_t i = 0; i < item.tokens.size(); ++i) {
      tokens_.push_back(item.tokens[i]);
      positions_.push_back(
          static_cast<int32_t>(item.position + static_cast<int64_t>(i) + shape().position_offset));
    }
  }
  const auto tokens = static_cast<int64_t>(tokens_.size());
  SPILLWAY_CHECK(tokens <= options_.sweep_tokens_max);
  const double start = steady_seconds();
  plan_micro_batches(items);
  embed(items, tokens);
  SPILLWAY_RETURN_IF_ERROR(run_layers(items));
  SPILLWAY_RETURN_IF_ERROR(stream_->record().wait());
  run_head(items, sink);
  SPILLWAY_RETURN_IF_ERROR(stream_->record().wait());
  if (options_.log != nullptr) options_.log->add(work_of(items, steady_seconds() - start));
  return {};
}

void Engine::plan_micro_batches(std::span<const SweepItem> items) {
  micro_batches_.clear();
  int64_t row = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const auto tokens = static_cast<int64_t>(items[i].tokens.size());
    const bool open = !micro_batches_.empty();
    const bool full =
        open &&
        (micro_batches_.back().rows + tokens > options_.micro_batch_tokens ||
         (options_.micro_batch_sequences > 0 &&
          static_cast<int64_t>(micro_batches_.back().items) >= options_.micro_batch_sequences));
    if (!open || full) micro_batches_.push_back({i, 0, row, 0});
    ++micro_batches_.back().items;
    micro_batches_.back().rows += tokens;
    row += tokens;
  }
}

void Engine::embed(std::span<const SweepItem>, int64_t tokens) {
  const EmbeddingWeights& w = weights_.embedding();
  const MatrixView hidden = hidden_.slice_rows(0, tokens);
  if (w.project_in.rows == 0) {
    gather_rows(*stream_, {.table = w.tokens, .rows = tokens_, .out = hidden});
  } else {
    const MatrixView embedded = embedded_.slice_rows(0, tokens);
    gather_rows(*stream_, {.table = w.tokens, .rows = tokens_, .out = embedded});
    // The projection's input needs the activation format; `projected_` lends its rows for that.
    for (int64_t first = 0; first < tokens; first += kHeadRows) {
      const int64_t rows = std::min(kHeadRows, tokens - first);
      const MatrixView narrow = projected_.slice_rows(0, rows);
      convert_rows(*stream_, {.in = embedded.slice_rows(first, rows), .out = narrow});
      linear(*stream_,
             {.in = narrow, .weight = w.project_in, .out = hidden.slice_rows(first, rows)});
    }
  }
  if (w.positions.rows != 0) {
    gather_rows(*stream_,
                {.table = w.positions, .rows = positions_, .out = hidden, .accumulate = true});
  }
}

Status Engine::run_layers(std::span<const SweepItem> items) {
  for (int64_t layer = 0; layer < shape().layers; ++layer) {
    SPILLWAY_ASSIGN_OR_RETURN(const LayerWeights* weights, weights_.acquire(layer));
    for (const MicroBatch& batch : micro_batches_) {
      attention_.clear();
      int64_t row = 0;
      for (const SweepItem& item : items.subspan(batch.first_item, batch.items)) {
        const auto tokens = static_cast<int64_t>(item.tokens.size());
        attention_.push_back({row, tokens, item.position, kv_->layer(*item.kv, layer)});
        row += tokens;
      }
      run_decoder_layer(*stream_, shape(), *weights, buffers_,
                        hidden_.slice_rows(batch.first_row, batch.rows), attention_, kv_->layout());
    }
    weights_.release(layer);
  }
  return {};
}

void Engine::head_rows(std::span<const int32_t> rows) {
  const HeadWeights& w = weights_.head();
  const auto count = static_cast<int64_t>(rows.size());
  const WeightSlab slab{hidden_.data, hidden_.rows};
  const MatrixView selected = selected_.slice_rows(0, count);
  gather_rows(*stream_, {.table = {std::span(&slab, 1), DType::kF32, MatrixLayout::kRows,
                                   hidden_.rows, hidden_.columns, hidden_.rows},
                         .rows = rows,
                         .out = selected});
  MatrixView input = normed_.slice_rows(0, count);
  if (shape().final_norm) {
    normalize(*stream_, {.kind = shape().norm,
                         .epsilon = shape().norm_epsilon,
                         .in = selected,
                         .weight = w.norm_weight,
                         .bias = w.norm_bias,
                         .out = input});
  } else {
    convert_rows(*stream_, {.in = selected, .out = input});
  }
  if (w.project_out.rows != 0) {
    const MatrixView projected = projected_.slice_rows(0, count);
    linear(*stream_, {.in = input, .weight = w.project_out, .out = projected});
    input = projected;
  }
  linear(*stream_, {.in = input, .weight = w.head, .out = logits_.slice_rows(0, count)});
}

void Engine::run_head(std::span<const SweepItem> items, LogitsSink& sink) {
  struct Wanted {
    size_t item;
    int64_t token;
  };
  Wanted wanted[kHeadRows];
  int32_t rows[kHeadRows];
  size_t count = 0;
  const auto flush = [&] {
    if (count == 0) return;
    head_rows({rows, count});
    for (size_t i = 0; i < count; ++i) {
      sink.on_logits(
          wanted[i].item, wanted[i].token,
          {logits_.f32(static_cast<int64_t>(i)), static_cast<size_t>(shape().vocabulary)});
    }
    count = 0;
  };
  int64_t row = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const auto tokens = static_cast<int64_t>(items[i].tokens.size());
    const int64_t first = items[i].all_logits ? 0 : tokens - 1;
    for (int64_t t = items[i].no_logits ? tokens : first; t < tokens; ++t) {
      wanted[count] = {i, t};
      rows[count++] = static_cast<int32_t>(row + t);
      if (count == static_cast<size_t>(kHeadRows)) flush();
    }
    row += tokens;
  }
  flush();
}

}  // namespace spillway
