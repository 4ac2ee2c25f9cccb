// parse_completion: the strict validator of /v1/completions bodies.
#include <algorithm>
#include <cfloat>
#include <nlohmann/json.hpp>

#include "server/api/cache_salt.h"
#include "server/api/completion.h"
#include "server/api/completion_fields.h"
#include "server/api/completion_prompt.h"
#include "server/api/ignored_parameters.h"
#include "server/api/json_input.h"
#include "server/api/seed_stream.h"
#include "server/http/random_id.h"

namespace spillway {
namespace {

constexpr int64_t kIntMax = INT32_MAX;

// A year, in seconds.
constexpr double kTimeoutMax = 365.0 * 24 * 3600;

// Limit for the KV rule, in positions.
constexpr int64_t kRowsMax = int64_t{1} << 20;

std::optional<KvAmount> read_amount(FieldReader& fields, const char* name) {
  const auto value = fields.number(name, 0, kRowsMax);
  if (!value) return std::nullopt;
  const nlohmann::json* json = fields.find(name);
  // 1.0 is no ratio below 1, and is not meant as one position either.
  if (!json->is_number_float()) return KvAmount{static_cast<int64_t>(*value), 0};
  if (*value < 1) return KvAmount{0, *value};
  fields.fail(invalid_value(name, "must be a whole number of positions, or a ratio below 1"));
  return std::nullopt;
}

// Reads kv_keep and its older name for a window, kv_sink.
std::optional<KvKeep> read_keep(FieldReader& fields) {
  std::optional<KvKeep> keep;
  const nlohmann::json* value = fields.find("kv_keep");
  if (value != nullptr && value->is_string()) {
    keep = KvKeep::whole_prompt();
    if (*value != "prompt") {
      fields.fail(invalid_value(
          "kv_keep", "must be a whole number of positions, a ratio below 1, or \"prompt\""));
    }
  } else if (const auto amount = read_amount(fields, "kv_keep")) {
    keep = KvKeep(*amount);
  }
  const auto sink = fields.integer("kv_sink", 0, kRowsMax);
  if (!sink) return keep;
  if (keep && *keep != KvKeep(*sink)) {
    fields.fail(invalid_value(
        "kv_sink", "is another name of kv_keep and differs from it; give kv_keep alone"));
  }
  return KvKeep(*sink);
}

// Reads the KV rule of one request: kv_rule, kv_heavy, kv_recent, kv_keep, kv_sink, kv_ratio_of and
// kv_snap, like the flags --kv-rule etc. `base`: the rule of requests without one. Errors stay in
// `fields`.
KvRuleChoice read_kv_rule(FieldReader& fields, const KvRule& base) {
  KvRuleChoice choice;
  if (const auto name = fields.string("kv_rule")) {
    choice.kind = kv_rule_of_name(*name);
    if (!choice.kind)
      fields.fail(invalid_value("kv_rule", "must be full, h2o, window, random or snap"));
  }
  choice.heavy = read_amount(fields, "kv_heavy");
  choice.recent = read_amount(fields, "kv_recent");
  choice.keep = read_keep(fields);
  if (const auto of = fields.string("kv_ratio_of")) {
    choice.ratio_of_prompt = *of == "prompt";
    if (*of != "prompt" && *of != "total") {
      fields.fail(invalid_value("kv_ratio_of", "must be prompt or total"));
    }
  }
  if (const auto snap = fields.string("kv_snap")) {
    choice.snap = kv_snap_of_name(*snap);
    if (!choice.snap) fields.fail(invalid_value("kv_snap", "must be mean or max"));
  }
  const KvRuleKind kind = choice.kind.value_or(base.kind);
  const auto refuse = [&](const char* name, const std::string& rules) {
    fields.fail(invalid_value(name, "needs kv_rule " + rules + "; the rule is " +
                                        std::string(kv_rule_name(kind)) +
                                        (choice.kind ? "" : ", the server's")));
  };
  const char* const limited = "h2o, window, random or snap";
  if (choice.heavy && !has_heavy(kind)) refuse("kv_heavy", "h2o, random or snap");
  if (choice.recent && kind == KvRuleKind::kFull) refuse("kv_recent", limited);
  if (choice.keep && !choice.keep->none()) {
    const bool sink = fields.find("kv_sink") != nullptr;
    if (sink && kind != KvRuleKind::kWindow) refuse("kv_sink", "window (else it is kv_keep)");
    if (kind == KvRuleKind::kFull) refuse("kv_keep", limited);
  }
  if (choice.snap == KvSnap::kMax && kind != KvRuleKind::kSnap) refuse("kv_snap", "snap");
  if (choice.ratio_of_prompt.value_or(false) && kind == KvRuleKind::kFull) {
    refuse("kv_ratio_of", limited);
  }
  return choice;
}

// Rejects fields that other servers know. Ignoring them would answer a different question than was
// asked.
void reject_unsupported(FieldReader& fields) {
  for (const char* name :
       {"suffix", "allowed_token_ids", "bad_words", "logprob_token_ids", "use_beam_search",
        "structured_outputs", "prompt_embeds", "guided_json", "guided_regex", "guided_choice",
        "guided_grammar", "grammar", "json_schema", "chat_template", "chat_template_kwargs"}) {
    const nlohmann::json* value = fields.find(name);
    if (value != nullptr && !asks_for_nothing(name, *value)) {
      fields.fail(unsupported_parameter(name, "this server does not implement it"));
    }
  }
  if (const auto best_of = fields.integer("best_of", 0, kIntMax); best_of.value_or(1) > 1) {
    fields.fail(unsupported_parameter("best_of", "only 1 is; use n and choose yourself"));
  }
  if (fields.number("length_penalty", -DBL_MAX, DBL_MAX).value_or(1) != 1) {
    fields.fail(unsupported_parameter("length_penalty", "there is no beam search"));
  }
  const nlohmann::json* format = fields.find("response_format");
  if (format != nullptr && *format != nlohmann::json{{"type", "text"}}) {
    fields.fail(unsupported_parameter("response_format", "only {\"type\":\"text\"} is"));
  }
}

void read_model(FieldReader& fields, const ApiContext& context, CompletionCall& call) {
  call.model = context.model_names.front();
  const auto name = fields.string("model");
  if (!name) return;
  const auto& served = context.model_names;
  if (std::find(served.begin(), served.end(), *name) == served.end()) {
    fields.fail(model_not_found(served));
  } else {
    call.model = *name;
  }
}

void read_request_id(FieldReader& fields, CompletionCall& call) {
  const auto id = fields.string("request_id");
  if (!id) return;
  const bool plain = std::all_of(id->begin(), id->end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == ':';
  });
  if (!plain || id->empty() || id->size() > 128) {
    fields.fail(invalid_value("request_id", "must be 1 to 128 letters, digits or any of - _ . :"));
    return;
  }
  call.request_id = *id;
}

// Which ones a client may name is the operator's to say: whoever goes first holds up others.
int32_t read_priority(FieldReader& fields, const ApiContext& context) {
  const int64_t least = context.limits.priority_min, most = context.limits.priority_max;
  const auto otherwise = std::clamp<int64_t>(0, least, most);
  const auto priority = fields.integer("priority", INT32_MIN, INT32_MAX).value_or(otherwise);
  if (priority < least || priority > most) fields.fail(priority_not_allowed(least, most));
  return static_cast<int32_t>(priority);
}

uint64_t read_cache_salt(FieldReader& fields) {
  constexpr size_t kSaltBytesMax = 256;
  const nlohmann::json* salt = fields.find("cache_salt");
  if (salt == nullptr) return 0;
  if (!salt->is_string()) {
    fields.fail(invalid_type("cache_salt", "a string"));
    return 0;
  }
  const auto& text = salt->get_ref<const std::string&>();
  if (text.empty() || text.size() > kSaltBytesMax) {
    fields.fail(
        invalid_value("cache_salt", "must have 1 to " + std::to_string(kSaltBytesMax) + " bytes"));
  }
  return salt_of_text(text);
}

void read_stops(FieldReader& fields, const ApiContext& context, CompletionCall& call) {
  const nlohmann::json* stop = fields.find("stop");
  if (stop == nullptr) return;
  const ApiLimits& limits = context.limits;
  const auto add = [&](const nlohmann::json& value, const std::string& param) {
    if (!value.is_string()) return fields.fail(invalid_type(param, "a string"));
    const auto& text = value.get_ref<const std::string&>();
    if (text.empty() || static_cast<int64_t>(text.size()) > limits.stop_bytes_max) {
      return fields.fail(invalid_value(
          param, "must have 1 to " + std::to_string(limits.stop_bytes_max) + " bytes"));
    }
    call.stop.push_back(text);
  };
  if (!stop->is_array()) {
    add(*stop, "stop");
  } else if (static_cast<int64_t>(stop->size()) > limits.stops_max) {
    fields.fail(invalid_value(
        "stop", "must not list more than " + std::to_string(limits.stops_max) + " strings"));
  } else {
    for (size_t i = 0; i < stop->size(); ++i) add((*stop)[i], "stop[" + std::to_string(i) + "]");
  }
  if (!call.stop.empty() && context.tokenizer == nullptr) {
    fields.fail(invalid_value(
        "stop", "needs a tokenizer: " + why_no_tokenizer(context) + "; use stop_token_ids"));
  }
}

void read_stop_tokens(FieldReader& fields, const ApiContext& context, Request& request) {
  const nlohmann::json* ids = fields.find("stop_token_ids");
  if (ids == nullptr || (ids->is_array() && ids->empty())) return;
  if (ids->is_array() && static_cast<int64_t>(ids->size()) > context.limits.stop_tokens_max) {
    return fields.fail(
        invalid_value("stop_token_ids",
                      "must not list more than " + std::to_string(context.limits.stop_tokens_max)));
  }
  auto read = read_token_ids(*ids, context.shape->vocabulary, "stop_token_ids");
  if (auto* error = std::get_if<ApiError>(&read)) return fields.fail(std::move(*error));
  request.stop_tokens = std::get<std::vector<int32_t>>(std::move(read));
}

void read_logit_bias(FieldReader& fields, const ApiContext& context, SamplingParams& sampling) {
  const nlohmann::json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return fields.fail(invalid_type("logit_bias", "an object"));
  const int64_t most = context.limits.logit_bias_max;
  if (static_cast<int64_t>(bias->size()) > most) {
    return fields.fail(invalid_value(
        "logit_bias", "must not have more than " + std::to_string(most) + " entries"));
  }
  for (const auto& [key, value] : bias->items()) {
    // At most 9 digits: fits int32, and no library parser has to be trusted with "+1" or " 1".
    const bool digits =
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    const int32_t id = digits ? std::stoi(key) : -1;
    if (id < 0 || id >= context.shape->vocabulary) {
      return fields.fail(invalid_value(
          "logit_bias", "must have token ids from 0 to " +
                            std::to_string(context.shape->vocabulary - 1) + " as keys"));
    }
    if (!value.is_number()) return fields.fail(invalid_type("logit_bias", "token id: number"));
    const double clamped = std::clamp(value.get<double>(), -100.0, 100.0);
    sampling.logit_bias.emplace_back(id, static_cast<float>(clamped));
  }
}

void read_sampling(FieldReader& fields, const ApiContext& context, SamplingParams& sampling) {
  const auto real = [&](const char* name, double least, double most, float& out) {
    if (const auto value = fields.number(name, least, most)) out = static_cast<float>(*value);
  };
  real("temperature", 0, 2, sampling.temperature);
  if (sampling.temperature < 1e-5f) sampling.temperature = 0;  // Dividing by it would overflow.
  real("top_p", 0, 1, sampling.top_p);
  // The smallest double above 0 becomes 0 as a float.
  if (sampling.top_p <= 0) fields.fail(invalid_value("top_p", "must be above 0 and at most 1"));
  sampling.top_k =
      static_cast<int32_t>(std::max<int64_t>(0, fields.integer("top_k", -1, kIntMax).value_or(0)));
  real("min_p", 0, 1, sampling.min_p);
  real("repetition_penalty", 0, 100, sampling.repetition_penalty);
  if (sampling.repetition_penalty < 1e-3f) {
    fields.fail(invalid_value("repetition_penalty", "must be between 0.001 and 100"));
  }
  real("presence_penalty", -2, 2, sampling.presence_penalty);
  real("frequency_penalty", -2, 2, sampling.frequency_penalty);
  read_logit_bias(fields, context, sampling);
}

// max_completion_tokens is the newer name of max_tokens.
std::optional<int64_t> read_max_tokens(FieldReader& fields) {
  const auto older = fields.integer("max_tokens", 0, kIntMax);
  const auto newer = fields.integer("max_completion_tokens", 0, kIntMax);
  if (older && newer && *older != *newer) {
    fields.fail(invalid_value("max_completion_tokens", "must not differ from max_tokens"));
  }
  return newer ? newer : older;
}

void read_answer_form(FieldReader& fields, const ApiContext& context, CompletionCall& call) {
  call.echo = fields.flag("echo", false);
  call.include_stop = fields.flag("include_stop_str_in_output", false);
  call.return_token_ids = fields.flag("return_token_ids", false);
  call.tokens_as_ids = fields.flag("return_tokens_as_token_ids", false);
  call.skip_special_tokens = fields.flag("skip_special_tokens", true);
  call.logprobs =
      static_cast<int32_t>(fields.integer("logprobs", 0, context.limits.logprobs_max).value_or(-1));
  call.prompt_logprobs = static_cast<int32_t>(
      fields.integer("prompt_logprobs", 0, context.limits.logprobs_max).value_or(-1));
  call.timings = fields.flag("timings_per_token", false);
  call.progress = fields.flag("return_progress", false);
  call.timeout_seconds = fields.number("timeout", 0, kTimeoutMax).value_or(0);
  call.stream = fields.flag("stream", false);
  call.stream_interval =
      static_cast<int32_t>(fields.integer("stream_interval", 1, kIntMax).value_or(1));
  if (call.stream && call.prompt_logprobs >= 0) {
    fields.fail(
        invalid_value("prompt_logprobs", "cannot be had in a stream; echo with logprobs can"));
  }
  call.ping_seconds =
      static_cast<int32_t>(fields.integer("sse_ping_interval", -1, 3600).value_or(0));
  const nlohmann::json* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.fail(invalid_type("stream_options", "an object"));
  if (!call.stream) {
    return fields.fail(invalid_value("stream_options", "can only be set when stream is true"));
  }
  FieldReader inner(*options);
  call.include_usage = inner.flag("include_usage", true);
  call.continuous_usage = inner.flag("continuous_usage_stats", false);
  if (context.limits.strict_params) inner.refuse_unknown();
  if (inner.failed()) {
    ApiError error = inner.error();
    if (!error.param.empty()) error.param = "stream_options." + error.param;
    fields.fail(std::move(error));
  }
}

// `source`: the field that the prompts are of.
void check_lengths(FieldReader& fields, const ApiContext& context, const char* source,
                   const std::vector<std::vector<int32_t>>& prompts, bool default_length,
                   Request& request) {
  int64_t longest = 0;
  for (const auto& prompt : prompts) {
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  }
  const int64_t positions = context.shape->positions;
  // Without max_tokens a request gets all that fits.
  if (default_length && longest < positions) {
    request.max_tokens =
        static_cast<int32_t>(std::min<int64_t>(request.max_tokens, positions - longest));
  }
  if (longest + request.max_tokens > positions) {
    ApiError error = context_length_exceeded(positions, longest, request.max_tokens);
    error.param = source;
    fields.fail(std::move(error));
  }
  if (request.min_tokens > request.max_tokens) {
    fields.fail(invalid_value("min_tokens", "must not be above max_tokens, which is " +
                                                std::to_string(request.max_tokens)));
  }
}

void check_sequences(FieldReader& fields, const ApiContext& context, size_t prompts, int64_t n) {
  const int64_t most = context.limits.sequences_max;
  if (fields.failed() || static_cast<int64_t>(prompts) * n <= most) return;
  ApiError error =
      invalid_value("n", "times the number of prompts must not be above " + std::to_string(most));
  error.numbers = {{"max_allowed", most}};
  fields.fail(std::move(error));
}

void expand(std::vector<std::vector<int32_t>> prompts, const Request& base,
            std::optional<uint64_t> seed, SeedStream* seeds, CompletionCall& call) {
  const auto drawn = [&] {
    if (seeds != nullptr) return seeds->next();
    return random_u64();
  };
  call.requests.reserve(prompts.size() * static_cast<size_t>(call.samples));
  for (auto& prompt : prompts) {
    for (int32_t sample = 0; sample < call.samples; ++sample) {
      Request request = base;
      request.prompt = prompt;
      request.sampling.seed = seed ? sample_seed(*seed, sample) : drawn();
      call.requests.push_back(std::move(request));
    }
  }
}

}  // namespace

