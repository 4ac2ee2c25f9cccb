#include "policy/flexgen/flexgen_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/base/units.h"
#include "policy/linear_program.h"

namespace spillway {

namespace {

constexpr int64_t kTokensMax = int64_t{1} << 20;
constexpr double kHostAttentionFloor = 0.1;  // Fraction of its full rate
constexpr double kDiskRateDecode = 0.95;     // Fraction of its rate in prefill, for weights
constexpr double kSnap = 1e-9;               // A share this close to 0 or 1 is 0 or 1

// A number that is linear in the nine shares of weights, cache and hidden on each tier.
struct Form {
  double constant = 0;
  std::array<double, 9> of{};

  Form operator+(const Form& other) const {
    Form sum = *this;
    sum.constant += other.constant;
    for (size_t i = 0; i < of.size(); ++i) sum.of[i] += other.of[i];
    return sum;
  }
  Form operator*(double factor) const {
    Form product = *this;
    product.constant *= factor;
    for (double& coefficient : product.of) coefficient *= factor;
    return product;
  }
  Form operator/(double divisor) const { return *this * (1 / divisor); }

  double at(const std::array<double, 9>& shares) const {
    double sum = constant;
    for (size_t i = 0; i < of.size(); ++i) sum += of[i] * shares[i];
    return sum;
  }
  // The minimum over all placements
  double least() const {
    return constant + std::min({of[0], of[1], of[2]}) + std::min({of[3], of[4], of[5]}) +
           std::min({of[6], of[7], of[8]});
  }
  double most() const {
    return constant + std::max({of[0], of[1], of[2]}) + std::max({of[3], of[4], of[5]}) +
           std::max({of[6], of[7], of[8]});
  }
};

Form fixed(double constant) {
  return {constant, {}};
}

// The shares of one kind of data.
struct KindForms {
  explicit KindForms(size_t first) {
    device.of[first] = host.of[first + 1] = disk.of[first + 2] = 1;
    away = host + disk;
  }
  Form device, host, disk;
  Form away;  // The share that is not on the device
};

struct StepForms {
  Form host_to_device, device_to_host, disk_to_host, host_to_disk, device_compute, host_compute;
  std::vector<Form> paths;  // The step takes as long as the longest
};

// All quantities of one block of one problem that do not depend on the placement.
class Model {
 public:
  Model(const FlexgenProblem& problem, const FlexgenBlock& block)
      : hardware_(problem.hardware),
        layers_(static_cast<double>(problem.shape.layers)),
        hidden_(static_cast<double>(problem.shape.hidden)),
        heads_(static_cast<double>(problem.shape.heads)),
        mlp_(static_cast<double>(problem.shape.mlp)),
        prompt_(static_cast<double>(problem.prompt_tokens)),
        new_(static_cast<double>(problem.new_tokens)),
        micro_(static_cast<double>(block.micro_batch)),
        sequences_(micro_ * static_cast<double>(block.micro_batches)),
        matrix_(4 * hidden_ * hidden_ + 2 * hidden_ * mlp_),
        layer_bytes_(2 * matrix_ / (problem.compressed_weights ? 4 : 1)) {
    set_prefill();
    set_decode();
    set_device_peaks();
    set_other_peaks();
  }

  double prefill_steps() const { return layers_; }
  double decode_steps() const { return layers_ * (new_ - 1); }
  double sequences() const { return sequences_; }
  double new_tokens() const { return new_; }

  StepForms prefill, decode;
  Form device_prefill, device_decode, host_prefill, host_decode, disk;  // Peaks in bytes

