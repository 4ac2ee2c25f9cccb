#include "server/cli/eval/eval.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "scheduler/planning/plan_json.h"
#include "server/cli/common/console.h"
#include "server/cli/common/report_json.h"
#include "server/cli/common/text_file.h"
#include "server/cli/eval/eval_run.h"
#include "server/cli/flags/command_line.h"
#include "server/cli/flags/engine_settings.h"

namespace spillway {

namespace {

constexpr uint64_t kTextBytesMax = uint64_t{1} << 30;

// A KV rule at a share of the context, from --kv-budgets.
struct Budgeted {
  int percent = 0;
  KvRule rule;
  EvalScore score;
};

struct EvalResult {
  KvRule rule;
  EvalScore score;
  std::optional<EvalScore> full;  // For comparison, when another rule is evaluated
  std::vector<Budgeted> budgets;
  double seconds = 0;
};

Status check_flags(const EvalFlags& flags, const Runtime& runtime) {
  if (runtime.tokenizer() == nullptr) {
    const std::string& why = runtime.tokenizer_error();
    return invalid_argument("a text cannot be evaluated: the model" +
                            (why.empty() ? std::string(" has no tokenizer files")
                                         : "'s tokenizer cannot be used: " + why));
  }
  if (flags.context < 2 || flags.context > runtime.shape().positions) {
    return invalid_argument("--context must be 2 to the model's " +
                            std::to_string(runtime.shape().positions) + " positions");
  }
  if (flags.prompt_tokens < 1 || flags.prompt_tokens >= flags.context) {
    return invalid_argument("--prompt-tokens must be 1 to --context - 1");
  }
  return {};
}

// A rule at a per cent, with `given`'s protected positions, and its options if it is the same.
KvRule rule_at(KvRuleKind kind, int percent, const KvRule& given) {
  KvRule rule;
  rule.kind = kind;
  const double share = percent / 100.0;
  rule.recent = {0, has_heavy(kind) ? share / 2 : share};
  if (has_heavy(kind)) rule.heavy = {0, share / 2};
  rule.keep = given.keep;
  if (kind == given.kind) rule.snap = given.snap;
  return rule;
}

// The rules that --kv-budgets compares: h2o, window, and the one that is evaluated.
std::vector<KvRuleKind> compared(const KvRule& rule) {
  std::vector<KvRuleKind> kinds = {KvRuleKind::kH2o, KvRuleKind::kWindow};
  const bool another = rule.kind != KvRuleKind::kFull;
  if (another && std::find(kinds.begin(), kinds.end(), rule.kind) == kinds.end()) {
    kinds.push_back(rule.kind);
  }
  return kinds;
}

double against(const EvalScore& score, const EvalScore& full) {
  return score.perplexity() / full.perplexity();
}

nlohmann::json json_of(const EvalFlags& flags, const Runtime& runtime, const EvalResult& result) {
  nlohmann::json json = {{"model", runtime.model_name()},
                         {"perplexity", result.score.perplexity()},
                         {"tokens", result.score.tokens},
                         {"bits_per_byte", result.score.bits_per_byte()},
                         {"windows", result.score.windows},
                         {"context", flags.context},
                         {"prompt_tokens", flags.prompt_tokens},
                         {"format", format_name(runtime.plan().format)},
                         {"kv_format", format_name(runtime.plan().kv_format())},
                         {"seconds", result.seconds}};
  if (runtime.plan().in_int8) json["quantized_compute"] = "int8";
  add_kv_rule(result.rule, &json);
  if (result.full) {
    json["perplexity_full"] = result.full->perplexity();
    json["perplexity_relative"] = against(result.score, *result.full);
    json["bits_per_byte_full"] = result.full->bits_per_byte();
  }
  for (const Budgeted& one : result.budgets) {
    json["budgets"].push_back({{"kv_rule", kv_rule_name(one.rule.kind)},
                               {"percent", one.percent},
                               {"perplexity", one.score.perplexity()},
                               {"bits_per_byte", one.score.bits_per_byte()}});
  }
  if (runtime.plan().quantization) {
    json["quantization"] =
        json_of_quantization(runtime.plan().format, *runtime.plan().quantization);
  }
  return json;
}

void print_text(const EvalFlags& flags, const Runtime& runtime, const EvalResult& result) {
  const EvalScore& score = result.score;
  std::printf(
      "perplexity %.3f, %.4f bits per byte (%lld tokens in %lld windows of %lld, prompts "
      "of %lld; %s)\n",
      score.perplexity(), score.bits_per_byte(), static_cast<long long>(score.tokens),
      static_cast<long long>(score.windows), static_cast<long long>(flags.context),
      static_cast<long long>(flags.prompt_tokens), format_seconds(result.seconds).c_str());
  if (result.full) {
    std::printf("KV rule %s; the full cache has perplexity %.3f (%+.2f %%)\n",
                to_string(result.rule).c_str(), result.full->perplexity(),
                (against(score, *result.full) - 1) * 100);
  }
  if (!result.budgets.empty()) std::printf("KV rule   kept  perplexity  bits per byte\n");
  for (const Budgeted& one : result.budgets) {
    std::printf("%-8s %4d %%  %10.3f  %13.4f\n", std::string(kv_rule_name(one.rule.kind)).c_str(),
                one.percent, one.score.perplexity(), one.score.bits_per_byte());
  }
  if (runtime.plan().quantization) {
    std::printf("quantization: relative RMS error %.2f %%, largest error %.4g\n",
                runtime.plan().quantization->relative_rms() * 100,
                runtime.plan().quantization->error_max);
  }
}

// Scores the windows under one rule after another, with a line about each step.
class Evaluation {
 public:
  Evaluation(Runtime& runtime, const EvalFlags& flags,
             const std::vector<std::vector<int32_t>>& windows)
      : runtime_(runtime), flags_(flags), windows_(windows) {}

