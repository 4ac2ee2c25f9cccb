// One /v1/completions body after validation, or one of /v1/chat/completions (chat_parse.h). `serve`
// and `batch` share it, together with completion_run.h (which runs it) and answer_json.h (which
// writes the answer).
//
//   parse_completion(body)  ->  CompletionCall  ->  CompletionRun::start  ->  answer_body()
//
// Plain values, any thread. parse_completion tokenises, so it may take long for a long prompt: call
// it neither on the network thread nor on the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/model_shape.h"
#include "scheduler/request.h"
#include "server/http/error.h"

namespace spillway {

class ChatTemplate;
class SeedStream;
class Tokenizer;

// Bounds of one request; each is tested at the limit and one above.
struct ApiLimits {
  int64_t sequences_max = 256;  // prompts x n of one request
  int64_t samples_max = 128;    // n
  int64_t stops_max = 64;
  int64_t stop_bytes_max = 256;   // Limit for one stop string
  int64_t stop_tokens_max = 256;  // Entries of stop_token_ids
  int64_t logit_bias_max = 300;   // Entries
  int64_t logprobs_max = 20;
  int64_t json_values_max = 1'000'000;            // Token-id prompts need one value a token
  int64_t tokenize_bytes_max = int64_t{4} << 20;  // Text of /tokenize
  bool strict_params = false;                     // Unknown names are errors instead of ignored
  // What `priority` may be. Without one a request has 0, or what is nearest to it.
  int32_t priority_min = INT32_MIN, priority_max = INT32_MAX;
};

// The model being served. The pointees outlive every call.
struct ApiContext {
  const ModelShape* shape = nullptr;     // Never null
  const Tokenizer* tokenizer = nullptr;  // Null: token-id prompts only, no text in answers
  std::string tokenizer_error;           // Why its files cannot be used; empty: it has none
  const ChatTemplate* chat = nullptr;    // Null: no chats
  std::vector<std::string> model_names;  // The first is the one in answers; never empty
  int64_t created = 0;                   // Unix seconds, for /v1/models
  std::string fingerprint;               // system_fingerprint of every answer
  KvRule kv_rule;                        // Default for requests without a rule
  ApiLimits limits;
  std::shared_ptr<SeedStream> seeds;  // For requests without one; null: random ones
};

// Why prompts of this model must be token ids: "this model has no tokenizer files".
std::string why_no_tokenizer(const ApiContext& context);

struct CompletionCall {
  std::string model;       // The served name in the answer
  std::string request_id;  // The body's request_id; empty: none

  // Prompt-major: requests[prompt * samples + sample]; that is also the choice's index.
  std::vector<Request> requests;
  int32_t samples = 1;  // n

  bool chat = false;  // The answer is a chat.completion
  bool echo = false;
  std::vector<std::string> stop;  // None is empty
  bool include_stop = false;      // include_stop_str_in_output
  int32_t logprobs = -1;          // -1: `logprobs` is null in the answer
  int32_t prompt_logprobs = -1;   // -1: none; not with a stream
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // return_tokens_as_token_ids: "token_id:123" for token strings
  bool skip_special_tokens = true;

  bool timings = false;        // timings_per_token: `timings` in every chunk, and in a whole answer
  bool progress = false;       // return_progress: chunks that say how far the prompts are
  double timeout_seconds = 0;  // `timeout`: the request ends in an error after so long; 0: never

  bool stream = false;
  int32_t stream_interval = 1;    // Tokens of a chunk behind a choice's first one, at least
  bool include_usage = false;     // A last chunk with the usage
  bool continuous_usage = false;  // Running usage in every chunk
  int32_t ping_seconds = 0;       // sse_ping_interval; 0: the server's default, -1: never

  std::vector<std::string> ignored;  // Names that were accepted and have no effect; at most 32
  int64_t ignored_more = 0;  // Number of further names, or of names that no header can carry

  int64_t prompts() const { return static_cast<int64_t>(requests.size()) / samples; }
};

// Validates a body strictly: types, ranges, cross-field rules, token ids, context length. Nulls
// count as absent. A request without a seed gets one of context.seeds.
ApiResult<CompletionCall> parse_completion(std::string_view json_body, const ApiContext& context);

// The seed of sample `sample` of a request with `seed`: sample 0 keeps it, so n = 1 and the first
// of n > 1 sample the same tokens.
uint64_t sample_seed(uint64_t seed, int32_t sample);

}  // namespace spillway
