#include "server/commands/eval.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "scheduler/sampler.h"
#include "server/commands/quantization_json.h"
#include "server/config/command_line.h"
#include "server/runtime.h"

namespace spillway {

namespace {

constexpr uint64_t kTextBytesMax = uint64_t{1} << 30;
constexpr int64_t kWindowsAtOnce = 32;  // As far as the KV cache has room

struct Score {
  double nats = 0;  // Sum of -log p over the scored tokens
  int64_t tokens = 0;
  uint64_t bytes = 0;  // Of their text
  int64_t windows = 0;
};

// Windows that go through the model together, each fed its own true tokens.
class WindowBlock final : private LogitsSink {
 public:
  WindowBlock(Engine& engine, const Tokenizer& tokenizer, int64_t prompt_tokens)
      : engine_(engine), tokenizer_(tokenizer), prompt_tokens_(prompt_tokens) {}

  Status run(std::span<const std::vector<int32_t>> windows, Score* score) {
    windows_ = windows;
    score_ = score;
    std::vector<std::unique_ptr<KvSequence>> caches;
    Status status = reserve(&caches);
    const auto longest =
        static_cast<int64_t>(std::max_element(windows.begin(), windows.end(), shorter)->size());
    // The last token of a window is only ever a target.
    for (at_ = prompt_tokens_; status.ok() && at_ < longest; ++at_) status = step(caches);
    for (auto& cache : caches) engine_.release(std::move(cache));
    score_->windows += static_cast<int64_t>(windows.size());
    return status;
  }

 private:
  static bool shorter(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
    return a.size() < b.size();
  }

  Status reserve(std::vector<std::unique_ptr<KvSequence>>* caches) {
    for (const auto& window : windows_) {
      SPILLWAY_ASSIGN_OR_RETURN(auto cache, engine_.reserve(static_cast<int64_t>(window.size())));
      caches->push_back(std::move(cache));
    }
    return {};
  }

  // One sweep: prompts the first time, then one token a window; scores token `at_` of each.
  Status step(const std::vector<std::unique_ptr<KvSequence>>& caches) {
    items_.clear();
    owners_.clear();
    const bool prompt = at_ == prompt_tokens_;
    for (size_t i = 0; i < windows_.size(); ++i) {
      const std::span<const int32_t> window(windows_[i]);
      if (static_cast<int64_t>(window.size()) <= at_) continue;
      const int64_t first = prompt ? 0 : at_ - 1;
      items_.push_back(
          {.tokens = window.subspan(static_cast<size_t>(first), static_cast<size_t>(at_ - first)),
           .position = first,
           .kv = caches[i].get()});
      owners_.push_back(i);
    }
    SPILLWAY_RETURN_IF_ERROR(engine_.run(items_, *this));
    return std::exchange(failure_, Status());
  }

  void on_failure(size_t, const Status& status) override { failure_ = status; }

  void on_logits(size_t item, int64_t, std::span<float> logits) override {
    const int32_t target = windows_[owners_[item]][static_cast<size_t>(at_)];
    score_->nats -= double{token_logprobs(logits, target, 0).logprob};
    score_->bytes += tokenizer_.token_bytes(target).size();
    ++score_->tokens;
  }