  Result<EvalResult> run(const KvRule& rule) {
    const double start = steady_seconds();
    EvalResult result;
    result.rule = rule;
    SPILLWAY_ASSIGN_OR_RETURN(result.score, score(rule));
    if (rule.kind != KvRuleKind::kFull) {
      SPILLWAY_ASSIGN_OR_RETURN(result.full, score({}));
    }
    for (const int percent : flags_.kv_budgets) {
      for (const KvRuleKind kind : compared(rule)) {
        Budgeted one{percent, rule_at(kind, percent, rule), {}};
        SPILLWAY_ASSIGN_OR_RETURN(one.score, score(one.rule));
        result.budgets.push_back(one);
      }
    }
    result.seconds = steady_seconds() - start;
    return result;
  }

 private:
  Result<EvalScore> score(const KvRule& rule) {
    const double start = steady_seconds();
    return score_windows(runtime_, windows_, flags_, rule, [&](int64_t done) {
      std::cerr << to_string(rule) << ": " << done << " of " << windows_.size() << " windows, "
                << format_seconds(steady_seconds() - start) << std::endl;
    });
  }

  Runtime& runtime_;
  const EvalFlags& flags_;
  const std::vector<std::vector<int32_t>>& windows_;
};

Status eval(const EvalFlags& flags, const EngineFlags& engine_flags, const std::string& model) {
  if (engine_flags.prefill_tokens) {
    return invalid_argument(
        "eval reads the prompts of its windows at once: leave out --prefill-tokens, and "
        "prefill_tokens of a --plan");
  }
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text,
                            read_text_file("--text", flags.text, kTextBytesMax));
  RuntimeOptions options;
  options.start_scheduler = false;
  options.say = say;
  options.wishes.prefill_tokens_max =
      kEvalWindowsAtOnce * std::max<int64_t>(1, flags.prompt_tokens);
  // Memory for the full cache, with which rules are compared.
  EngineFlags full = engine_flags;
  full.kv_rule = "full";
  full.kv_heavy = full.kv_recent = std::nullopt;
  full.kv_snap = "mean";
  full.kv_keep = std::nullopt;
  full.kv_sink = std::nullopt;
  SPILLWAY_ASSIGN_OR_RETURN(const auto runtime, as_input(Runtime::open(model, full, options)));
  SPILLWAY_RETURN_IF_ERROR(check_flags(flags, *runtime));
  const Tokenizer& tokenizer = *runtime->tokenizer();
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                            tokenizer.encode(text, {.add_bos = false}));
  const auto windows = cut_windows(ids, tokenizer.adds_bos() ? tokenizer.bos() : -1, flags);
  if (windows.empty()) {
    return invalid_argument("--text has " + std::to_string(ids.size()) +
                            " tokens, nothing behind the first --prompt-tokens " +
                            std::to_string(flags.prompt_tokens) + " to score");
  }
  SPILLWAY_ASSIGN_OR_RETURN(const EvalResult result,
                            Evaluation(*runtime, flags, windows).run(kv_rule_of(engine_flags)));
  if (flags.json) {
    std::cout << json_of(flags, *runtime, result).dump(2) << std::endl;
  } else {
    print_text(flags, *runtime, result);
  }
  return {};
}

