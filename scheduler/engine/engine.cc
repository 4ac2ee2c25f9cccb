#include "scheduler/engine/engine.h"

#include <algorithm>
#include <exception>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/clock.h"
#include "scheduler/engine/engine_sizes.h"

namespace spillway {

namespace {

// The part of the KV cache's staging for copies of the KV blocks that a step changed: enough for
// several layers of all sequences, and never taken from the bytes that a ring of two of the longest
// sequence's layers needs.
uint64_t outbox_bytes(uint64_t staging, uint64_t longest) {
  constexpr uint64_t kOutboxBytesMax = uint64_t{32} << 20;
  const uint64_t bytes = std::min(staging / 8, kOutboxBytesMax) / kIoAlignment * kIoAlignment;
  return staging - bytes >= 2 * longest ? bytes : 0;
}

void check_rules(const SweepItem& item, const ModelShape& shape) {
  SPILLWAY_CHECK(item.sample.count <= shape.vocabulary &&
                 (item.sample.count == 0 || !item.all_logits));
  const bool drafted = item.is_step() && item.tokens.size() > 1;
  SPILLWAY_CHECK(item.samples.size() == (drafted ? item.tokens.size() : 0));
  for (const SampleRule& rule : item.samples) SPILLWAY_CHECK(rule.count <= shape.vocabulary);
}

// Whether the last layer continues with the wanted rows alone. Moving a row takes two copies, which
// does not pay to leave out a few rows of many.
bool moves_wanted(size_t wanted, int64_t rows) {
  return 2 * static_cast<int64_t>(wanted) <= rows;
}

}  // namespace

Engine::Engine(Device& device, WeightStore& weights, const EngineOptions& options)
    : device_(device),
      weights_(weights),
      options_(options),
      layers_(options.layers.value_or(all_layers(weights.shape()))),
      stream_(device.new_stream("compute")),
      account_(options.log, options.trace) {
  SPILLWAY_CHECK(weights_.layers() == layers_);
  const ModelShape& model = weights_.shape();
  SPILLWAY_CHECK(model.ranks == 1
                     ? options.ranks == nullptr
                     : options.ranks != nullptr && options.ranks->size() == model.ranks &&
                           options.ranks->rank() == model.rank);
}

// Stagers wait for transfers under way before the files that they read are closed.
Engine::~Engine() {
  weights_.detach();
  if (kv_stager_) kv_stager_->abandon();  // It may read the feed's speculative uses.
  host_attention_.reset();
  kv_feed_.reset();
  kv_ring_.reset();
  kv_stager_.reset();
  aside_stager_.reset();
  activations_.reset();
}

Result<std::unique_ptr<Engine>> Engine::open(Device& device, WeightStore& weights,
                                             const EngineOptions& options, EngineScratch scratch) {
  SPILLWAY_CHECK(options.sweep_tokens_max > 0 && options.micro_batch_tokens > 0);
  SPILLWAY_CHECK(!options.observe || !device.discrete());
  std::unique_ptr<Engine> engine(new Engine(device, weights, options));
  SPILLWAY_RETURN_IF_ERROR(engine->allocate(std::move(scratch)));
  return engine;
}

Status Engine::allocate(EngineScratch scratch) {
  scratch_ = std::move(scratch);
  const ModelShape& model = shape();
  const DType activation = device_.activation_dtype(weights_.format());
  EngineSizes sizes = sizes_of(device_.discrete(), model, activation, options_);
  const auto place_buffers = [&](std::byte* memory) {
    return place_engine_buffers(model, activation, sizes.batch_rows, sizes.selected_rows,
                                options_.host_attention, memory);
  };
  SPILLWAY_CHECK(!options_.expand_layer || is_quantized(weights_.format()));
  const uint64_t layers = sizes.expanded + sizes.rounded + sizes.rotary;
  SPILLWAY_ASSIGN_OR_RETURN(
      memory_, device_.allocate(Memory::kDevice, layers + place_buffers(nullptr).bytes));
  std::byte* memory = memory_.data();
  if (sizes.expanded > 0) expanded_.emplace(memory, activation);
  if (sizes.rounded > 0) rounded_.emplace(memory + sizes.expanded, model, layers_, activation);
  SPILLWAY_ASSIGN_OR_RETURN(
      Buffer rotary, device_.allocate(Memory::kPinned, device_.discrete() ? sizes.rotary : 0));
  rotary_.emplace(*stream_, model, memory + sizes.expanded + sizes.rounded, std::move(rotary));
  buffers_ = place_buffers(memory + layers);
  for (LayerBuffers& buffers : buffers_.layers) buffers.ranks = options_.ranks;
  SPILLWAY_ASSIGN_OR_RETURN(Buffer logits, device_.allocate(Memory::kPinned, sizes.logits));
  head_.emplace(*stream_, model, buffers_, std::move(logits), options_.ranks);
  const KvCacheOptions kv{.layout = kv_layout(model, options_.kv_format),
                          .layers = layers_,
                          .memory_bytes = options_.kv_bytes,
                          .disk_bytes = options_.kv_disk_bytes,
                          .aside_bytes = options_.kv_aside_bytes,
                          .staging_bytes = options_.kv_staging_bytes,
                          .host_bytes = options_.kv_host_bytes,
                          .device_staging_bytes = options_.kv_ring_bytes,
                          .window = model.sliding_window,
                          .windowed = model.sliding_layers};
  SPILLWAY_ASSIGN_OR_RETURN(kv_, KvCache::open(device_, kv));
  if (options_.prefault_memory) {
    device_.prefault(memory_);
    kv_->prefault(device_);
  }
  if (options_.kv_disk_bytes > 0) {
    SPILLWAY_CHECK(scratch_.transfers != nullptr);
    SPILLWAY_ASSIGN_OR_RETURN(
        Buffer staging,
        device_.allocate(Memory::kPinned, round_up(options_.kv_staging_bytes, kIoAlignment)));
    const uint64_t outbox = outbox_bytes(
        staging.bytes(), kv_->staged_layer_bytes(model.positions, {}, model.positions));
    kv_stager_.emplace(*scratch_.transfers, scratch_.kv, std::move(staging), options_.overlap,
                       outbox);
  }
  if (options_.kv_aside_bytes > 0) {
    SPILLWAY_CHECK(scratch_.transfers != nullptr);
    SPILLWAY_ASSIGN_OR_RETURN(Buffer staging,
                              device_.allocate(Memory::kPinned, kAsideStagingBytes));
    aside_stager_.emplace(*scratch_.transfers, scratch_.kv, std::move(staging), options_.overlap);
  }
  kv_mover_.emplace(device_, *stream_, *kv_, kv_stager_ ? &*kv_stager_ : nullptr,
                    aside_stager_ ? &*aside_stager_ : nullptr);
  weights_.attach(*stream_);
  SPILLWAY_RETURN_IF_ERROR(allocate_rings());
  kv_feed_.emplace(*kv_, kv_stager_ ? &*kv_stager_ : nullptr, kv_ring_ ? &*kv_ring_ : nullptr,
                   options_.host_attention, options_.trace);
  if (options_.host_attention) {
    SPILLWAY_CHECK(options_.host != nullptr);
    SPILLWAY_ASSIGN_OR_RETURN(
        host_attention_, HostAttention::open(device_, *stream_, *options_.host, model, activation,
                                             host_rows_max(options_), options_.trace));
  }
  sizes.activations.transfers = scratch_.transfers;
  SPILLWAY_ASSIGN_OR_RETURN(
      activations_,
      ActivationStore::open(device_, *stream_, sizes.activations, &scratch_.activations));
  tokens_.reserve(static_cast<size_t>(options_.sweep_tokens_max));
  positions_.reserve(static_cast<size_t>(options_.sweep_tokens_max));
  account_.start_from(transfer_totals());
  return {};
}

// Allocates the staging ring through which KV layers of other tiers reach a discrete device. The
// CPU has none.
Status Engine::allocate_rings() {
  if (!device_.discrete() || options_.kv_host_bytes + options_.kv_disk_bytes == 0) return {};
  SPILLWAY_ASSIGN_OR_RETURN(
      kv_ring_memory_,
      device_.allocate(Memory::kDevice, round_up(options_.kv_ring_bytes, kIoAlignment)));
  kv_ring_.emplace(device_, *stream_, std::span(kv_ring_memory_.data(), kv_ring_memory_.bytes()),
                   "KV cache");
  return {};
}

// Copies device bytes to host memory. Blocks until the copy and all work queued so far are done.
Status Engine::to_host(std::byte* to, const std::byte* from, size_t bytes) {
  stream_->copy(to, from, bytes);
  return stream_->record().wait();
}

void Engine::release(std::unique_ptr<KvSequence> sequence) {
  // Its range may be reused at once, and it may be among the speculative prefetches.
  if (kv_stager_) kv_stager_->forget(sequence.get());
  if (aside_stager_) aside_stager_->forget(sequence.get());
  kv_->release(std::move(sequence));
}

Status Engine::read_kv(KvSequence& sequence, int64_t layer, int64_t positions,
                       std::vector<std::byte>* state, std::vector<std::byte>* rows) {
  return kv_mover_->read(sequence, layer, positions, state, rows);
}

// Moves a sequence's cache to `place`, and releases what it leaves, or `place` after an error.
Status Engine::move_kv(std::unique_ptr<KvSequence>* sequence, std::unique_ptr<KvSequence> place,
                       int64_t positions) {
  Status moved;
  try {
    moved = kv_mover_->move(**sequence, *place, positions);
  } catch (const std::exception& error) {
    moved = Status(Code::kCapacity, std::string("moving a KV cache failed: ") + error.what());
  }
  if (moved.ok()) std::swap(*sequence, place);
  release(std::move(place));
  return moved;
}

Status Engine::set_aside(std::unique_ptr<KvSequence>* sequence, int64_t positions) {
  SPILLWAY_ASSIGN_OR_RETURN(auto aside, kv_->reserve_aside(**sequence, positions));
  return move_kv(sequence, std::move(aside), positions);
}

Status Engine::bring_back(std::unique_ptr<KvSequence>* sequence, const KvBudget& budget,
                          const KvChunks& chunks, int64_t positions,
                          std::span<const KvPages* const> beginning, const KvVacant& vacant) {
  const int64_t now = std::max((*sequence)->chunked_prompt, positions + 1);
  SPILLWAY_ASSIGN_OR_RETURN(
      auto back, kv_->reserve((*sequence)->rows, budget, chunks, std::min(now, (*sequence)->rows),
                              beginning, vacant));
  return move_kv(sequence, std::move(back), positions);
}

Status Engine::run(std::span<const SweepItem> items, LogitsSink& sink, StageRows rows) {
  // After a sweep that ends early, by an error or an exception, nothing stays under way, and
  // no other rank waits.
  struct Cleanup {
    ~Cleanup() {
      if (engine != nullptr) engine->abandon();
    }
    Engine* engine;
  } cleanup{this};
  tokens_.clear();
  positions_.clear();
  for (const SweepItem& item : items) {
    SPILLWAY_CHECK(!item.tokens.empty() && item.kv != nullptr);
    SPILLWAY_CHECK(item.position + static_cast<int64_t>(item.tokens.size()) <= shape().positions);
    check_rules(item, shape());
    for (size_t i = 0; i < item.tokens.size(); ++i) {
      tokens_.push_back(item.tokens[i]);
      positions_.push_back(
          static_cast<int32_t>(item.position + static_cast<int64_t>(i) + shape().position_offset));
    }
  }
  const int64_t tokens = account_.begin(items);
  SPILLWAY_CHECK(tokens <= options_.sweep_tokens_max);
  const auto numbers = static_cast<size_t>(tokens * shape().hidden);
  const bool follows = shape().rank > 0;
  SPILLWAY_CHECK(rows.in.size() == (follows || layers_.embeds(shape()) ? 0 : numbers));
  SPILLWAY_CHECK(rows.out.size() == (follows || layers_.has_head(shape()) ? 0 : numbers));
  SPILLWAY_CHECK((options_.ranks != nullptr) == (rows.peers != nullptr));
  others_failures_.clear();
  const double start = steady_seconds();
  plan_micro_batches(items);
  rotary_->fill(items);
  SPILLWAY_RETURN_IF_ERROR(sweep(items, sink, rows));
  SPILLWAY_RETURN_IF_ERROR(kv_feed_->end_sweep());
  SPILLWAY_RETURN_IF_ERROR(activations_->end_sweep());
  cleanup.engine = nullptr;
  account_.finish(steady_seconds() - start, transfer_totals(), weights_.placement().disk_bytes,
                  kv_feed_->wait_seconds());
  for (size_t i = 0; i < items.size(); ++i) {
    if (!failure(i).ok()) sink.on_failure(i, failure(i));
  }
  return {};
}

// Of an item, here or on another rank.
const Status& Engine::failure(size_t item) const {
  for (const auto& [other, status] : others_failures_) {
    if (other == item) return status;
  }
  return kv_feed_->failure(item);
}

void Engine::abandon() {
  if (options_.ranks != nullptr) options_.ranks->leave();  // They wait for this one.
  begun_.reset();
  if (host_attention_) host_attention_->abandon();
  if (rounded_) rounded_->forget();
  weights_.restart();
  kv_feed_->abandon();
  activations_->abandon();
}

TransferTotals Engine::transfer_totals() const {
  TransferTotals now{.disk_read = activations_->bytes_read(),
                     .disk_written = activations_->bytes_written(),
                     .to_device = activations_->h2d_bytes() + weights_.h2d_bytes(),
                     .to_host = activations_->d2h_bytes(),
                     .activations_room_seconds = activations_->room_wait_seconds()};
  if (kv_ring_) {
    now.to_device += kv_ring_->h2d_bytes();
    now.to_host += kv_ring_->d2h_bytes();
  }
  if (host_attention_) {
    now.to_device += host_attention_->bytes_up();
    now.to_host += host_attention_->bytes_down();
    now.attended_by_host = host_attention_->bytes_attended();
  }
  if (kv_stager_) {
    now.disk_read += kv_stager_->bytes_read();
    now.disk_written += kv_stager_->bytes_written();
    now.kv_room_seconds = kv_stager_->room_wait_seconds();
  }
  return now;
}

LinkTable Engine::links() const {
  LinkTable links;
  const auto disk = [&](IoRequest::Kind direction) -> LinkTotals {
    if (scratch_.transfers == nullptr) return {0, 0.0};  // Nothing lives on disk.
    const LinkUse use = scratch_.transfers->use(direction);
    return {use.bytes, use.busy_seconds};
  };
  links[static_cast<size_t>(Link::kDiskToHost)] = disk(IoRequest::Kind::kRead);
  links[static_cast<size_t>(Link::kHostToDisk)] = disk(IoRequest::Kind::kWrite);
  if (!device_.discrete()) return links;
  const TransferTotals now = transfer_totals();
  links[static_cast<size_t>(Link::kHostToDevice)] = LinkTotals{now.to_device, {}};
  links[static_cast<size_t>(Link::kDeviceToHost)] = LinkTotals{now.to_host, {}};
  return links;
}

void Engine::plan_micro_batches(std::span<const SweepItem> items) {
  micro_batches_.clear();
  const MicroBatchLimits limits{options_.micro_batch_tokens, options_.micro_batch_sequences};
  for (const SweepItem& item : items) {
    add_to_micro_batches(1, static_cast<int64_t>(item.tokens.size()), limits, &micro_batches_);
  }
  batch_rows_.clear();
  first_rows_.clear();
  int64_t first = 0;
  for (const MicroBatch& batch : micro_batches_) {
    batch_rows_.push_back(batch.rows);
    first_rows_.push_back(first);
    first += batch.rows;
  }
}

Result<MatrixView> Engine::acquire_activations() {
  return account_.wait("wait for activations", &LoggedSweep::activations_wait_seconds,
                       [&] { return activations_->acquire(); });
}

Status Engine::sweep(std::span<const SweepItem> items, LogitsSink& sink, const StageRows& rows) {
  // One pass for the embeddings (or what stands for them), one for each layer, one for the head.
  activations_->begin(batch_rows_, layers_.count + 2);
  kv_feed_->begin_sweep(items, micro_batches_);
  if (layers_.embeds(shape())) {
    SPILLWAY_RETURN_IF_ERROR(embed());
  } else {
    SPILLWAY_RETURN_IF_ERROR(shape().rank > 0 ? take_shared() : take_in(rows.in));
  }
  SPILLWAY_RETURN_IF_ERROR(run_layers(items));
  if (rows.peers != nullptr) SPILLWAY_RETURN_IF_ERROR(meet(items.size(), *rows.peers));
  const bool head = layers_.has_head(shape());
  if (shape().rank > 0) return follow_end(head ? rows.peers : nullptr);
  return head ? run_head(items, sink, rows.peers) : hand_on(rows.out);
}

// Learns which items have failed on other ranks, before any of their tokens is passed on.
Status Engine::meet(size_t items, RankPeers& peers) {
  ItemFailures own;
  for (size_t i = 0; i < items; ++i) {
    if (!kv_feed_->failure(i).ok()) own.emplace_back(i, kv_feed_->failure(i));
  }
  SPILLWAY_ASSIGN_OR_RETURN(others_failures_, peers.meet(own));
  return {};
}

// Uploads the residual stream that the previous layers' engine computed.
Status Engine::take_in(std::span<const float> rows) {
  const auto* from = reinterpret_cast<const std::byte*>(rows.data());
  for (const MicroBatch& batch : micro_batches_) {
    SPILLWAY_ASSIGN_OR_RETURN(const MatrixView hidden, acquire_activations());
    const size_t bytes = static_cast<size_t>(batch.rows * shape().hidden) * sizeof(float);
    stream_->copy(hidden.data, from, bytes);
    SPILLWAY_RETURN_IF_ERROR(share(hidden));
    from += bytes;
    activations_->release(true);
  }
  return {};
}

// Gets the rows that the first rank embeds, or has of the previous layers' engine.
Status Engine::take_shared() {
  for (size_t i = 0; i < micro_batches_.size(); ++i) {
    SPILLWAY_ASSIGN_OR_RETURN(const MatrixView hidden, acquire_activations());
    SPILLWAY_RETURN_IF_ERROR(share(hidden));
    activations_->release(true);
  }
  return {};
}

// The first rank's rows are all ranks'.
Status Engine::share(const MatrixView& hidden) {
  if (options_.ranks == nullptr) return {};
  const size_t bytes = static_cast<size_t>(hidden.rows * hidden.columns) * sizeof(float);
  return options_.ranks->broadcast(*stream_, hidden.data, bytes, 0);
}

// The last pass of a rank other than the first, which needs no rows, and its part of the logits,
// with the peers that they are for; null: the head is another engine's.
Status Engine::follow_end(RankPeers* peers) {
  for (size_t i = 0; i < micro_batches_.size(); ++i) {
    SPILLWAY_RETURN_IF_ERROR(acquire_activations().status());
    activations_->release(false);
  }
  if (peers == nullptr) return stream_->record().wait();
  SPILLWAY_ASSIGN_OR_RETURN(const LayerWeights* weights, acquire_head());
  SPILLWAY_RETURN_IF_ERROR(head_->follow(*weights, *peers));
  weights_.release_head();
  return stream_->record().wait();
}

Result<const LayerWeights*> Engine::acquire_head() {
  return account_.wait("wait for the head", &LoggedSweep::weights_wait_seconds,
                       [&] { return weights_.acquire_head(); });
}

Status Engine::hand_on(std::span<float> rows) {
  auto* to = reinterpret_cast<std::byte*>(rows.data());
  for (const MicroBatch& batch : micro_batches_) {
    SPILLWAY_ASSIGN_OR_RETURN(const MatrixView hidden, acquire_activations());
    const size_t bytes = static_cast<size_t>(batch.rows * shape().hidden) * sizeof(float);
    stream_->copy(to, hidden.data, bytes);
    to += bytes;
    activations_->release(false);
  }
  return stream_->record().wait();
}

Status Engine::embed() {
  SPILLWAY_ASSIGN_OR_RETURN(const LayerWeights* weights,
                            account_.wait("wait for embeddings", &LoggedSweep::weights_wait_seconds,
                                          [&] { return weights_.acquire_embedding(); }));
  size_t row = 0;
  for (const MicroBatch& batch : micro_batches_) {
    SPILLWAY_ASSIGN_OR_RETURN(const MatrixView hidden, acquire_activations());
    const auto rows = static_cast<size_t>(batch.rows);
    embed_rows(*weights, std::span(tokens_).subspan(row, rows),
               std::span(positions_).subspan(row, rows), hidden);
    SPILLWAY_RETURN_IF_ERROR(share(hidden));
    row += rows;
    activations_->release(true);
  }
  weights_.release_embedding();
  return {};
}

void Engine::embed_rows(const LayerWeights& weights, std::span<const int32_t> tokens,
                        std::span<const int32_t> positions, const MatrixView& hidden) {
  const WeightMatrix& table = weights.matrix(WeightRole::kTokenEmbedding);
  const WeightMatrix& project_in = weights.matrix(WeightRole::kProjectIn);
  const WeightMatrix& position_table = weights.matrix(WeightRole::kPositionEmbedding);
  if (project_in.rows == 0) {
    gather_rows(*stream_,
                {.table = table, .rows = tokens, .scale = shape().embedding_scale, .out = hidden});
  } else {
    const MatrixView embedded = buffers_.embedded.slice_rows(0, hidden.rows);
    gather_rows(
        *stream_,
        {.table = table, .rows = tokens, .scale = shape().embedding_scale, .out = embedded});
    // The projection's input needs the activation format; `projected` lends its rows for that.
    for (int64_t first = 0; first < hidden.rows; first += kHeadRows) {
      const int64_t rows = std::min(kHeadRows, hidden.rows - first);
      const MatrixView narrow = buffers_.projected.slice_rows(0, rows);
      convert_rows(*stream_, {.in = embedded.slice_rows(first, rows), .out = narrow});
      linear(*stream_, {.in = narrow, .weight = project_in, .out = hidden.slice_rows(first, rows)});
    }
  }
  if (position_table.rows != 0) {
    gather_rows(*stream_,
                {.table = position_table, .rows = positions, .out = hidden, .accumulate = true});
  }
}

Status Engine::run_layers(std::span<const SweepItem> items) {
  const bool expand = expanded_ && expands_again(micro_batches_);
  for (int64_t layer = layers_.first; layer < layers_.end(); ++layer) {
    SPILLWAY_ASSIGN_OR_RETURN(const LayerWeights* weights,
                              account_.wait("wait for weights", &LoggedSweep::weights_wait_seconds,
                                            [&] { return weights_.acquire(layer); }));
    if (expand) weights = &expanded_->expand(*stream_, *weights);
    if (rounded_) weights = &rounded_->round(*stream_, layer, *weights);
    for (size_t i = 0; i < micro_batches_.size(); ++i) {
      SPILLWAY_RETURN_IF_ERROR(run_layer(items, layer, *weights, i));
    }
    SPILLWAY_RETURN_IF_ERROR(finish_layer(items, *weights));
    weights_.release(layer);
  }
  return {};  // No wait here: the head is queued behind the layers.
}

// Runs a layer on one micro-batch. CPU attention is finished after the next micro-batch has begun,
// so that the device has work meanwhile.
Status Engine::run_layer(std::span<const SweepItem> items, int64_t layer,
                         const LayerWeights& weights, size_t index) {
  SPILLWAY_ASSIGN_OR_RETURN(const MatrixView hidden, acquire_activations());
  weights_.upload_ahead();  // Slabs may have arrived from disk.
  const LayerBuffers& buffers = buffers_.layers[index % 2];
  kv_feed_->begin(layer, micro_batches_[index]);
  begin_decoder_layer(*stream_, shape(), weights, buffers, hidden,
                      rotary_->rows(layer, first_rows_[index], hidden.rows), *kv_feed_,
                      kv_->layout(), shape().window(layer), observer_of(layer));
  const std::span<const AttentionItem> host_items = kv_feed_->host_items();
  if (!host_items.empty()) {
    host_attention_->begin(host_items, qkv_rows(shape(), buffers, hidden.rows));
  }
  SPILLWAY_RETURN_IF_ERROR(finish_layer(items, weights));
  begun_ = {hidden, &buffers, layer, index, !host_items.empty()};
  // Activations on disk are acquired one micro-batch at a time.
  const bool wait = begun_->on_host && options_.overlap && options_.activations_disk_share == 0;
  return wait ? Status() : finish_layer(items, weights);
}

InputObserver Engine::observer_of(int64_t layer) const {
  if (!options_.observe) return {};
  return [this, layer](WeightRole weight, const ConstMatrixView& in) {
    options_.observe(layer, weight, in);
  };
}

// Finishes the layer for the micro-batch that has begun it, if any. After the last layer's
// attention only rows that the head reads continue: mostly one of each prompt.
Status Engine::finish_layer(std::span<const SweepItem> items, const LayerWeights& weights) {
  if (!begun_) return {};
  const Begun begun = *std::exchange(begun_, std::nullopt);
  if (begun.on_host) {
    const MatrixView attended = attended_rows(shape(), *begun.buffers, begun.hidden.rows);
    SPILLWAY_RETURN_IF_ERROR(host_attention_->finish(kv_->layout(), attended));
  }
  MatrixView hidden = begun.hidden;
  if (begun.layer + 1 == shape().layers) {
    find_wanted(items, micro_batches_[begun.index]);
    if (moves_wanted(batch_wanted_.size(), hidden.rows)) {
      kept_rows_.clear();
      for (const WantedRow& wanted : batch_wanted_) kept_rows_.push_back(wanted.batch_row);
      hidden = keep_rows(*stream_, shape(), *begun.buffers, hidden, kept_rows_);
    }
  }
  if (hidden.rows > 0) {
    SPILLWAY_RETURN_IF_ERROR(finish_decoder_layer(*stream_, shape(), weights, *begun.buffers,
                                                  hidden, observer_of(begun.layer)));
  }
  activations_->release(true);
  return {};
}

// Sets batch_wanted_ to all wanted rows of the micro-batch, in order, including items whose cache
// failed.
void Engine::find_wanted(std::span<const SweepItem> items, const MicroBatch& batch) {
  batch_wanted_.clear();
  int64_t first = 0;  // The item's first row in the micro-batch
  for (size_t i = batch.first_item; i < batch.first_item + batch.items; ++i) {
    const auto tokens = static_cast<int64_t>(items[i].tokens.size());
    for (int64_t t = items[i].first_logits(); t < tokens; ++t) {
      const auto row = static_cast<int32_t>(first + t);
      batch_wanted_.push_back({i, t, row, row, items[i].rule(t)});
    }
    first += tokens;
  }
  if (!moves_wanted(batch_wanted_.size(), batch.rows)) return;
  for (size_t i = 0; i < batch_wanted_.size(); ++i) batch_wanted_[i].row = static_cast<int32_t>(i);
}

Status Engine::run_head(std::span<const SweepItem> items, LogitsSink& sink, RankPeers* peers) {
  SPILLWAY_ASSIGN_OR_RETURN(const LayerWeights* weights, acquire_head());
  head_->begin(*weights, sink, peers);
  bool waits = false;  // Whether delivering logits waited for the layers' work and errors
  for (const MicroBatch& batch : micro_batches_) {
    SPILLWAY_ASSIGN_OR_RETURN(const MatrixView hidden, acquire_activations());
    find_wanted(items, batch);
    std::erase_if(batch_wanted_,
                  [&](const WantedRow& wanted) { return !failure(wanted.item).ok(); });
    waits = waits || !batch_wanted_.empty();
    SPILLWAY_RETURN_IF_ERROR(head_->select(hidden, batch_wanted_));
    activations_->release(false);
  }
  SPILLWAY_RETURN_IF_ERROR(head_->finish());
  weights_.release_head();
  return waits ? Status() : stream_->record().wait();
}

}  // namespace spillway
