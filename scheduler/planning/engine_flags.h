// The engine flags: the settings that every command that runs a model offers, under the same names
// everywhere. Only checks that need nothing but the flags happen here; make_plan and the runtime
// check them against the build, the machine and the model. Plain values; any thread once they are
// filled. (As command-line options: server/cli/flags/engine_settings.h.)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/format.h"
#include "kernels/base/status.h"
#include "policy/kv_rule.h"
#include "scheduler/planning/tier_shares.h"

namespace spillway {

struct EngineFlags {
  std::string plan;  // A file; empty: found automatically
  std::string device = "auto";
  int64_t gpu = 0;  // Index among CUDA devices
  std::optional<uint64_t> device_memory_bytes;
  std::optional<uint64_t> host_memory_bytes;
  bool host_memory_is_free = false;  // It is a process's part of what is free; no flag named it
  std::optional<uint64_t> disk_memory_bytes;
  std::vector<std::string> disk_dirs;  // Scratch files are striped over them; empty: the default

  std::optional<TierPercent> weights;
  std::optional<TierPercent> kv;
  std::optional<TierPercent> activations;
  std::optional<int64_t> block;           // Sequences
  std::optional<int64_t> micro_batch;     // Sequences
  std::optional<int64_t> prefill_tokens;  // Of prompts in a sweep, at most
  std::optional<int64_t> prefill_target;  // Of prompts in a sweep while requests wait; 0: no target
  std::optional<uint64_t> prefix_cache_bytes;  // Of the KV cache, for beginnings of prompts; 0: off
  std::optional<int64_t> max_model_len;  // Positions of the longest sequence; none: the model's

  std::optional<Format> format;     // Weights' format; none: the checkpoint's
  std::optional<Format> kv_format;  // None: the compute format

  std::string quantized_compute = "auto";  // Or int8, float: machine.h

  std::string kv_rule = "full";
  std::optional<KvAmount> kv_heavy;
  std::optional<KvAmount> kv_recent;
  std::optional<KvKeep> kv_keep;
  std::optional<int64_t> kv_sink;  // The older name of a window's kv_keep
  std::string kv_ratio_of = "total";
  std::string kv_snap = "mean";

  std::string draft = "off";            // "ngram": from a sequence's own n-grams
  std::optional<int64_t> draft_tokens;  // Of a draft, at most

  // Ranks of one process that share every layer, each on a part of the processors or a GPU of its
  // own, and which of them this one is, which whoever opens them sets.
  int64_t ranks = 1;
  int64_t rank = 0;
  std::optional<std::vector<int64_t>> gpus;  // Of each rank, which are as many
  int64_t rank_count() const { return gpus ? static_cast<int64_t>(gpus->size()) : ranks; }

  // Pipeline stages, which mpirun or srun starts as so many processes.
  int64_t stages = 1;
  std::optional<std::vector<int64_t>> stage_layers;  // Of each rank; none: found out

  std::string attention = "auto";
  bool no_overlap = false;
  int64_t threads = 0;  // 0: one per processor
  uint64_t seed = 0;
  std::string verify = "every";
  std::string weights_from = "packed";  // "checkpoint": no packed file is made
  std::string trace;                    // A file; empty: none
  bool dummy_weights = false;
};

// The KV rule that the flags name. REQUIRES: validate(flags).ok().
KvRule kv_rule_of(const EngineFlags& flags);

// Most tokens of a draft; 0: there are none.
int64_t draft_tokens_of(const EngineFlags& flags);

// Checks that flags fit together (a KV budget needs a rule that has one; a micro-batch fits its
// block).
Status validate(const EngineFlags& flags);

}  // namespace spillway