constexpr size_t kBudgetsMax = 32;

Result<std::vector<int>> parse_percents(const std::string& text) {
  std::vector<int> percents;
  const char* at = text.data();
  const char* end = at + text.size();
  while (percents.size() < kBudgetsMax) {
    int percent = 0;
    const auto [rest, error] = std::from_chars(at, end, percent);
    if (error != std::errc() || percent < 1 || percent > 100) break;
    percents.push_back(percent);
    if (rest == end) return percents;
    if (*rest != ',') break;
    at = rest + 1;
  }
  return invalid_argument("must be up to 32 per cents between 1 and 100: 60,40,20");
}

struct State {
  std::string model;
  EvalFlags flags;
  EngineFlags engine;
};

}  // namespace

int run_eval(const EvalFlags& flags, const EngineFlags& engine, const std::string& model) {
  return report("eval", eval(flags, engine, model));
}

Command eval_command() {
  auto state = std::make_shared<State>();
  Command command;
  command.name = "eval";
  command.summary = "perplexity of a text, scored through the decode path";
  command.description =
      "Cuts a text into windows of --context tokens. The first --prompt-tokens of each are the "
      "prompt, the rest is scored token by token through the decode path, as in generation.";
  command.arguments = {{"MODEL", kModelHelp, &state->model}};
  Settings& settings = command.settings;
  settings.group("Evaluation");
  settings.add_text("text", &state->flags.text, "FILE", "the text, UTF-8");
  settings.add_integer("context", &state->flags.context, 2, 1 << 20, "tokens of a window");
  settings.add_integer("prompt-tokens", &state->flags.prompt_tokens, 1, 1 << 20,
                       "of them, in the prompt and not scored");
  settings.add_integer("windows", &state->flags.windows, 0, int64_t{1} << 40,
                       "at most this many; 0: the whole text");
  settings.add({"kv-budgets", "P,P,...",
                "compare the KV rules h2o and window, and that of --kv-rule, at these per cents of "
                "the positions; --kv-keep holds for each",
                "", "", [state](const std::string& text) -> Status {
                  SPILLWAY_ASSIGN_OR_RETURN(state->flags.kv_budgets, parse_percents(text));
                  return {};
                }});
  settings.add_switch("json", &state->flags.json, "print one JSON object");
  add_engine_flags(settings, &state->engine);
  command.check = [state]() -> Status {
    if (state->flags.text.empty()) return invalid_argument("--text is missing");
    return validate(state->engine);
  };
  command.run = [state] {
    state->flags.seed = state->engine.seed;
    return run_eval(state->flags, state->engine, state->model);
  };
  return command;
}

}  // namespace spillway
