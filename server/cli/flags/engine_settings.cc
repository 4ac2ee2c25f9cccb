#include "server/cli/flags/engine_settings.h"

#include <charconv>

#include "kernels/base/quote.h"
#include "kernels/base/units.h"
#include "scheduler/planning/disk_dirs.h"

namespace spillway {

namespace {

constexpr int64_t kSequencesMax = 65536;
constexpr int64_t kThreadsMax = 1024;
constexpr int64_t kStagesMax = 64;
constexpr int64_t kRanksMax = 64;
constexpr int64_t kRowsMax = int64_t{1} << 20;
constexpr int64_t kDraftTokensMax = 16;

Result<TierPercent> parse_percent(const std::string& text) {
  TierPercent percent{};
  const char* at = text.data();
  const char* end = at + text.size();
  for (size_t i = 0; i < percent.size(); ++i) {
    const auto [rest, error] = std::from_chars(at, end, percent[i]);
    const bool separated = i + 1 < percent.size() ? rest != end && *rest == ',' : rest == end;
    if (error != std::errc() || !separated || percent[i] < 0 || percent[i] > 100) {
      return invalid_argument("must be three per cents, on device, host and disk: 20,80,0");
    }
    at = rest + 1;
  }
  const int sum = percent[0] + percent[1] + percent[2];
  if (sum != 100) return invalid_argument("adds up to " + std::to_string(sum) + ", must be 100");
  return percent;
}

Result<KvAmount> parse_amount(const std::string& text) {
  const char* end = text.data() + text.size();
  KvAmount amount;
  if (text.find('.') == std::string::npos) {
    const auto [rest, error] = std::from_chars(text.data(), end, amount.rows);
    if (error == std::errc() && rest == end && amount.rows >= 0 && amount.rows <= kRowsMax) {
      return amount;
    }
  } else {
    const auto [rest, error] =
        std::from_chars(text.data(), end, amount.ratio, std::chars_format::fixed);
    if (error == std::errc() && rest == end && amount.ratio >= 0 && amount.ratio < 1) return amount;
  }
  return invalid_argument(
      in_quotes(text) + " is neither a whole number of positions (256) nor a ratio below 1 (0.1)");
}

Result<KvKeep> parse_keep(const std::string& text) {
  if (text == "prompt") return KvKeep::whole_prompt();
  const Result<KvAmount> amount = parse_amount(text);
  if (amount.ok()) return KvKeep(amount.value());
  return invalid_argument(in_quotes(text) +
                          " is neither a whole number of positions (4), a ratio below 1 (0.1), nor "
                          "prompt");
}

std::string kv_format_names() {
  return format_names("|", {}, true);
}

Status not_a_format(const std::string& text, const std::string& names) {
  return invalid_argument(in_quotes(text) + " is not one of " + names);
}

Result<Format> parse_format(const std::string& text) {
  if (const auto format = format_of_name(text)) return *format;
  return not_a_format(text, format_names("|"));
}

Result<Format> parse_kv_format(const std::string& text) {
  const auto format = format_of_name(text);
  if (format && format_traits(*format).kv_cache) return *format;
  return not_a_format(text, kv_format_names());
}

Result<uint64_t> parse_size_or_off(const std::string& text) {
  if (text == "off") return uint64_t{0};
  const Result<uint64_t> size = parse_bytes(text);
  if (size.ok()) return size;
  return invalid_argument(in_quotes(text) + " is neither off nor a size, such as 16GiB");
}

template <class T>
void add_optional(Settings& settings, const char* name, std::optional<T>* field,
                  std::string meaning, const char* help, Result<T> (*parse)(const std::string&)) {
  const auto assign = [field, parse](const std::string& text) -> Status {
    SPILLWAY_ASSIGN_OR_RETURN(*field, parse(text));
    return {};
  };
  settings.add({name, std::move(meaning), help, "", "", assign});
}

}  // namespace

void add_disk_dirs(Settings& settings, std::vector<std::string>* folders, const std::string& help) {
  const auto assign = [folders](const std::string& text) -> Status {
    if (text.empty()) {  // As if it were not given
      folders->clear();
      return {};
    }
    SPILLWAY_ASSIGN_OR_RETURN(*folders, parse_disk_dirs(text));
    return {};
  };
  settings.add({"disk-dir", "DIR", help + "; on several disks: a folder on each", "", "", assign,
                SettingSource::kDefault, true});
}

namespace {

Result<std::vector<int64_t>> parse_numbers(const std::string& text, int64_t least,
                                           const std::string& example) {
  std::vector<int64_t> numbers;
  for (const std::string& part : split_list(text)) {
    const char* end = part.data() + part.size();
    const auto [rest, error] = std::from_chars(part.data(), end, numbers.emplace_back());
    if (error != std::errc() || rest != end || numbers.back() < least) {
      return invalid_argument(in_quotes(text) + " is no list of numbers from " +
                              std::to_string(least) + " on, such as " + example);
    }
  }
  return numbers;
}

Result<std::vector<int64_t>> parse_stage_layers(const std::string& text) {
  return parse_numbers(text, 1, "12,20");
}

Result<std::vector<int64_t>> parse_gpus(const std::string& text) {
  return parse_numbers(text, 0, "0,1");
}

void add_placement_flags(Settings& settings, EngineFlags* flags) {
  settings.group("Where things are");
  settings.add_text("plan", &flags->plan, "FILE",
                    "a plan written by `spillway plan`; flags override it (default: found "
                    "automatically)");
  settings.add_choice("device", &flags->device, {"auto", "cpu", "cuda"}, "what computes");
  settings.add_integer("gpu", &flags->gpu, 0, 63, "which CUDA device, where there are several");
  settings.add_size("device-memory", &flags->device_memory_bytes,
                    "budget of device memory, never exceeded (default: what is free)");
  settings.add_size("host-memory", &flags->host_memory_bytes,
                    "budget of host memory, never exceeded (default: what is free)");
  settings.add_size("disk-memory", &flags->disk_memory_bytes, "budget on disk, never exceeded");
  add_disk_dirs(settings, &flags->disk_dirs, "where spilled blocks live; emptied at exit");
  add_optional(settings, "weights", &flags->weights, "D,H,K",
               "per cent of the weights on device, host, disk", parse_percent);
  add_optional(settings, "kv", &flags->kv, "D,H,K",
               "per cent of the KV cache on device, host, disk", parse_percent);
  add_optional(settings, "activations", &flags->activations, "D,H,K",
               "per cent of the activations on device, host, disk", parse_percent);
  settings.add_integer("block", &flags->block, 1, kSequencesMax,
                       "sequences that share one pass over the weights");
  settings.add_integer("micro-batch", &flags->micro_batch, 1, kSequencesMax,
                       "sequences that the device computes at once");
  settings.add_integer("prefill-tokens", &flags->prefill_tokens, 1, kRowsMax,
                       "prompt tokens of one pass; a longer prompt goes through in parts, beside "
                       "the others' tokens (default: 2048, or 8192 where weights stream)");
  settings.add_integer("prefill-target", &flags->prefill_target, 0, kRowsMax,
                       "prompt tokens that a pass aims at while requests wait, to compute them "
                       "while it reads for the others; 0: as many as fit (default: found with the "
                       "plan)");
  add_optional(settings, "prefix-cache", &flags->prefix_cache_bytes, "SIZE|off",
               "of the KV cache, the most for beginnings that prompts share: they are computed "
               "once, and kept while the memory is free (default: no limit for serve and batch, "
               "else off)",
               parse_size_or_off);
  settings.add_integer("ranks", &flags->ranks, 1, kRanksMax,
                       "share every layer among so many ranks in this process, each with its part "
                       "of the threads, the memory and the KV cache; the tokens stay the same");
  add_optional(settings, "gpus", &flags->gpus, "N,N,...",
               "share every layer among these CUDA devices, a rank each", parse_gpus);
  settings.same("ranks", "gpus");  // GPUs that are named now, not as many as a plan found
  settings.add_integer(
      "stages", &flags->stages, 1, kStagesMax,
      "for serve, batch and bench: the model lies in so many processes, each with a "
      "run of its layers, that mpirun -np N or srun --mpi=pmix -n N start, on one host or "
      "several; rank 0 has the files, the port and the last layers");
  add_optional(settings, "stage-layers", &flags->stage_layers, "N,N,...",
               "layers of each of these processes, from rank 0 on (default: by threads and memory)",
               parse_stage_layers);
  settings.qualify("stages", {"stage-layers"});
  settings.add_integer("max-model-len", &flags->max_model_len, 2, kRowsMax,
                       "most positions of a sequence, prompt and new tokens: buffers go by it "
                       "(default: the model's)");
}

void add_arithmetic_flags(Settings& settings, EngineFlags* flags) {
  settings.group("How things are computed");
  add_optional(settings, "format", &flags->format, format_names("|"),
               "format of the weights (default: the checkpoint's)", parse_format);
  add_optional(settings, "kv-format", &flags->kv_format, kv_format_names(),
               "format of the KV cache (default: that of computing)", parse_kv_format);
  settings.add_choice("quantized-compute", &flags->quantized_compute, {"auto", "int8", "float"},
                      "how products with quantised weights are computed on the CPU: activations "
                      "in 8 bits (int8) or not (float); auto: in 8 bits with weights that "
                      "Spillway quantised to q4 or q8");
  settings.add_choice("q4-compute", &flags->quantized_compute, {"auto", "int8", "float"},
                      "another name of --quantized-compute");
  settings.same("quantized-compute", "q4-compute");
  settings.add_choice("kv-rule", &flags->kv_rule, {"full", "h2o", "window", "random", "snap"},
                      "which cached positions a sequence keeps");
  add_optional(settings, "kv-heavy", &flags->kv_heavy, "X",
               "positions to keep beside the recent ones, h2o's heavy hitters: positions, or a "
               "ratio below 1 (default: 0.1)",
               parse_amount);
  add_optional(settings, "kv-recent", &flags->kv_recent, "X",
               "recent positions to keep: positions, or a ratio below 1 (default: 0.1, window "
               "0.2)",
               parse_amount);
  add_optional(settings, "kv-keep", &flags->kv_keep, "N|X|prompt",
               "first positions that the rule protects: so many, a ratio below 1, or the prompt's; "
               "of the heavy ones, beside a window's recent ones",
               parse_keep);
  settings.add_integer("kv-sink", &flags->kv_sink, 0, kRowsMax,
                       "another name of a window's --kv-keep");
  settings.add_choice("kv-ratio-of", &flags->kv_ratio_of, {"prompt", "total"},
                      "what ratios refer to: the prompt, or prompt and new tokens");
  settings.add_choice(
      "kv-snap", &flags->kv_snap, {"mean", "max"},
      "what snap goes by: the mean of the weights that a prompt's last queries give "
      "a position, or the highest of them");
  settings.qualify("kv-rule",
                   {"kv-heavy", "kv-recent", "kv-keep", "kv-sink", "kv-ratio-of", "kv-snap"});
  settings.same("kv-keep", "kv-sink");
  settings.add_choice("draft", &flags->draft, {"off", "ngram"},
                      "where few sequences run: several tokens of one in a pass, drafted from what "
                      "followed its last tokens before; the answers stay the same");
  settings.add_integer("draft-tokens", &flags->draft_tokens, 1, kDraftTokensMax,
                       "tokens of a draft, at most (default: 4)");
  settings.qualify("draft", {"draft-tokens"});
  settings.add_choice("attention", &flags->attention, {"auto", "device", "host"},
                      "where attention over a KV cache in host memory runs");
  settings.add_switch("no-overlap", &flags->no_overlap,
                      "do one thing after another, to measure what overlap is worth");
  settings.add_integer("threads", &flags->threads, 0, kThreadsMax,
                       "threads that compute; 0: one a core");
  settings.add_seed("seed", &flags->seed, "of everything drawn at random");
  settings.add_choice("verify", &flags->verify, {"every", "sample", "first"},
                      "which reads of weights on disk are compared with their checksums; sample: "
                      "each slab's first, every eighth, and all while nothing else is to be done");
  settings.add_choice("weights-from", &flags->weights_from, {"packed", "checkpoint"},
                      "checkpoint: read bf16 or f16 safetensors where they lie, in every run "
                      "anew, instead of packing them once into a file in the cache folder");
  settings.add_text("trace", &flags->trace, "FILE",
                    "write a Chrome/Perfetto trace of every transfer, op and wait");
  settings.add_switch("dummy-weights", &flags->dummy_weights,
                      "MODEL names a shape (opt-1.3b); its weights are random");
}

}  // namespace

void add_engine_flags(Settings& settings, EngineFlags* flags) {
  add_placement_flags(settings, flags);
  add_arithmetic_flags(settings, flags);
}

}  // namespace spillway