uint64_t sample_seed(uint64_t seed, int32_t sample) {
  if (sample == 0) return seed;
  // The finaliser of splitmix64: neighbouring values become unrelated.
  uint64_t x = seed + static_cast<uint64_t>(sample) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

ApiResult<CompletionCall> parse_completion(std::string_view json_body, const ApiContext& context) {
  auto body = parse_body(json_body, context.limits.json_values_max);
  if (auto* error = std::get_if<ApiError>(&body)) return std::move(*error);
  CompletionFields own;
  own.prompts = [&](FieldReader& fields, int64_t max_tokens) {
    return read_prompts(fields, context, max_tokens);
  };
  return parse_completion_fields(std::get<nlohmann::json>(body), context, own);
}

ApiResult<CompletionCall> parse_completion_fields(const nlohmann::json& body,
                                                  const ApiContext& context,
                                                  const CompletionFields& own) {
  FieldReader fields(body);
  CompletionCall call;
  Request base;
  base.max_tokens = own.tokens_default;
  read_model(fields, context, call);
  read_request_id(fields, call);
  fields.string("user");  // Accepted because clients send it; has no effect.
  reject_unsupported(fields);
  const auto max_tokens = read_max_tokens(fields);
  base.max_tokens = static_cast<int32_t>(max_tokens.value_or(base.max_tokens));
  base.min_tokens = static_cast<int32_t>(fields.integer("min_tokens", 0, kIntMax).value_or(0));
  base.ignore_eos = fields.flag("ignore_eos", false);
  base.priority = read_priority(fields, context);
  base.cache_salt.text = read_cache_salt(fields);
  const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX);
  call.samples =
      static_cast<int32_t>(fields.integer("n", 1, context.limits.samples_max).value_or(1));
  read_sampling(fields, context, base.sampling);
  read_answer_form(fields, context, call);
  read_stops(fields, context, call);
  read_stop_tokens(fields, context, base);
  base.kv = read_kv_rule(fields, context.kv_rule);
  base.logprobs = call.logprobs;
  base.prompt_logprobs = std::max(call.prompt_logprobs, call.echo ? call.logprobs : -1);
  // Cheap checks first: the prompt is tokenised only when all else is right.
  auto prompts = own.prompts(fields, base.max_tokens);
  IgnoredParameters ignored = read_ignored(fields, context.limits.strict_params);
  call.ignored = std::move(ignored.names);
  call.ignored_more = ignored.more;
  check_lengths(fields, context, own.source, prompts, !max_tokens, base);
  check_sequences(fields, context, prompts.size(), call.samples);
  if (fields.failed()) return fields.error();
  const bool seeded = seed && *seed != -1;  // vLLM's "no seed"
  expand(std::move(prompts), base,
         seeded ? std::optional(static_cast<uint64_t>(*seed)) : std::nullopt, context.seeds.get(),
         call);
  return call;
}

}  // namespace spillway
