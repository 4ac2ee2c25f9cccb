#include "server/runtime.h"

#include "kernels/base/check.h"
#include "kernels/base/units.h"
#include "server/runtime_state.h"

namespace spillway {

Runtime::Runtime(std::unique_ptr<State> state) : state_(std::move(state)) {}
Runtime::~Runtime() = default;

const ModelShape& Runtime::shape() const {
  return state_->plan.shape;
}
const std::string& Runtime::source() const {
  return state_->opened.model.source;
}
const std::string& Runtime::model_name() const {
  return state_->plan.model_name;
}
const Tokenizer* Runtime::tokenizer() const {
  return state_->opened.tokenizer.get();
}
const std::string& Runtime::tokenizer_error() const {
  return state_->opened.tokenizer_error;
}

const ChatTemplate* Runtime::chat() const {
  return state_->opened.chat.get();
}
Scheduler& Runtime::scheduler() {
  SPILLWAY_CHECK(state_->scheduler != nullptr);
  return *state_->scheduler;
}
Engine& Runtime::engine() {
  SPILLWAY_CHECK(state_->engine != nullptr);
  return *state_->engine;
}
OtherRanks* Runtime::others() {
  return state_->others.get();
}
Device& Runtime::device() {
  return *state_->opened.device;
}
Timeline* Runtime::timeline() const {
  return state_->opened.timeline;
}

const Plan& Runtime::plan() const {
  return state_->plan;
}

namespace {

// "3.2 GiB", with the bytes of each tier when not all is in memory; with a discrete device always.
std::string tiers_text(const TierBytes& bytes, bool discrete) {
  if (discrete) {
    return format_bytes(bytes.device + bytes.host + bytes.disk) + " (" +
           format_bytes(bytes.device) + " on the device, " + format_bytes(bytes.host) +
           " in host memory, " + format_bytes(bytes.disk) + " on disk)";
  }
  const uint64_t memory = bytes.device + bytes.host;
  if (bytes.disk == 0) return format_bytes(memory);
  return format_bytes(memory + bytes.disk) + " (" + format_bytes(bytes.disk) + " on disk)";
}

}  // namespace

std::string plan_line(const Runtime& runtime) {
  const Plan& plan = runtime.plan();
  const bool own = plan.discrete;
  const ModelShape& shape = plan.shape;
  std::string text = runtime.model_name() + ": ";
  if (shape.ranks > 1) {
    text += "rank " + std::to_string(shape.rank) + " of " + std::to_string(shape.ranks) + ": ";
  }
  text += "weights " + tiers_text(plan.weights, own) + " in " + plan.formats_text() +
          (plan.in_int8 ? " by 8-bit products" : "") + ", KV cache " + tiers_text(plan.kv, own) +
          " in " + std::string(format_name(plan.kv_format())) + " for up to " +
          std::to_string(plan.block_sequences()) + " sequences, ";
  if (plan.kv_rule().kind != KvRuleKind::kFull) {
    text += "KV rule " + to_string(plan.kv_rule()) + ", ";
  }
  const uint64_t staging = plan.placement.host_rings.sum() + plan.placement.device_rings.sum();
  if (staging > 0) {
    text += format_bytes(staging) + " of staging buffers, ";
  } else {
    text += own ? "all on the device, " : "all in memory, ";
  }
  if (own && plan.kv.host > 0) {
    text += plan.host_attention() ? "attention over KV in host memory by the CPU, "
                                  : "attention over KV in host memory on the device, ";
  }
  if (own) text += "device memory budget " + format_bytes(plan.device_budget_bytes) + ", ";
  return text + "host memory budget " + format_bytes(plan.budget_bytes) + "; loaded in " +
         format_seconds(plan.load_seconds);
}

}  // namespace spillway
