#include "server/api/answer_memory.h"

#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/units.h"

namespace spillway {
namespace {

// Bytes of a sequence beside its tokens: its request three times over (the call's, the scheduler's,
// the answer's), queues, text being held back.
constexpr uint64_t kSequenceBytes = 4096;
constexpr uint64_t kPromptTokenBytes = 3 * sizeof(int32_t) + 8;  // Three copies, and its text
constexpr uint64_t kNewTokenBytes = 48;                          // Id, text, and both as JSON
constexpr uint64_t kStopBytes = 128;  // A stop string in a search, beside its bytes
// A scored token, and each of its candidates: the entry, and its JSON as tree and as text.
constexpr uint64_t kScoreBytes = 256;
constexpr uint64_t kCandidateBytes = 72;
// The same of chats and of prompt_logprobs, where each is an object of three values.
constexpr uint64_t kChatScoreBytes = 896;
constexpr uint64_t kChatCandidateBytes = 640;

ApiError answers_full(double seconds) {
  ApiError error = queue_full(retry_after(seconds));
  error.message =
      "The answers that are being made leave no memory for this one. Try again later, or ask for "
      "less at once.";
  error.code = "answers_full";
  return error;
}

}  // namespace

ApiError answer_too_large(uint64_t bytes, uint64_t most) {
  ApiError error;
  error.message = "Prompts and answers of this request may take " + format_bytes(bytes) +
                  " of memory and all requests together have " + format_bytes(most) +
                  ". Ask for fewer prompts, choices, tokens or logprobs at once; "
                  "--answers-bytes-max allows more.";
  error.code = "answer_too_large";
  error.numbers = {{"max_allowed", static_cast<int64_t>(most)}};
  return error;
}

uint64_t answer_bytes(const CompletionCall& call) {
  uint64_t bytes = 0;
  const uint64_t entry = call.chat ? kChatScoreBytes : kScoreBytes;
  const uint64_t candidate = call.chat ? kChatCandidateBytes : kCandidateBytes;
  const uint64_t scored =
      call.logprobs < 0 ? 0 : entry + candidate * static_cast<uint64_t>(call.logprobs);
  const uint64_t prompt_scored =
      call.prompt_logprobs < 0
          ? 0
          : kChatScoreBytes + kChatCandidateBytes * static_cast<uint64_t>(call.prompt_logprobs);
  // Each sequence has its own search: each byte, and the fallback position after it.
  uint64_t stops = 0;
  for (const std::string& stop : call.stop) stops += kStopBytes + 3 * stop.size();
  for (const Request& request : call.requests) {
    const uint64_t prompt = request.prompt.size();
    const auto made = static_cast<uint64_t>(request.max_tokens);
    bytes += kSequenceBytes + stops + prompt * kPromptTokenBytes + made * kNewTokenBytes;
    bytes += scored * (made + (call.echo ? prompt : 0)) + prompt_scored * prompt;
    bytes += request.sampling.logit_bias.size() * 3 * sizeof(request.sampling.logit_bias[0]);
  }
  return bytes;
}

ApiResult<std::shared_ptr<void>> AnswerMemory::take(uint64_t bytes) {
  if (bytes > bytes_max_) return answer_too_large(bytes, bytes_max_);
  uint64_t before = held_->bytes.load();
  do {
    if (bytes > bytes_max_ - before) {
      const auto missing = static_cast<double>(before + bytes - bytes_max_);
      return answers_full(held_->pace.seconds_for(missing, steady_seconds()));
    }
  } while (!held_->bytes.compare_exchange_weak(before, before + bytes));
  if (before == 0) held_->pace.start(steady_seconds());
  return std::shared_ptr<void>(nullptr, [held = held_, bytes](void*) {
    held->bytes.fetch_sub(bytes);
    held->pace.freed(static_cast<double>(bytes), steady_seconds());
  });
}

}  // namespace spillway
