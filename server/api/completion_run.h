// One completion call on its way through the scheduler: submits its sequences, turns tokens into
// text (streaming detokenizer, stop strings) and collects the choices.
//
// Thread rule: start() and cancel() from any thread but the engine's; events arrive one at a time,
// on the engine thread or inside start(), and must neither block nor call back into the run.
// The scheduler and the tokenizer outlive the run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"
#include "server/api/completion.h"

namespace spillway {

// One token of `logprobs`: an echoed prompt token or a generated one.
struct TokenScore {
  int32_t token = 0;
  int64_t text_offset = 0;  // Characters (code points) of the choice's text before it
  bool scored = true;       // False for the first prompt token: null in the answer
  TokenLogprobs logprobs;
};

struct CompletionUsage {
  int64_t prompt_tokens = 0;     // Each prompt once, whatever n is
  int64_t cached_tokens = 0;     // Of these: not computed; of choices that have ended
  int64_t generated_tokens = 0;  // All choices
  KvUsage kv;                    // Sum over choices that have ended
};

// Where a call's time went, in seconds; of several sequences the longest.
struct CompletionTimes {
  double queue = 0;       // Submitted until admitted
  double prompt = 0;      // Admitted until the first token
  double generation = 0;  // First token until the last
};

// How far a call's prompts are, each counted once.
struct PromptProgress {
  int64_t tokens = 0;     // Of all prompts
  int64_t cached = 0;     // Of these: found in the prefix cache
  int64_t processed = 0;  // In the KV cache, those found among them
  double seconds = 0;     // Since the first was admitted
};

// A piece of one choice (streaming), or, all pieces joined, the whole choice.
struct ChoiceText {
  int32_t index = 0;
  std::string text;                // Valid UTF-8; with echo the first piece begins with the prompt
  std::vector<int32_t> tokens;     // Generated tokens of this piece
  std::vector<TokenScore> scores;  // If logprobs were asked for
  std::vector<TokenScore> prompt_scores;   // If prompt_logprobs were asked for
  bool first = false;                      // The first piece of its choice
  bool finished = false;                   // The last one; the fields below are set
  bool hit_length = false;                 // finish_reason "length", else "stop"
  std::optional<int32_t> stop_token;       // The stop token that was named in the request
  std::optional<std::string> stop_string;  // The stop string that matched
  CompletionUsage usage;                   // For the whole call so far
  CompletionTimes times;                   // Likewise
};

struct CompletionResult {
  std::optional<ApiError> error;    // Set: there is no answer
  bool cancelled = false;           // cancel() was called or the scheduler gave up; error is set
  bool own_fault = false;           // `error` would recur: see Finish::own_fault
  Status engine;                    // The engine's status, when the error is its own
  std::vector<ChoiceText> choices;  // By index; empty when streaming
  CompletionUsage usage;
  CompletionTimes times;
  std::optional<double> first_token;  // steady_seconds() at the first of any choice; none: no token
  bool hit_length = false;            // A choice ended by its length
};

struct CompletionEvents {
  std::function<void()> on_admitted;  // Once, when the first sequence enters the block
  std::function<void(PromptProgress)> on_progress;  // Streaming calls that want it only
  std::function<void(ChoiceText)> on_text;        // Streaming calls only; never empty-texted early
  std::function<void(CompletionResult)> on_done;  // Exactly once, after every sequence has ended
};

class CompletionRun {
 public:
  // Submits every sequence, or none: when one is refused the others are cancelled, no event is
  // delivered, and the refusal is returned (429 when the queue is full). Does not block on the
  // engine.
  static ApiResult<std::shared_ptr<CompletionRun>> start(Scheduler& scheduler,
                                                         const Tokenizer* tokenizer,
                                                         CompletionCall call,
                                                         CompletionEvents events);
  ~CompletionRun();
  CompletionRun(const CompletionRun&) = delete;
  CompletionRun& operator=(const CompletionRun&) = delete;

  // Ends all sequences before their next token; on_done (cancelled) still follows. Idempotent.
  void cancel();

  const CompletionCall& call() const;

  class State;

 private:
  explicit CompletionRun(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace spillway
