// POST /v1/completions and /v1/chat/completions: connects the exchange with a CompletionRun.
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "kernels/base/clock.h"
#include "server/api/answer_json.h"
#include "server/api/chat_parse.h"
#include "server/api/chunk_writer.h"
#include "server/api/completion_run.h"
#include "server/api/ignored_parameters.h"
#include "server/api/service.h"
#include "server/http/sse.h"

namespace spillway {
namespace {

// Work above some milliseconds of JSON and tokenising is bulk work, so that short requests do not
// wait for it: bodies of more bytes, and answers that may hold more.
constexpr size_t kShortBodyBytes = size_t{64} << 10;
constexpr uint64_t kShortAnswerBytes = uint64_t{1} << 20;
constexpr size_t kShortChunkScores = 2000;  // Of tokens and candidates in a chunk of a stream

void post_work(Exchange& exchange, bool is_short, std::function<void()> task) {
  is_short ? exchange.post_work(std::move(task)) : exchange.post_bulk_work(std::move(task));
}

// Of a call's prompts, each counted once, and of all its answers.
int64_t tokens_at_most(const CompletionCall& call) {
  int64_t tokens = 0;
  for (size_t i = 0; i < call.requests.size(); ++i) {
    const Request& request = call.requests[i];
    tokens += request.max_tokens;
    if (i % static_cast<size_t>(call.samples) == 0) {
      tokens += static_cast<int64_t>(request.prompt.size());
    }
  }
  return tokens;
}

bool is_short_chunk(const ChoiceText& piece) {
  size_t scores = 0;
  for (const auto* some : {&piece.scores, &piece.prompt_scores}) {
    for (const TokenScore& score : *some) scores += 1 + score.logprobs.best.size();
  }
  return scores <= kShortChunkScores && piece.text.size() <= kShortBodyBytes;
}

// What the two endpoints differ in.
struct Endpoint {
  const char* path;
  ApiResult<CompletionCall> (*parse)(std::string_view json_body, const ApiContext& context);
};

constexpr Endpoint kCompletions = {"/v1/completions", parse_completion};
constexpr Endpoint kChatCompletions = {"/v1/chat/completions", parse_chat};

// One answer. work() runs on a worker thread and starts the run; everything after that is posted
// to the network thread, in the order of the engine's events. Kept alive by the run's callbacks and
// the exchange's, which both end with the answer.
class CompletionAnswer : public std::enable_shared_from_this<CompletionAnswer> {
 public:
  CompletionAnswer(ApiService& api, const Endpoint& endpoint, ExchangePtr exchange,
                   Admission::Ticket ticket)
      : api_(api),
        endpoint_(endpoint),
        exchange_(std::move(exchange)),
        ticket_(std::move(ticket)) {}

  void watch();
  void work(const HttpRequest& request);

 private:
  void refuse(const ApiError& error);
  void on_started(std::shared_ptr<CompletionRun> run);
  void on_progress(const PromptProgress& progress);
  template <class Event>
  void in_order(Event event);
  void on_text(ChoiceText& piece);
  void on_long_text(ChoiceText piece);
  void on_built(const std::string& event, bool echo);
  void on_done(const CompletionResult& result);
  void conclude(const CompletionResult& result);
  void on_gone();
  void on_tick();

  void begin_stream();
  void end_with(const ApiError& error);
  void respond_whole(CompletionResult result);
  std::optional<ApiError> too_late() const;
  void ping_if_silent();
  HttpFields fields() const;

  std::string chunk_of(const ChoiceText& piece) {
    return sse_event(chunks_.write(head_, call_, api_.context, piece));
  }
  ApiError logged_here(const ApiError& error) const { return logged(error, endpoint_.path); }

  ApiService& api_;
  const Endpoint& endpoint_;
  const ExchangePtr exchange_;
  Admission::Ticket ticket_;
  std::shared_ptr<KeyQuotas::Lease> quota_;  // Null: the key has no limits
  const double arrived_ = steady_seconds();

  CompletionCall call_;  // Set by work() before the run starts, constant from then on
  CompletionHead head_;
  ChunkWriter chunks_;
  std::shared_ptr<void> memory_;  // For prompts and answer, until a whole answer is sent