  Engine& engine_;
  const Tokenizer& tokenizer_;
  const int64_t prompt_tokens_;
  std::span<const std::vector<int32_t>> windows_;
  Score* score_ = nullptr;
  int64_t at_ = 0;
  std::vector<SweepItem> items_;
  std::vector<size_t> owners_;
  Status failure_;
};

Result<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found("cannot open --text " + path);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (text.empty()) return invalid_argument("--text " + path + " is empty");
  if (text.size() > kTextBytesMax) {
    return invalid_argument("--text " + path + " has " + format_bytes(text.size()) +
                            "; at most 1 GiB can be evaluated at once");
  }
  return text;
}

// Cuts the text into windows of `context` tokens, each with the tokenizer's bos in front. A window
// with nothing to score is left out.
std::vector<std::vector<int32_t>> cut_windows(const std::vector<int32_t>& text, int32_t bos,
                                              const EvalFlags& flags) {
  std::vector<std::vector<int32_t>> windows;
  const auto length = static_cast<size_t>(flags.context - (bos >= 0 ? 1 : 0));
  for (size_t first = 0; first < text.size(); first += length) {
    if (flags.windows > 0 && static_cast<int64_t>(windows.size()) >= flags.windows) break;
    std::vector<int32_t> window;
    if (bos >= 0) window.push_back(bos);
    const size_t last = std::min(text.size(), first + length);
    window.insert(window.end(), text.begin() + static_cast<std::ptrdiff_t>(first),
                  text.begin() + static_cast<std::ptrdiff_t>(last));
    if (static_cast<int64_t>(window.size()) > flags.prompt_tokens) {
      windows.push_back(std::move(window));
    }
  }
  return windows;
}

Status check_flags(const EvalFlags& flags, const Runtime& runtime) {
  if (runtime.tokenizer() == nullptr) {
    return invalid_argument("the model has no tokenizer files, so a text cannot be evaluated");
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

void print_score(const EvalFlags& flags, const Runtime& runtime, const Score& score,
                 double seconds) {
  const double perplexity = std::exp(score.nats / static_cast<double>(score.tokens));
  const double bits_per_byte = score.nats / std::log(2.0) / static_cast<double>(score.bytes);
  if (flags.json) {
    nlohmann::json json = {{"model", runtime.model_name()},
                           {"perplexity", perplexity},
                           {"tokens", score.tokens},
                           {"bits_per_byte", bits_per_byte},
                           {"windows", score.windows},
                           {"context", flags.context},
                           {"prompt_tokens", flags.prompt_tokens},
                           {"format", dtype_name(runtime.plan().format)},
                           {"kv_format", dtype_name(runtime.plan().kv_format)},
                           {"kv_rule", "full"},
                           {"seconds", seconds}};
    if (runtime.plan().quantization) {
      json["quantization"] = json_of_quantization(*runtime.plan().quantization);
    }
    std::cout << json.dump(2) << std::endl;
    return;
  }
  std::printf(
      "perplexity %.3f, %.4f bits per byte (%lld tokens in %lld windows of %lld, prompts "
      "of %lld; %s)\n",
      perplexity, bits_per_byte, static_cast<long long>(score.tokens),
      static_cast<long long>(score.windows), static_cast<long long>(flags.context),
      static_cast<long long>(flags.prompt_tokens), format_seconds(seconds).c_str());
  if (runtime.plan().quantization) {
    std::printf("quantization: relative RMS error %.2f %%, largest error %.4g\n",
                runtime.plan().quantization->relative_rms() * 100,
                runtime.plan().quantization->error_max);
  }
}

Status eval(const EvalFlags& flags, const EngineFlags& engine_flags, const std::string& model) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text, read_text(flags.text));
  RuntimeOptions options;
  options.start_scheduler = false;
  options.say = [](const std::string& line) { std::cerr << line << std::endl; };
  options.prefill_tokens_max = kWindowsAtOnce * std::max<int64_t>(1, flags.prompt_tokens);
  SPILLWAY_ASSIGN_OR_RETURN(const auto runtime, Runtime::open(model, engine_flags, options));
  SPILLWAY_RETURN_IF_ERROR(check_flags(flags, *runtime));
  const Tokenizer& tokenizer = *runtime->tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode(text, {.add_bos = false});
  const auto windows = cut_windows(ids, tokenizer.adds_bos() ? tokenizer.bos() : -1, flags);
  if (windows.empty()) {
    return invalid_argument("--text has " + std::to_string(ids.size()) +
                            " tokens, nothing behind the first --prompt-tokens " +
                            std::to_string(flags.prompt_tokens) + " to score");
  }
  const KvCache& kv = runtime->engine().kv();
  const auto fitting = static_cast<int64_t>(kv.total_bytes() / kv.sequence_bytes(flags.context));
  const auto at_once = static_cast<size_t>(std::clamp<int64_t>(fitting, 1, kWindowsAtOnce));
  Score score;
  const double start = steady_seconds();
  WindowBlock block(runtime->engine(), tokenizer, flags.prompt_tokens);
  for (size_t first = 0; first < windows.size(); first += at_once) {
    const size_t count = std::min(at_once, windows.size() - first);
    SPILLWAY_RETURN_IF_ERROR(block.run(std::span(windows).subspan(first, count), &score));
    std::cerr << score.windows << " of " << windows.size() << " windows, "
              << format_seconds(steady_seconds() - start) << std::endl;
  }
  print_score(flags, *runtime, score, steady_seconds() - start);
  return {};
}

}  // namespace

int run_eval(const EvalFlags& flags, const EngineFlags& engine, const std::string& model) {
  return report("eval", eval(flags, engine, model));
}

}  // namespace spillway