 private:
  void set_prefill() {
    const double activations = 2 * prompt_ * hidden_ * sequences_;
    const double cache = 4 * (prompt_ + 1) * hidden_ * sequences_;
    StepForms& p = prefill;
    p.host_to_device =
        (weights_.away * layer_bytes_ + acts_.away * activations) / hardware_.host_to_device;
    p.device_to_host = cache_.away * (cache / hardware_.device_to_host_cache) +
                       acts_.away * (activations / hardware_.device_to_host_hidden);
    p.disk_to_host =
        (weights_.disk * layer_bytes_ + acts_.disk * activations) / hardware_.disk_to_host;
    p.host_to_disk = cache_.disk * (cache / hardware_.host_to_disk_prefill_cache) +
                     acts_.disk * (activations / hardware_.host_to_disk_prefill_hidden);
    p.device_compute =
        fixed(sequences_ * (2 * prompt_ * matrix_ / hardware_.prefill_matrix +
                            4 * prompt_ * prompt_ * hidden_ / hardware_.prefill_attention));
    p.paths = {p.host_to_device + p.disk_to_host, p.device_to_host + p.host_to_disk,
               p.device_compute};
  }

  void set_decode() {
    const double activations = 2 * hidden_ * sequences_;
    const double row = 4 * hidden_ * sequences_;
    // The mean over decode (halfway through). Also the FLOP of attention: two matrix products, as
    // there are two rows of two bytes.
    const double cache = row * (prompt_ + new_ / 2);
    StepForms& d = decode;
    d.host_to_device =
        (weights_.away * layer_bytes_ + acts_.away * activations) / hardware_.host_to_device;
    d.device_to_host = acts_.away * (activations / hardware_.device_to_host_hidden);
    d.disk_to_host = (cache_.disk * cache + acts_.disk * activations +
                      weights_.disk * (layer_bytes_ / kDiskRateDecode)) /
                     hardware_.disk_to_host;
    d.host_to_disk = (cache_.disk * row + acts_.disk * activations) / hardware_.host_to_disk_decode;
    d.device_compute = fixed(sequences_ * 2 * matrix_ / hardware_.decode_matrix) +
                       cache_.device * (cache / hardware_.decode_attention);
    d.host_compute = cache_.away * (cache / host_attention_rate());
    for (const Form& other :
         {d.device_to_host, d.disk_to_host, d.host_to_disk, d.device_compute + d.host_compute}) {
      d.paths.push_back(d.host_to_device + other);
    }
  }

  double host_attention_rate() const {
    const double micro_halvings = std::max(0.0, std::log2(64 / micro_));
    const double hidden_halvings = std::max(0.0, std::log2(4096 / hidden_));
    const double share = 1 + hardware_.gain_per_both_halved * micro_halvings * hidden_halvings -
                         hardware_.loss_per_halved_micro_batch * micro_halvings -
                         hardware_.loss_per_halved_hidden * hidden_halvings;
    return hardware_.host_attention * std::max(kHostAttentionFloor, share);
  }

  // Bytes that live on the device, bytes staged there (two layers of weights, one micro-batch's
  // activations), and every intermediate of one micro-batch as if all were alive at once.
  void set_device_peaks() {
    const double positions = prompt_ + new_;
    const Form living = weights_.device * (layer_bytes_ * layers_) +
                        cache_.device * (4 * positions * hidden_ * sequences_ * layers_);
    const Form passing = weights_.away * (2 * layer_bytes_);

    device_prefill = living + passing + acts_.device * (2 * prompt_ * hidden_ * sequences_) +
                     acts_.away * (2 * prompt_ * hidden_ * micro_) +
                     fixed(micro_ * prompt_ * (18 * hidden_ + 2 * heads_ * prompt_ + 2 * mlp_));

    const double attended = 4 * hidden_ + 4 * positions * hidden_ + 2 * heads_ * positions;
    device_decode = living + passing + acts_.device * (2 * hidden_ * sequences_) +
                    acts_.away * (2 * hidden_ * micro_) +
                    cache_.device * (micro_ * (4 * positions * hidden_ + attended)) +
                    fixed(micro_ * (14 * hidden_ + 2 * mlp_));
  }

