// A model ready to answer: device, weights, engine, scheduler and tokenizer, opened from MODEL and
// the engine flags. The one place where flags become memory. Owned by the command that runs it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/model_shape.h"
#include "kernels/base/q4.h"
#include "kernels/base/status.h"
#include "policy/hardware_profile.h"
#include "scheduler/block_scheduler.h"
#include "server/cli/flags/engine_flags.h"
#include "server/memory_budget.h"
#include "server/tokenizer/tokenizer.h"

namespace spillway {

// What a command wants besides the flags.
struct RuntimeOptions {
  int64_t prefill_tokens_max = 0;  // Of one sweep; 0: the default
  int64_t prompt_tokens = 0;       // Of every sequence, and at most so many new ones; 0: unknown
  int64_t new_tokens = 0;
  std::optional<RequestMemory> requests;  // Of a command that answers over HTTP
  std::shared_ptr<SweepLog> log;          // Null: no sweep is logged
  bool start_scheduler = true;            // Else the caller drives engine() itself
  bool tokenizer_only = false;  // Neither weights nor engine: shape() and tokenizer() work
  bool plan_only = false;       // Nothing is loaded or made: shape() and plan() work
  // Plan for this machine instead of the one at hand; only with plan_only. Must outlive open().
  const HardwareProfile* hardware = nullptr;
  // As in ModelSourceOptions: asked before a model directory is packed. May be empty.
  std::function<Status(const std::string&)> accepts_source;
  // One line for people about what goes on ("Loading ..."), without a newline; empty: nothing.
  std::function<void(const std::string&)> say;
};

// Bytes of one kind (weights, KV, activations) on each tier. On the CPU the device tier is host
// memory.
struct TierBytes {
  uint64_t device = 0, host = 0, disk = 0;
};

// The plan that was carried out, as `bench --json` and start-up lines show it.
struct RuntimePlan {
  DType format = DType::kF32;
  DType kv_format = DType::kF32;
  bool q4_in_int8 = false;  // Products with 4-bit weights round activations to 8 bits
  KvRule kv_rule;
  uint64_t budget_bytes = 0;           // Host memory allowed
  uint64_t process_bytes = 0;          // Of that, for the process itself, with the next
  RequestMemory requests;              // If they were asked for
  uint64_t device_budget_bytes = 0;    // The same of a device's own; 0: it has none
  uint64_t device_limit_bytes = 0;     // Of that, what the run takes itself: without the context
  TierBytes weights, kv, activations;  // Activations: working memory too
  uint64_t staging_bytes = 0;          // Host memory through which what is on disk passes
  uint64_t device_staging_bytes = 0;   // A device's own, through which what is elsewhere passes
  // Of these two: what passes through the host's memory from disk, and into a device's own.
  struct Rings {
    uint64_t weights = 0, kv = 0, activations = 0;
  } host_rings, device_rings;
  std::string weights_file;  // What weights on disk are read from; empty: none are on disk
  std::string disk_dir;      // Where KV and activations on disk lie; empty: none do
  std::string kv_file;       // What holds the KV there, to be opened while the runtime lives
  int64_t block_sequences = 0;
  int64_t sequences_at_once = 0;  // Of the longest, that the block and the KV cache hold
  int64_t micro_batch_tokens = 0;
  int64_t micro_batch_sequences = 0;  // 0: no limit
  int64_t prefill_tokens = 0;         // Prompt tokens of one sweep
  bool host_attention = false;        // Decode steps over KV in host memory run on the CPU
  double load_seconds = 0;
  std::optional<Q4Error> quantization;  // Of a packed q4 file against its checkpoint
};

class Runtime {
 public:
  // kInvalidArgument: flags or model are wrong. kInfeasible: does not fit the budget; the message
  // names the missing bytes and the smallest change. Blocks while it loads.
  static Result<std::unique_ptr<Runtime>> open(const std::string& model, const EngineFlags& flags,
                                               const RuntimeOptions& options);
  ~Runtime();

  const ModelShape& shape() const;
  const std::string& model_name() const;
  const std::string& source() const;   // Which checkpoint: changes when it changes
  const Tokenizer* tokenizer() const;  // Null: the model has none, token ids only.
  Scheduler& scheduler();              // REQUIRES: start_scheduler
  Engine& engine();                    // REQUIRES: not start_scheduler
  Device& device();
  const RuntimePlan& plan() const;

  struct State;  // server/runtime_state.h

 private:
  explicit Runtime(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// One line about the plan that is carried out, for people.
std::string plan_line(const Runtime& runtime);

}  // namespace spillway
