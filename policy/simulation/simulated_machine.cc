#include "policy/simulation/simulated_machine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/linear_shapes.h"

namespace spillway {

namespace {

// Weights are read from the disk in pieces, two at a time: about as much as the weight stream has
// in flight (96 MiB), so that the cache's reads wait for no more than that.
constexpr double kPieceBytes = 48 << 20;
constexpr double kPiecesMax = 16;  // Per layer and tier
constexpr size_t kPiecesUnderWay = 2;

// The cache of a micro-batch is cut so that this many parts fit its ring.
constexpr double kPartsInRing = 4;
constexpr int64_t kPartsMax = 32;

double pieces_of(double bytes) {
  return std::clamp(std::ceil(bytes / kPieceBytes), 1.0, kPiecesMax);
}

// Sums of pieces may exceed the whole by this fraction.
constexpr double kRounding = 1e-9;

double part_of(const CostedPlan& plan, uint64_t bytes, int64_t layers) {
  return static_cast<double>(bytes) * static_cast<double>(layers) /
         static_cast<double>(plan.shape.layers);
}

}  // namespace

Simulation::Task SimulatedRing::take(double bytes) {
  Simulation::Task there = Simulation::kNone;
  while (held_ + bytes > bytes_ * (1 + kRounding) && released_ > 0) {
    there = pieces_.front().released;
    held_ -= pieces_.front().bytes;
    pieces_.pop_front();
    --released_;
  }
  held_ += bytes;
  pieces_.push_back({bytes, Simulation::kNone});
  return there;
}

void SimulatedRing::release(Simulation::Task after) {
  SPILLWAY_CHECK(released_ < pieces_.size());
  pieces_[released_++].released = after;
}

SimulatedMachine::SimulatedMachine(Simulation* simulation, const std::string& prefix,
                                   const CostedPlan& plan, const MachineRates& rates,
                                   const StagingRings& rings, int64_t first, int64_t layers,
                                   int64_t blocks)
    : simulation_(*simulation),
      plan_(plan),
      rates_(rates),
      first_(first),
      layers_(layers),
      linears_(linear_shapes(plan.shape)),
      // A ring holds a slab at most once.
      weights_disk_(
          std::min(rings.weights_from_disk, part_of(plan, plan.weights_from_disk, layers))),
      weights_device_(
          std::min(rings.weights_to_device, part_of(plan, plan.weights_over_link(), layers))),
      kv_disk_(rings.kv_from_disk),
      kv_device_(rings.kv_to_device),
      rows_disk_(rings.activations_from_disk),
      rows_device_(rings.activations_to_device),
      rings_(rings),
      cache_written_back_(static_cast<size_t>(blocks), Tasks(static_cast<size_t>(layers), kNone)) {
  double layer = 0, qkv = 0;  // Elements
  for (const LinearShape& linear : linears_) {
    if (!linear.in_layer) continue;
    const auto elements = static_cast<double>(linear.outputs * linear.inputs);
    layer += elements;
    if (linear.role == WeightRole::kQkvWeight) qkv += elements;
  }
  qkv_share_ = std::min(1.0, qkv / layer);
  const auto resource = [&](Resource of) {
    return simulation_.add_resource(prefix + std::string(resource_name(of)));
  };
  processor_ = resource(Resource::kCompute);
  disk_read_ = resource(Resource::kDiskRead);
  disk_write_ = resource(Resource::kDiskWrite);
  if (!plan.discrete) return;
  up_ = resource(Resource::kHostToDevice);
  down_ = resource(Resource::kDeviceToHost);
  host_memory_ = resource(Resource::kHostMemory);
  if (plan.host_attention) host_ = resource(Resource::kHostCompute);
}

Simulation::Task SimulatedMachine::add(const char* what,
                                       std::initializer_list<Simulation::Use> uses, Tasks after) {
  if (!plan_.overlap) after.push_back(previous_);
  const Task task = simulation_.add(what, uses, after, first_ + layer_);
  previous_ = task;
  return task;
}

// The processor runs one task at a time, in program order.
Simulation::Task SimulatedMachine::compute(const char* what, double seconds, Tasks after) {
  after.push_back(last_step_);
  last_step_ = add(what, {{processor_, seconds}}, std::move(after));
  return last_step_;
}

// A DMA transfer: beside a device, staged bytes are also written to the host's memory or read from
// it.
Simulation::Task SimulatedMachine::transfer(const char* what, Simulation::Resource link,
                                            double bytes, double rate, Tasks after) {
  const double seconds = bytes / rate;
  if (!plan_.discrete || rates_.host_memory <= 0) {
    return add(what, {{link, seconds}}, std::move(after));
  }
  return add(what, {{link, seconds}, {host_memory_, bytes / rates_.host_memory}}, std::move(after));
}

SimulatedMachine::Step SimulatedMachine::step_of(const SweepWork& sweep, const MicroBatch& batch,
                                                 double share_of_layer) const {
  const ModelShape& shape = plan_.shape;
  const auto layers = static_cast<double>(shape.layers);
  const auto sequences = static_cast<double>(batch.items);
  const bool prompts = batch.first_item >= static_cast<size_t>(sweep.decoding);
  const KvTraffic kv = kv_traffic(plan_, sweep);
  Step step{};
  step.sequences = static_cast<int64_t>(batch.items);
  double tokens = sequences;
  if (prompts) {
    const double share = sequences / static_cast<double>(sweep.prompt_parts());
    tokens = share * static_cast<double>(sweep.prompt_tokens);
    step.attention = prompt_attention_seconds(shape, rates_, share * sweep.prompt_pairs);
    step.kv_sent = step.kv_down = share * kv.prompts_sent / layers;
  } else {
    const double share = sequences / static_cast<double>(sweep.decoding);
    step.kv_read = share * kv.read / layers;
    step.by_host = attended_by_host(plan_);
    step.attention = step.kv_read * (1 - step.by_host) / rates_.decode_attention;
    step.kv_sent = share * kv.steps_sent / layers;
    step.kv_down = share * kv.steps_returned / layers;
  }
  step.stream = 4 * static_cast<double>(shape.hidden) * tokens;
  const ProductSeconds products = product_seconds(linears_, rates_, batch);
  // On the CPU, a layer's weights are read from disk once for all of its micro-batches.
  const double from_disk = static_cast<double>(plan_.weights_from_disk) / layers * share_of_layer +
                           2 * step.stream * plan_.activations_on_disk;
  const double of_layer = products.layers / layers + activation_seconds(shape, rates_, tokens) +
                          small_op_seconds(shape, rates_) +
                          from_disk * rates_.compute_per_disk_byte;
  step.qkv = of_layer * qkv_share_;
  step.rest = of_layer - step.qkv;
  step.rest_of_last = step.rest - products.saved_in_last;
  step.attention += (step.kv_read + step.kv_sent) * plan_.kv_on_disk * rates_.compute_per_disk_byte;
  step.weights_memory = static_cast<double>(plan_.weight_bytes) / layers / rates_.memory;
  step.kv_memory = step.kv_read * (1 - step.by_host) / rates_.memory;
  step.kv_over_link = plan_.kv_over_link() - step.by_host;
  return step;
}

// Uploads the next layer's missing weights from their tiers; returns when all have arrived.
Simulation::Task SimulatedMachine::upload_weights() {
  const auto layers = static_cast<double>(plan_.shape.layers);
  const double disk = static_cast<double>(plan_.weights_from_disk) / layers;
  const double host = static_cast<double>(plan_.weights_on_host) / layers;
  Task last = kNone;
  weight_pieces_ = 0;
  const auto upload = [&](double bytes, Task from) {
    ++weight_pieces_;
    last_upload_ = transfer("weights", up_, bytes, rates_.to_device,
                            {from, last_upload_, weights_device_.take(bytes)});
    return last_upload_;
  };
  if (host > 0) {
    const double pieces = pieces_of(host);
    for (double i = 0; i < pieces; ++i) last = upload(host / pieces, kNone);
  }
  if (disk > 0) {
    const double pieces = pieces_of(disk), bytes = disk / pieces;
    for (double i = 0; i < pieces; ++i) {
      Tasks after = {weights_disk_.take(bytes)};
      if (weight_reads_.size() == kPiecesUnderWay) {
        after.push_back(weight_reads_.front());
        weight_reads_.pop_front();
      }
      last = transfer("weights", disk_read_, bytes, rates_.disk_read, std::move(after));
      weight_reads_.push_back(last);
      if (plan_.discrete) {
        last = upload(bytes, last);
        weights_disk_.release(last);
      } else {
        ++weight_pieces_;
      }
    }
  }
  return last;
}

void SimulatedMachine::release_weights(Task used) {
  SimulatedRing& ring = plan_.discrete ? weights_device_ : weights_disk_;
  for (; weight_pieces_ > 0; --weight_pieces_) ring.release(used);
}

// Uploads a micro-batch's activations, if they live on another tier.
Simulation::Task SimulatedMachine::upload_rows(const Step& step, size_t batch, Task begin) {
  const double disk = step.stream * plan_.activations_on_disk;
  const double away = step.stream * plan_.activations_over_link();
  Task there = rows_written_back_[batch];
  if (disk > 0) {
    there = transfer("activations", disk_read_, disk, rates_.disk_read,
                     {begin, there, rows_disk_.take(disk)});
  }
  if (away > 0) {
    there = transfer("activations", up_, away, rates_.to_device,
                     {begin, there, rows_device_.take(away)});
  }
  return there;
}

void SimulatedMachine::write_back_rows(const Step& step, size_t batch, Task done) {
  const double disk = step.stream * plan_.activations_on_disk;
  const double away = step.stream * plan_.activations_over_link();
  if (away > 0) {
    done = transfer("activations home", down_, away, rates_.to_host, {done});
    rows_device_.release(done);
  }
  if (disk > 0) {
    done = transfer("activations home", disk_write_, disk, rates_.disk_write, {done});
    rows_disk_.release(done);
  }
  rows_written_back_[batch] = done;
}

// Uploads one part of a micro-batch's cache, with space for new rows.
Simulation::Task SimulatedMachine::upload_cache(const Step& step, double parts, Task begin,
                                                Task written_back) {
  const double disk = plan_.kv_on_disk / parts;
  const double away = step.kv_over_link / parts;
  const double room = step.kv_read + step.kv_sent;
  Task there = begin;
  if (disk > 0) {
    const Tasks after = {begin, written_back, kv_disk_.take(room * disk)};
    there = step.kv_read > 0
                ? transfer("KV cache", disk_read_, step.kv_read * disk, rates_.disk_read, after)
                : add("KV cache", {}, after);
  }
  if (away > 0) {
    const Tasks after = {there, kv_device_.take(room * away)};
    there = step.kv_read > 0
                ? transfer("KV cache", up_, step.kv_read * away, rates_.to_device, after)
                : add("KV cache", {}, after);
  }
  return there;
}

void SimulatedMachine::write_back_cache(const Step& step, double parts, Task done,
                                        Task* written_back) {
  const double disk = plan_.kv_on_disk / parts;
  const double away = step.kv_over_link / parts;
  if (away > 0) {
    done = transfer("KV cache home", down_, step.kv_down * away, rates_.to_host, {done});
    kv_device_.release(done);
    last_write_back_ = done;
  }
  if (disk > 0) {
    done = transfer("KV cache home", disk_write_, step.kv_sent * disk, rates_.disk_write, {done});
    kv_disk_.release(done);
  }
  *written_back = done;
}

// Copies decode steps' queries, keys and values (float32) to the host and the outputs back.
Simulation::Task SimulatedMachine::attend_on_host(const Step& step) {
  const ModelShape& shape = plan_.shape;
  const double rows = static_cast<double>(step.sequences) * step.by_host;
  const double bytes = step.kv_read * step.by_host;
  const double output_bytes = plan_.format == Format::kF32 ? 4 : 2;
  const Task queries = transfer("queries", down_, rows * 4 * static_cast<double>(shape.qkv_width()),
                                rates_.to_host, {last_step_});
  const double reading = rates_.host_memory > 0 ? bytes / rates_.host_memory : 0;
  const Task attended =
      add("attention",
          {{host_, bytes / rates_.host_attention + rates_.round_trip}, {host_memory_, reading}},
          {queries});
  return transfer("attention by the host", up_,
                  rows * output_bytes * static_cast<double>(shape.query_width()), rates_.to_device,
                  {attended});
}

// Runs a micro-batch through a layer: matrix products up to queries, keys and values, then
// attention part by part as its cache arrives, then the other products, which may have to wait.
std::optional<SimulatedMachine::Unfinished> SimulatedMachine::run_step(const Step& step,
                                                                       size_t batch, Task begin,
                                                                       const Tasks& needed,
                                                                       Task before,
                                                                       Task* written_back) {
  const double disk = plan_.kv_on_disk;
  const double away = step.kv_over_link;
  const bool last = first_ + layer_ + 1 == plan_.shape.layers;
  const double rest = last ? step.rest_of_last : step.rest;
  if (disk + away == 0 && step.by_host == 0) {
    const double arithmetic = step.qkv + step.attention + rest;
    compute("layer", std::max(arithmetic, step.weights_memory + step.kv_memory), needed);
    return std::nullopt;
  }
  const double room = step.kv_read + step.kv_sent;
  double rings = 0;
  if (disk > 0) rings = room * disk / rings_.kv_from_disk;
  if (away > 0) rings = std::max(rings, room * away / rings_.kv_to_device);
  const auto parts =
      static_cast<double>(std::clamp(static_cast<int64_t>(std::ceil(kPartsInRing * rings)),
                                     int64_t{1}, std::min(kPartsMax, step.sequences)));
  const double rest_seconds = std::max(rest, step.weights_memory * (1 - qkv_share_));
  compute("layer", std::max(step.qkv, step.weights_memory * qkv_share_), needed);
  const Task attended = step.by_host > 0 ? attend_on_host(step) : kNone;
  for (double i = 0; i < parts; ++i) {
    const Task cache = upload_cache(step, parts, begin, before);
    const Task done =
        compute("attention", std::max(step.attention, step.kv_memory) / parts, {cache});
    write_back_cache(step, parts, done, written_back);
  }
  if (attended != kNone) return Unfinished{batch, rest_seconds, attended};
  compute("layer", rest_seconds, {});
  return std::nullopt;
}

void SimulatedMachine::finish(const Unfinished& rest, const std::vector<Step>& steps, Tasks* done) {
  (*done)[rest.batch] = compute("layer", rest.seconds, {rest.attended});
  write_back_rows(steps[rest.batch], rest.batch, last_step_);
}

std::vector<Simulation::Task> SimulatedMachine::pass(const SweepWork& sweep, int64_t block,
                                                     Task begin,
                                                     const std::vector<Task>& arrivals) {
  const std::vector<MicroBatch> batches = planned_micro_batches(plan_, sweep);
  std::vector<Step> steps;
  for (const MicroBatch& batch : batches) {
    steps.push_back(step_of(sweep, batch, 1 / static_cast<double>(batches.size())));
  }
  rows_written_back_.assign(batches.size(), kNone);
  // The engine begins a sweep when the previous one is computed and its cache has left the device.
  const Task start = simulation_.add("sweep", {}, {begin, last_step_, last_write_back_});
  Tasks done(batches.size(), kNone);
  for (layer_ = 0; layer_ < layers_; ++layer_) {
    const Task weights = upload_weights();
    Task& written_back =
        cache_written_back_[static_cast<size_t>(block)][static_cast<size_t>(layer_)];
    const Task before = written_back;  // Write-back of the previous sweep
    std::optional<Unfinished> waiting;
    for (size_t i = 0; i < batches.size(); ++i) {
      const Task arrival = layer_ == 0 && !arrivals.empty() ? arrivals[i] : kNone;
      const Task rows = upload_rows(steps[i], i, start);
      const auto rest =
          run_step(steps[i], i, start, {start, weights, rows, arrival}, before, &written_back);
      const Task reached = last_step_;
      // As in the engine, the next micro-batch starts before the previous one is finished.
      if (waiting) finish(*std::exchange(waiting, std::nullopt), steps, &done);
      if (!rest) {
        done[i] = reached;
        write_back_rows(steps[i], i, reached);
      } else if (plan_.overlap && plan_.activations_on_disk == 0) {
        waiting = rest;
      } else {
        finish(*rest, steps, &done);
      }
    }
    if (waiting) finish(*waiting, steps, &done);
    release_weights(last_step_);
  }
  layer_ = -1 - first_;  // Further tasks belong to no layer.
  return done;
}

Simulation::Task SimulatedMachine::head(const SweepWork& sweep) {
  return compute("head", head_seconds(linears_, rates_, sweep.logit_rows, plan_.head_rows), {});
}

}  // namespace spillway