  void set_other_peaks() {
    const double positions = prompt_ + new_;
    const double row = 4 * hidden_ * sequences_ * layers_;  // One position, whole block
    const Form weights = weights_.host * (layer_bytes_ * layers_);
    host_prefill = weights + acts_.host * (2 * prompt_ * hidden_ * sequences_) +
                   cache_.host * (row * prompt_) + weights_.away * layer_bytes_ +
                   acts_.away * (2 * prompt_ * hidden_ * micro_);
    host_decode = weights + acts_.host * (2 * hidden_ * sequences_) +
                  cache_.host * (row * positions) + weights_.disk * layer_bytes_ +
                  acts_.disk * (4 * hidden_ * micro_) +
                  cache_.disk * (8 * positions * hidden_ * micro_) +
                  fixed(micro_ * (2 * heads_ * positions + 2 * hidden_));
    disk = weights_.disk * (layer_bytes_ * layers_) +
           acts_.disk * (2 * prompt_ * hidden_ * sequences_) + cache_.disk * (row * positions);
  }

  const FlexgenHardware& hardware_;
  const double layers_, hidden_, heads_, mlp_, prompt_, new_, micro_, sequences_;
  const double matrix_;       // Weights of a layer
  const double layer_bytes_;  // Bytes of a layer's weights
  const KindForms weights_{0}, cache_{3}, acts_{6};
};

FlexgenCost::Step step_of(const StepForms& forms, const std::array<double, 9>& shares) {
  FlexgenCost::Step step;
  step.host_to_device = forms.host_to_device.at(shares);
  step.device_to_host = forms.device_to_host.at(shares);
  step.disk_to_host = forms.disk_to_host.at(shares);
  step.host_to_disk = forms.host_to_disk.at(shares);
  step.device_compute = forms.device_compute.at(shares);
  step.host_compute = forms.host_compute.at(shares);
  for (const Form& path : forms.paths) step.seconds = std::max(step.seconds, path.at(shares));
  return step;
}

FlexgenCost cost_of(const Model& model, const FlexgenPlacement& placement) {
  const auto& [w, c, h] = placement;
  const std::array<double, 9> shares = {w.device, w.host,   w.disk, c.device, c.host,
                                        c.disk,   h.device, h.host, h.disk};
  FlexgenCost cost;
  cost.prefill = step_of(model.prefill, shares);
  cost.decode = step_of(model.decode, shares);
  cost.prefill_seconds = cost.prefill.seconds * model.prefill_steps();
  cost.decode_seconds = cost.decode.seconds * model.decode_steps();
  cost.total_seconds = cost.prefill_seconds + cost.decode_seconds;
  cost.tokens_per_second = model.sequences() * model.new_tokens() / cost.total_seconds;
  const double disk = model.disk.at(shares);
  cost.prefill_peak_bytes = {model.device_prefill.at(shares), model.host_prefill.at(shares), disk};
  cost.decode_peak_bytes = {model.device_decode.at(shares), model.host_decode.at(shares), disk};
  return cost;
}

// The linear program over the shares and the two steps' times.
class PlacementProgram {
 public:
  PlacementProgram(const Model& model, const FlexgenPins& pins) {
    add_kind(pins.weights, 1);
    add_kind(pins.cache, 1);
    add_kind(pins.hidden, 0);  // FlexGen cannot run with hidden on disk
    // Times are in units of their least possible value, so that they are near 1 for any model.
    const double prefill = unit(model.prefill), decode = unit(model.decode);
    const double whole = prefill * model.prefill_steps() + decode * model.decode_steps();
    add_step(model.prefill, prefill, prefill * model.prefill_steps() / whole);
    add_step(model.decode, decode, decode * model.decode_steps() / whole);
  }

  void add_limit(const Form& peak, double bytes) {
    const double most = peak.most();
    if (most > bytes) add_row(peak / most, {}, bytes / most);
  }

  // Nothing if no placement fits.
  Result<std::optional<FlexgenPlacement>> solve() const {
    SPILLWAY_ASSIGN_OR_RETURN(const LinearSolution solution, program_.minimize());
    if (solution.outcome != LinearOutcome::kOptimal) return std::optional<FlexgenPlacement>();
    const auto kind = [&](size_t first) {
      const auto snap = [&](LinearVariable variable) {
        const double share = solution[variable];
        return share < kSnap ? 0.0 : share > 1 - kSnap ? 1.0 : share;
      };
      PerTier shares{snap(shares_[first]), snap(shares_[first + 1]), 0};
      shares.disk = 1 - shares.device - shares.host;
      if (shares.disk < kSnap) shares.disk = 0;
      return shares;
    };
    return std::optional(FlexgenPlacement{kind(0), kind(3), kind(6)});
  }

