// GET /api/events: what runs, once a second, as server-sent events for the dashboard.
#include "server/api/events.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/clock.h"
#include "server/api/health.h"
#include "server/api/service.h"
#include "server/http/sse.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSecondsBetween = 1;
constexpr size_t kPartsOfSweep = 300;  // Spans of a row at most: what a picture shows
constexpr double kWatchSeconds = 10;   // Beyond this the timeline forgets a watcher
constexpr double kMakingSecondsMax = 30;

Json sweep_json(const SweepStats& sweep, uint64_t number, const Timeline* timeline) {
  if (sweep.ended == 0) return {};
  Json tracks = Json::array();
  if (timeline != nullptr) {
    for (const Timeline::Row& row :
         timeline->between(sweep.ended - sweep.seconds, sweep.ended, kPartsOfSweep)) {
      tracks.push_back({{"name", row.name}, {"spans", row.spans}});
    }
  }
  const std::pair<const char*, double> waits[] = {{"weights", sweep.weights_wait},
                                                  {"KV cache", sweep.kv_wait},
                                                  {"activations", sweep.activations_wait},
                                                  {"room to write", sweep.staging_wait}};
  Json wait_list = Json::array();
  for (const auto& [name, seconds] : waits) {
    wait_list.push_back({{"name", name}, {"seconds", seconds}});
  }
  return {{"number", number},
          {"seconds", sweep.seconds},
          {"decoding", sweep.decoding},
          {"prompt_tokens", sweep.prompt_tokens},
          {"waits", std::move(wait_list)},
          {"tracks", std::move(tracks)}};
}

Json tiers_json(const PlanFigures& plan) {
  Json tiers = Json::array();
  for (const TierAmount& amount : plan.tier_bytes) {
    tiers.push_back({{"tier", amount.tier}, {"kind", amount.kind}, {"bytes", amount.bytes}});
  }
  return tiers;
}

// `key`: whose batches are shown.
std::string event_of(const ApiService& api, uint64_t key) {
  const SchedulerStats stats = api.scheduler.stats();
  const auto trouble = engine_trouble(stats, api.stall_seconds);
  const std::string doubt = trouble ? trouble->message : engine_doubt(stats);
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  Json event = {{"now", static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec)},
                {"model", api.context.model_names.front()},
                {"positions", api.context.shape->positions},
                {"version", SPILLWAY_VERSION},
                {"healthy", !trouble},
                {"detail", doubt},
                {"running", stats.running},
                {"waiting", stats.waiting},
                {"set_aside", stats.set_aside},
                {"generated_tokens", stats.generated_tokens},
                {"prompt_tokens", stats.prompt_tokens},
                {"busy_seconds", stats.busy_seconds},
                {"predicted", nullptr},
                {"kv",
                 {{"used", stats.kv_bytes_used},
                  {"prefix", stats.prefix_bytes},
                  {"total", stats.kv_bytes_total}}},
                {"tiers", tiers_json(api.plan)},
                {"sweep", sweep_json(stats.last_sweep, stats.sweeps, api.timeline)},
                {"plan", api.plan_text}};
  if (api.plan.predicted_tokens_per_second) {
    event["predicted"] = *api.plan.predicted_tokens_per_second;
  }
  std::string text = event.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.back() = ',';
  return text + "\"batches\":" + (api.batches ? api.batches(key) : "null") + "}";
}

ApiError too_many_watchers() {
  ApiError error = queue_full(5);  // Nothing is known of when pages are closed.
  error.code = "too_many_watchers";
  error.message = "This client watches " + std::to_string(kWatchersPerClientMax) +
                  " times already. Close a page that shows this server.";
  return error;
}

}  // namespace

// The events of one API key, and who gets them. They are made on a worker thread, one at a time.
class EventFeed : public std::enable_shared_from_this<EventFeed> {
 public:
  EventFeed(ApiService& api, uint64_t key) : api_(api), key_(key) {}

  void add(const ExchangePtr& watcher) {
    watchers_.push_back(watcher);
    refresh(watcher);
    if (!making_ && !event_.empty()) watcher->send(event_);
  }

  void remove(const ExchangePtr& watcher) { std::erase(watchers_, watcher); }

  // Makes the next event when it is time, as work of `watcher`.
  void refresh(const ExchangePtr& watcher) {
    const double now = steady_seconds();
    // One that takes so long failed for want of memory, or is in a long queue.
    if (now < next_ || (making_ && now < next_ + kMakingSecondsMax)) return;
    making_ = true;
    next_ = now + kSecondsBetween;
    watcher->post_bulk_work([self = shared_from_this(), watcher] {
      std::string event = sse_event(event_of(self->api_, self->key_));
      watcher->post([self, moved = std::move(event)] { self->publish(moved); });
    });
  }

 private:
  void publish(std::string event) {
    making_ = false;
    event_ = std::move(event);
    // A copy: a watcher who does not read is cut off, and leaves.
    for (const ExchangePtr& watcher : std::vector<ExchangePtr>(watchers_)) watcher->send(event_);
  }

  ApiService& api_;
  const uint64_t key_;
  std::vector<ExchangePtr> watchers_;
  std::string event_;  // The last one
  double next_ = 0;    // steady_seconds() from which on another is due
  bool making_ = false;
};

namespace {

// One watcher; lives as long as its answer.
class Watcher : public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(ApiService& api, ExchangePtr exchange, const HttpRequest& request)
      : api_(api), exchange_(std::move(exchange)), client_(request.client) {
    auto& feed = api_.watchers.feeds[request.api_key];
    if (feed == nullptr) feed = std::make_shared<EventFeed>(api_, request.api_key);
    feed_ = feed;
    ++api_.watchers.of_client[client_];
  }

  ~Watcher() {
    feed_->remove(exchange_);
    const auto count = api_.watchers.of_client.find(client_);
    if (--count->second == 0) api_.watchers.of_client.erase(count);
  }

  void start() {
    exchange_->begin_stream({});
    exchange_->every(kSecondsBetween, [self = shared_from_this()] { self->tick(); });
    watched();
    feed_->add(exchange_);
  }

 private:
  void watched() {
    if (api_.timeline != nullptr) api_.timeline->watch_until(steady_seconds() + kWatchSeconds);
  }

  void tick() {
    if (api_.draining) {
      exchange_->send(std::string(kSseDone));
      return exchange_->end_stream();
    }
    watched();
    feed_->refresh(exchange_);
  }

  ApiService& api_;
  const ExchangePtr exchange_;
  const uint64_t client_;
  std::shared_ptr<EventFeed> feed_;
};

}  // namespace

void handle_events(ApiService& api, HttpRequest request, const ExchangePtr& exchange) {
  if (request.method == "HEAD") return exchange->begin_stream({});  // Which is all of it
  const auto count = api.watchers.of_client.find(request.client);
  if (count != api.watchers.of_client.end() && count->second >= kWatchersPerClientMax) {
    return exchange->respond(error_response(too_many_watchers()));
  }
  std::make_shared<Watcher>(api, exchange, request)->start();
}

}  // namespace spillway
