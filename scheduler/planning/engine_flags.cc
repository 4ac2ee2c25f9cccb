#include "scheduler/planning/engine_flags.h"

#include <set>
#include <string>

namespace spillway {

KvRule kv_rule_of(const EngineFlags& flags) {
  KvRuleChoice choice{kv_rule_of_name(flags.kv_rule), flags.kv_heavy, flags.kv_recent, {}, {}};
  choice.keep = flags.kv_keep;
  if (flags.kv_sink) choice.keep = KvKeep(*flags.kv_sink);
  choice.ratio_of_prompt = flags.kv_ratio_of == "prompt";
  choice.snap = kv_snap_of_name(flags.kv_snap);
  return apply(choice, {});
}

int64_t draft_tokens_of(const EngineFlags& flags) {
  constexpr int64_t kDefault = 4;
  return flags.draft == "off" ? 0 : flags.draft_tokens.value_or(kDefault);
}

namespace {

Status validate_stages(const EngineFlags& flags) {
  if (flags.stage_layers && static_cast<int64_t>(flags.stage_layers->size()) != flags.stages) {
    return invalid_argument("--stage-layers has " + std::to_string(flags.stage_layers->size()) +
                            " numbers, and --stages is " + std::to_string(flags.stages) +
                            "; it takes one for each rank, from rank 0 on");
  }
  if (flags.stages > 1 && flags.prefix_cache_bytes.value_or(0) > 0) {
    return invalid_argument(
        "--prefix-cache does not go with --stages: stages share no beginnings of prompts yet; "
        "leave "
        "it out, or off");
  }
  return {};
}

Status validate_ranks(const EngineFlags& flags) {
  if (flags.gpus && flags.ranks > 1 && flags.ranks != flags.rank_count()) {
    return invalid_argument("--gpus names " + std::to_string(flags.rank_count()) +
                            " GPUs, and --ranks is " + std::to_string(flags.ranks) +
                            "; each rank has a GPU of its own, so leave --ranks out");
  }
  if (flags.gpus &&
      std::set<int64_t>(flags.gpus->begin(), flags.gpus->end()).size() != flags.gpus->size()) {
    return invalid_argument("--gpus names a GPU twice; each is one rank");
  }
  if (flags.gpus && flags.device == "cpu") {
    return invalid_argument("--gpus is for --device cuda; on a CPU there are --ranks");
  }
  if (flags.rank_count() == 1) return {};
  if (flags.prefix_cache_bytes.value_or(0) > 0) {
    return invalid_argument(
        "--prefix-cache does not go with several ranks: they share no beginnings of prompts yet; "
        "leave it out, or off");
  }
  return {};
}

}  // namespace

Status validate(const EngineFlags& flags) {
  if (flags.block && flags.micro_batch && *flags.micro_batch > *flags.block) {
    return invalid_argument("--micro-batch " + std::to_string(*flags.micro_batch) +
                            " is larger than --block " + std::to_string(*flags.block));
  }
  if (flags.prefill_tokens && flags.prefill_target.value_or(0) > *flags.prefill_tokens) {
    return invalid_argument("--prefill-target " + std::to_string(*flags.prefill_target) +
                            " is more than --prefill-tokens " +
                            std::to_string(*flags.prefill_tokens));
  }
  if (flags.kv_heavy && !has_heavy(kv_rule_of_name(flags.kv_rule).value_or(KvRuleKind::kFull))) {
    return invalid_argument("--kv-heavy needs --kv-rule h2o, random or snap; the rule is " +
                            flags.kv_rule);
  }
  const std::string limited = "--kv-rule h2o, window, random or snap; the rule is full";
  if (flags.kv_recent && flags.kv_rule == "full") {
    return invalid_argument("--kv-recent needs " + limited);
  }
  if (flags.kv_sink && flags.kv_keep && KvKeep(*flags.kv_sink) != *flags.kv_keep) {
    return invalid_argument("--kv-sink " + std::to_string(*flags.kv_sink) + " and --kv-keep " +
                            to_string(*flags.kv_keep) +
                            " are two names of one number; give --kv-keep alone");
  }
  if (flags.kv_sink.value_or(0) != 0 && flags.kv_rule != "window") {
    return invalid_argument("--kv-sink needs --kv-rule window; the rule is " + flags.kv_rule +
                            ", for which it is --kv-keep");
  }
  if (flags.kv_keep && !flags.kv_keep->none() && flags.kv_rule == "full") {
    return invalid_argument("--kv-keep needs " + limited);
  }
  if (flags.kv_ratio_of == "prompt" && flags.kv_rule == "full") {
    return invalid_argument("--kv-ratio-of prompt needs " + limited);
  }
  if (flags.kv_snap != "mean" && flags.kv_rule != "snap") {
    return invalid_argument("--kv-snap needs --kv-rule snap; the rule is " + flags.kv_rule);
  }
  if (flags.draft_tokens && flags.draft == "off") {
    return invalid_argument("--draft-tokens needs --draft ngram");
  }
  SPILLWAY_RETURN_IF_ERROR(validate_stages(flags));
  SPILLWAY_RETURN_IF_ERROR(validate_ranks(flags));
  if (flags.weights_from != "checkpoint") return {};
  if (flags.dummy_weights) {
    return invalid_argument("--dummy-weights has no checkpoint for --weights-from checkpoint");
  }
  if (flags.verify != "every") {
    return invalid_argument("--verify " + flags.verify +
                            " is about checksums, which the files of --weights-from checkpoint do "
                            "not have; leave it out");
  }
  return {};
}

}  // namespace spillway
