#include "scheduler/planning/engine_flags.h"

#include <string>

namespace spillway {

KvRule kv_rule_of(const EngineFlags& flags) {
  KvRuleChoice choice{kv_rule_of_name(flags.kv_rule), flags.kv_heavy, flags.kv_recent, {}, {}};
  choice.sink = flags.kv_sink;
  choice.ratio_of_prompt = flags.kv_ratio_of == "prompt";
  return apply(choice, {});
}

Status validate(const EngineFlags& flags) {
  if (flags.block && flags.micro_batch && *flags.micro_batch > *flags.block) {
    return invalid_argument("--micro-batch " + std::to_string(*flags.micro_batch) +
                            " is larger than --block " + std::to_string(*flags.block));
  }
  if (flags.kv_heavy && flags.kv_rule != "h2o") {
    return invalid_argument("--kv-heavy needs --kv-rule h2o; the rule is " + flags.kv_rule);
  }
  if (flags.kv_recent && flags.kv_rule == "full") {
    return invalid_argument("--kv-recent needs --kv-rule h2o or window; the rule is full");
  }
  if (flags.kv_sink != 0 && flags.kv_rule != "window") {
    return invalid_argument("--kv-sink needs --kv-rule window; the rule is " + flags.kv_rule);
  }
  if (flags.kv_ratio_of == "prompt" && flags.kv_rule == "full") {
    return invalid_argument("--kv-ratio-of prompt needs --kv-rule h2o or window; the rule is full");
  }
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
