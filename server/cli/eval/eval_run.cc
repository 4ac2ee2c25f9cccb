#include "server/cli/eval/eval_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/base/kv_random.h"
#include "scheduler/sampler.h"
#include "scheduler/stages/joint_sweep.h"

namespace spillway {

namespace {

// Windows that run through the model together, each fed its own true tokens.
class WindowBlock final : private LogitsSink {
 public:
  WindowBlock(Runtime& runtime, const EvalFlags& flags, const KvRule& rule)
      : engine_(runtime.engine()),
        others_(runtime.others()),
        tokenizer_(*runtime.tokenizer()),
        prompt_tokens_(flags.prompt_tokens),
        seed_(flags.seed),
        rule_(rule) {}

  // Scores the first of the windows, as many as there is room for: at least one.
  Result<size_t> run(std::span<const std::vector<int32_t>> windows, EvalScore* score) {
    windows_ = windows;
    score_ = score;
    std::vector<std::unique_ptr<KvSequence>> caches;
    Status status = reserve(&caches);
    windows_ = windows.first(caches.size());
    int64_t longest = 0;
    for (const auto& window : windows_) {
      longest = std::max(longest, static_cast<int64_t>(window.size()));
    }
    // The last token of a window is only a target.
    for (at_ = prompt_tokens_; status.ok() && at_ < longest; ++at_) status = step(caches);
    for (auto& cache : caches) release_on_all(engine_, others_, std::move(cache));
    SPILLWAY_RETURN_IF_ERROR(status);
    score_->windows += static_cast<int64_t>(windows_.size());
    return windows_.size();
  }

 private:
  Status reserve(std::vector<std::unique_ptr<KvSequence>>* caches) {
    for (const auto& window : windows_) {
      const auto length = static_cast<int64_t>(window.size());
      KvBudget budget = resolve(rule_, prompt_tokens_, length - prompt_tokens_);
      // By its number in the text, so that a window's draws do not depend on those beside it.
      const auto number = static_cast<uint64_t>(score_->windows) + caches->size();
      if (budget.random()) budget.seed = KvDraw::key_of(seed_, static_cast<int64_t>(number));
      auto cache = reserve_on_all(engine_, others_, length, budget);
      if (cache.status().code() == Code::kCapacity && !caches->empty()) return {};
      SPILLWAY_RETURN_IF_ERROR(cache.status());
      caches->push_back(std::move(cache).value());
    }
    return {};
  }

  // Runs one sweep: prompts the first time, then one token a window; scores token `at_` of each.
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
    if (others_ != nullptr) SPILLWAY_RETURN_IF_ERROR(others_->start(items_));
    SPILLWAY_RETURN_IF_ERROR(finish_sweep(engine_, others_, items_, *this));
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
  OtherRanks* const others_;  // Null: the engine has the whole model
  const Tokenizer& tokenizer_;
  const int64_t prompt_tokens_;
  const uint64_t seed_;
  const KvRule rule_;
  std::span<const std::vector<int32_t>> windows_;
  EvalScore* score_ = nullptr;
  int64_t at_ = 0;
  std::vector<SweepItem> items_;
  std::vector<size_t> owners_;
  Status failure_;
};

}  // namespace

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

Result<EvalScore> score_windows(Runtime& runtime, std::span<const std::vector<int32_t>> windows,
                                const EvalFlags& flags, const KvRule& rule,
                                const std::function<void(int64_t)>& progress) {
  EvalScore score;
  WindowBlock block(runtime, flags, rule);
  while (!windows.empty()) {
    const size_t at_once = std::min<size_t>(kEvalWindowsAtOnce, windows.size());
    SPILLWAY_ASSIGN_OR_RETURN(const size_t done, block.run(windows.first(at_once), &score));
    windows = windows.subspan(done);
    progress(score.windows);
  }
  return score;
}

}  // namespace spillway