  std::shared_ptr<CompletionRun> run_;
  bool gone_ = false;
  bool begun_ = false;  // The stream's head was sent
  bool ended_ = false;  // The answer is complete
  double last_sent_ = steady_seconds();
  std::string stream_error_;  // Code of the error that ended the stream; empty: none
  bool building_ = false;     // A long chunk is being made; events wait for it in `later_`.
  std::deque<std::function<void()>> later_;
};

void CompletionAnswer::watch() {
  const auto self = shared_from_this();
  exchange_->on_gone([self] { self->on_gone(); });
  exchange_->every(0.25, [self] { self->on_tick(); });
}

void CompletionAnswer::work(const HttpRequest& request) {
  auto parsed = endpoint_.parse(request.body, api_.context_of(request.api_key));
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    return refuse(*error);
  }
  call_ = std::get<CompletionCall>(std::move(parsed));
  for (Request& sequence : call_.requests) {
    sequence.client = request.client;
    sequence.cache_salt.key = request.api_key;
  }
  const auto sequences = static_cast<int64_t>(call_.requests.size());
  auto quota = api_.quotas.take(request.api_key, sequences, tokens_at_most(call_));
  if (const auto* error = std::get_if<ApiError>(&quota)) {
    return refuse(*error);
  }
  quota_ = std::get<0>(std::move(quota));
  if (!ticket_.grow_to(sequences)) {
    return refuse(queue_full(api_.admission.retry_after_seconds(sequences)));
  }
  auto memory = api_.answers.take(answer_bytes(call_));
  if (const auto* error = std::get_if<ApiError>(&memory)) {
    return refuse(*error);
  }
  memory_ = std::get<0>(std::move(memory));
  head_ = make_completion_head(call_);
  const auto self = shared_from_this();
  CompletionEvents events;
  if (call_.stream && call_.progress) {
    events.on_progress = [self](PromptProgress progress) {
      self->exchange_->post(
          [self, progress] { self->in_order([self, progress] { self->on_progress(progress); }); });
    };
  }
  events.on_text = [self](ChoiceText piece) {
    self->exchange_->post([self, moved = std::move(piece)]() mutable {
      self->in_order([self, last = std::move(moved)]() mutable { self->on_text(last); });
    });
  };
  events.on_done = [self](CompletionResult result) {
    // Free the slots now, not when the network thread handles this.
    self->ticket_.release();
    if (self->quota_ != nullptr) {
      self->quota_->end(result.usage.prompt_tokens + result.usage.generated_tokens);
    }
    const auto moved = std::make_shared<CompletionResult>(std::move(result));
    self->exchange_->post(
        [self, moved] { self->in_order([self, moved] { self->on_done(*moved); }); });
  };
  auto started =
      CompletionRun::start(api_.scheduler, api_.context.tokenizer, call_, std::move(events));
  if (auto* refusal = std::get_if<ApiError>(&started)) {
    if (refusal->status == 429) {
      refusal->retry_after_seconds = api_.admission.retry_after_seconds();
    }
    return refuse(logged_here(*refusal));
  }
  exchange_->post([self, run = std::get<0>(std::move(started))] { self->on_started(run); });
}

// Releases the slots first, so that a client that retries finds them free.
void CompletionAnswer::refuse(const ApiError& error) {
  ticket_.release();
  quota_.reset();
  exchange_->respond(error_response(error));
}

void CompletionAnswer::on_started(std::shared_ptr<CompletionRun> run) {
  run_ = std::move(run);
  if (gone_ || ended_) return run_->cancel();
  // Now, for proxies and clients with a deadline for the head.
  if (call_.stream) begin_stream();
}

void CompletionAnswer::begin_stream() {
  if (begun_ || ended_) return;
  begun_ = true;
  last_sent_ = steady_seconds();
  exchange_->begin_stream(fields());
}

void CompletionAnswer::on_progress(const PromptProgress& progress) {
  if (gone_ || ended_) return;
  begin_stream();
  last_sent_ = steady_seconds();
  exchange_->send(sse_event(answer_progress_chunk(head_, call_, api_.context, progress)));
}

// Events come in the engine's order, and none overtakes a chunk that is still being made.
template <class Event>
void CompletionAnswer::in_order(Event event) {
  if (!building_) return event();
  later_.emplace_back(std::move(event));
}

void CompletionAnswer::on_text(ChoiceText& piece) {
  if (gone_ || ended_) return;
  begin_stream();
  last_sent_ = steady_seconds();
  if (!is_short_chunk(piece)) return on_long_text(std::move(piece));
  exchange_->send(chunk_of(piece), piece.first && call_.echo);
}

// The scores of a prompt may be megabytes of JSON, so they are not built on the network thread.
void CompletionAnswer::on_long_text(ChoiceText piece) {
  building_ = true;
  exchange_->post_bulk_work([self = shared_from_this(), piece = std::move(piece)] {
    std::string event;
    try {
      event = self->chunk_of(piece);
    } catch (const std::exception&) {
      // Out of memory: on_built() ends the stream with an error.
    }
    const bool echo = piece.first && self->call_.echo;
    self->exchange_->post([self, moved = std::move(event), echo] { self->on_built(moved, echo); });
  });
}

void CompletionAnswer::on_built(const std::string& event, bool echo) {
  building_ = false;
  if (!gone_ && !ended_) {
    if (event.empty()) {
      end_with(engine_error());
      if (run_) run_->cancel();
    } else {
      exchange_->send(event, echo);
      last_sent_ = steady_seconds();
    }
  }
  while (!building_ && !later_.empty()) {
    const auto next = std::move(later_.front());
    later_.pop_front();
    next();
  }
}

void CompletionAnswer::on_done(const CompletionResult& result) {
  conclude(result);
  RequestWork work;
  work.prompt_tokens = result.usage.prompt_tokens;
  work.cached_tokens = result.usage.cached_tokens;
  work.generated_tokens = result.usage.generated_tokens;
  work.queue_seconds = result.times.queue;
  work.first_token = result.first_token;
  work.finish_reason = result.cancelled    ? "abort"
                       : result.error      ? "error"
                       : result.hit_length ? "length"
                                           : "stop";
  work.error = stream_error_;
  exchange_->report(std::move(work));
}

void CompletionAnswer::conclude(const CompletionResult& result) {
  if (result.error) {
    const ApiError error = logged_here(*result.error);  // Log it even if the client has left
    if (!gone_ && !ended_) end_with(error);
    return;
  }
  if (gone_ || ended_) return;
  if (!call_.stream) return respond_whole(result);
  begin_stream();
  if (call_.include_usage) {
    exchange_->send(sse_event(answer_usage_chunk(head_, call_, api_.context, result.usage)));
  }
  exchange_->send(std::string(kSseDone));
  exchange_->end_stream();
  ended_ = true;
}

// An echo with logprobs is megabytes of JSON, so it is not built on the network thread.
void CompletionAnswer::respond_whole(CompletionResult result) {
  ended_ = true;
  const bool small = answer_bytes(call_) <= kShortAnswerBytes;
  post_work(*exchange_, small, [self = shared_from_this(), moved = std::move(result)] {
    HttpResponse response;
    response.body = answer_body(self->head_, self->call_, self->api_.context, moved);
    response.fields = self->fields();
    response.lease = self->memory_;
    self->exchange_->respond(std::move(response));
  });
}

// A stream that has begun cannot change its status: clients look for an error event.
void CompletionAnswer::end_with(const ApiError& error) {
  ended_ = true;
  if (!begun_) return exchange_->respond(error_response(error));
  stream_error_ = error.code;
  exchange_->send(sse_event(error.json()));
  exchange_->send(std::string(kSseDone));
  exchange_->end_stream();
}

void CompletionAnswer::on_gone() {
  gone_ = true;
  if (run_) run_->cancel();
}

void CompletionAnswer::on_tick() {
  if (ended_) return;
  if (const auto late = too_late()) {
    end_with(*late);
    if (run_) run_->cancel();
    return;
  }
  if (begun_) ping_if_silent();
}

std::optional<ApiError> CompletionAnswer::too_late() const {
  const double taken = steady_seconds() - arrived_;
  const double own = run_ ? call_.timeout_seconds : 0;  // Before that work() may be reading it
  const auto most = static_cast<double>(api_.request_seconds_max);
  if (own > 0 && taken > own) return request_timeout(own, true);
  if (most > 0 && taken > most) return request_timeout(most, false);
  return {};
}

void CompletionAnswer::ping_if_silent() {
  const double interval = call_.ping_seconds > 0 ? call_.ping_seconds : api_.ping_seconds;
  if (call_.ping_seconds < 0 || interval <= 0 || steady_seconds() - last_sent_ < interval) return;
  last_sent_ = steady_seconds();
  // Some readers lose the event that follows a comment arriving alone; clients that asked for usage
  // already read chunks without choices.
  exchange_->send(call_.include_usage ? sse_event(answer_ping_chunk(head_, call_, api_.context))
                                      : std::string(kSsePing));
}

HttpFields CompletionAnswer::fields() const {
  return ignored_fields({call_.ignored, call_.ignored_more});
}

void answer(ApiService& api, const Endpoint& endpoint, HttpRequest request,
            const ExchangePtr& exchange) {
  if (const auto error = api.quotas.refuse(request.api_key)) {
    return exchange->respond(error_response(*error));
  }
  auto ticket = api.admission.enter(request.client);
  if (!ticket) {
    return exchange->respond(error_response(queue_full(api.admission.retry_after_seconds())));
  }
  const auto answer =
      std::make_shared<CompletionAnswer>(api, endpoint, exchange, *std::move(ticket));
  answer->watch();
  const bool small = request.body.size() <= kShortBodyBytes;
  post_work(*exchange, small, [answer, moved = std::move(request)] { answer->work(moved); });
}

}  // namespace

void handle_completions(ApiService& api, HttpRequest request, const ExchangePtr& exchange) {
  answer(api, kCompletions, std::move(request), exchange);
}

void handle_chat_completions(ApiService& api, HttpRequest request, const ExchangePtr& exchange) {
  answer(api, kChatCompletions, std::move(request), exchange);
}

}  // namespace spillway