 private:
  void add_kind(const FlexgenPins::Kind& pins, double disk_most) {
    const auto add = [&](const std::optional<double>& pin) {
      shares_.push_back(program_.add_variable(pin.value_or(0), pin.value_or(1), 0));
    };
    add(pins.device);
    add(pins.host);
    shares_.push_back(program_.add_variable(0, disk_most, 0));
    const size_t first = shares_.size() - 3;
    program_.add_constraint({{shares_[first], 1}, {shares_[first + 1], 1}, {shares_[first + 2], 1}},
                            1, 1);
  }

  static double unit(const StepForms& step) {
    double least = 0;
    for (const Form& path : step.paths) least = std::max(least, path.least());
    return least;
  }

  void add_step(const StepForms& step, double unit, double cost) {
    const LinearVariable time = program_.add_variable(0, LinearProgram::kInfinity, cost);
    for (const Form& path : step.paths) add_row(path / unit, {{time, -1}}, 0);
  }

  // Adds the constraint form + more <= upper.
  void add_row(const Form& form, std::vector<LinearTerm> more, double upper) {
    for (size_t i = 0; i < form.of.size(); ++i) {
      if (form.of[i] != 0) more.push_back({shares_[i], form.of[i]});
    }
    program_.add_constraint(more, -LinearProgram::kInfinity, upper - form.constant);
  }

  LinearProgram program_;
  std::vector<LinearVariable> shares_;
};

std::string gigabytes(double bytes) {
  return bytes < 0x1p63 ? format_bytes(static_cast<uint64_t>(bytes)) : "any amount of";
}

}  // namespace

Status validate(const FlexgenProblem& problem) {
  SPILLWAY_RETURN_IF_ERROR(validate(problem.shape));
  if (problem.shape.family != "opt") {
    return invalid_argument("FlexGen's cost model knows OPT only, not the family of " +
                            problem.shape.name);
  }
  for (const int64_t tokens : {problem.prompt_tokens, problem.new_tokens}) {
    if (tokens < 1 || tokens > kTokensMax) {
      return invalid_argument("a prompt and an answer have 1 to " + std::to_string(kTokensMax) +
                              " tokens, not " + std::to_string(tokens));
    }
  }
  return {};
}

FlexgenCost flexgen_cost(const FlexgenProblem& problem, const FlexgenBlock& block,
                         const FlexgenPlacement& placement) {
  return cost_of(Model(problem, block), placement);
}

Result<FlexgenChoice> flexgen_placement(const FlexgenProblem& problem, const FlexgenBlock& block,
                                        const FlexgenPins& pins, const FlexgenLimits& limits) {
  const Model model(problem, block);
  const double device = limits.memory_bytes.device * limits.usable.device;
  const double host = limits.memory_bytes.host * limits.usable.host;
  const double disk = limits.memory_bytes.disk * limits.usable.disk;
  PlacementProgram program(model, pins);
  program.add_limit(model.device_prefill, device);
  program.add_limit(model.device_decode, device);
  program.add_limit(model.host_prefill, host);
  program.add_limit(model.host_decode, host);
  program.add_limit(model.disk, disk);
  SPILLWAY_ASSIGN_OR_RETURN(const auto placement, program.solve());
  if (!placement) {
    return Status(Code::kInfeasible, "a block of " + std::to_string(block.micro_batch) + " x " +
                                         std::to_string(block.micro_batches) +
                                         " sequences fits no way into " + gigabytes(device) +
                                         " device, " + gigabytes(host) + " host and " +
                                         gigabytes(disk) + " disk memory");
  }
  return FlexgenChoice{block, *placement, cost_of(model, *placement)};
}

}  // namespace spillway
