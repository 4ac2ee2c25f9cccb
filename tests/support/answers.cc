#include "tests/support/answers.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/test_devices.h"

namespace spillway::test {

namespace {

constexpr int32_t kBest = 8;  // Log-probabilities of so many tokens at each step
// Of the tokens that could be compared, so many must have been: runs that part at once are not
// alike.
constexpr double kComparedMin = 0.5;

bool plain_greedy(const Request& request) {
  const SamplingParams& by = request.sampling;
  return by.temperature == 0 && by.repetition_penalty == 1 && by.presence_penalty == 0 &&
         by.frequency_penalty == 0 && by.logit_bias.empty();
}

bool near(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance;
}

std::string at(size_t sequence, size_t step) {
  return "sequence " + std::to_string(sequence) + ", token " + std::to_string(step) + ": ";
}

// Walks along two answers to one request.
class Comparison {
 public:
  Comparison(const Request& request, const Answer& expected, const Answer& found, double tolerance)
      : request_(request), expected_(expected), found_(found), tolerance_(tolerance) {}

  // What is wrong at which step; empty: nothing.
  std::string run(size_t sequence) {
    const size_t length = std::min(expected_.tokens.size(), found_.tokens.size());
    for (size_t t = 0; t < length && t < comparable(); ++t, ++compared_) {
      const int32_t want = expected_.tokens[t], got = found_.tokens[t];
      if (want != got) {
        if (!plain_greedy(request_) || about_as_likely(expected_.logprobs[t], got)) return "";
        return at(sequence, t) + std::to_string(got) + " instead of " + std::to_string(want) +
               ", which is more likely";
      }
      const double a = expected_.logprobs[t].logprob, b = found_.logprobs[t].logprob;
      if (near(a, b, tolerance_)) continue;
      return at(sequence, t) + "log-probability " + std::to_string(b) + " instead of " +
             std::to_string(a);
    }
    if (expected_.tokens.size() == found_.tokens.size() || compared_ == comparable()) return "";
    return at(sequence, length) + "one answer ends here";
  }

  size_t compared() const { return compared_; }
  size_t comparable() const {
    const size_t all = expected_.tokens.size();
    const auto kind = request_.kv.kind;
    return kind == KvRuleKind::kH2o || kind == KvRuleKind::kSnap ? std::min<size_t>(all, 1) : all;
  }

 private:
  // Each may be off by the tolerance.
  bool about_as_likely(const TokenLogprobs& step, int32_t token) const {
    for (const auto& [other, logprob] : step.best) {
      if (other == token) return near(step.logprob, logprob, 2 * tolerance_);
    }
    return false;
  }

  const Request& request_;
  const Answer& expected_;
  const Answer& found_;
  const double tolerance_;
  size_t compared_ = 0;
};

}  // namespace

double rounding_tolerance(Format format, Format kv_format) {
  const auto of = [](Format one) {
    if (one == Format::kF32) return 0.0;
    return one == Format::kF16 ? 0.02 : 0.15;  // 4-bit weights are multiplied in bf16.
  };
  return std::max(of(format), of(kv_format));
}

double placement_tolerance(Runtime& runtime, Format format, Format kv_format) {
  const bool exact = !runtime.device().discrete() || !sums_by_shape();
  return exact ? 0 : rounding_tolerance(format, kv_format);
}

void ask_logprobs(std::vector<Request>* requests) {
  for (Request& request : *requests) request.logprobs = std::max(request.logprobs, kBest);
}

std::unique_ptr<Runtime> open_runtime(const std::string& checkpoint, const EngineFlags& flags) {
  Result<std::unique_ptr<Runtime>> runtime = Runtime::open(checkpoint, flags, {});
  INFO(runtime.status().message());
  REQUIRE(runtime.ok());
  return std::move(runtime).value();
}

Answers answers_of(const std::vector<std::shared_ptr<CollectingSink>>& sinks) {
  Answers answers;
  for (const auto& sink : sinks) {
    const Finish finish = sink->wait();
    INFO(finish.status.message());
    REQUIRE(finish.status.ok());
    answers.push_back({sink->tokens, sink->logprobs, finish.usage.cached_tokens});
  }
  return answers;
}

Answers run_arriving(Runtime& runtime, const std::vector<Request>& requests) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (size_t i = 0; i < requests.size(); ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    REQUIRE(runtime.scheduler().submit(requests[i], sinks.back()).ok());
    if (i % 11 == 10) sinks.back()->wait_tokens(1);
  }
  return answers_of(sinks);
}

Answers run_together(Runtime& runtime, const std::vector<Request>& requests) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Request& request : requests) {
    sinks.push_back(std::make_shared<CollectingSink>());
    const auto submitted = runtime.scheduler().submit(request, sinks.back());
    INFO(submitted.status().message());
    REQUIRE(submitted.ok());
  }
  return answers_of(sinks);
}

std::string difference(const std::vector<Request>& requests, const Answers& expected,
                       const Answers& found, double tolerance) {
  if (expected.size() != requests.size() || found.size() != requests.size()) {
    return "an answer is missing";
  }
  size_t compared = 0, comparable = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (tolerance == 0) {
      const std::vector<int32_t>&want = expected[i].tokens, &got = found[i].tokens;
      if (want == got) continue;
      const auto first = std::mismatch(want.begin(), want.end(), got.begin(), got.end()).first;
      return at(i, static_cast<size_t>(first - want.begin())) + "another, or an end";
    }
    Comparison comparison(requests[i], expected[i], found[i], tolerance);
    if (std::string wrong = comparison.run(i); !wrong.empty()) return wrong;
    compared += comparison.compared();
    comparable += comparison.comparable();
  }
  if (static_cast<double>(compared) >= kComparedMin * static_cast<double>(comparable)) return "";
  return "only " + std::to_string(compared) + " of " + std::to_string(comparable) +
         " tokens before the runs part";
}

}  // namespace spillway::test
