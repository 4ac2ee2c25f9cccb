// GET /api/events: what runs, once a second, as server-sent events for the dashboard.
#include <algorithm>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

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

// One watcher. Events are made on a worker thread, one at a time: the list of batches may wait for
// the disk.
class Watcher : public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(ApiService& api, ExchangePtr exchange, uint64_t key)
      : api_(api), exchange_(std::move(exchange)), key_(key) {}

  void start() {
    exchange_->begin_stream({});
    exchange_->every(kSecondsBetween, [self = shared_from_this()] { self->tick(); });
    tick();
  }

 private:
  void tick() {
    if (api_.draining) {
      exchange_->send(std::string(kSseDone));
      return exchange_->end_stream();
    }
    if (api_.timeline != nullptr) api_.timeline->watch_until(steady_seconds() + kWatchSeconds);
    if (making_) return;
    making_ = true;
    exchange_->post_bulk_work([self = shared_from_this()] {
      std::string event = sse_event(event_of(self->api_, self->key_));
      self->exchange_->post([self, moved = std::move(event)] {
        self->making_ = false;
        self->exchange_->send(moved);
      });
    });
  }

  ApiService& api_;
  const ExchangePtr exchange_;
  const uint64_t key_;
  bool making_ = false;  // The network thread's
};

}  // namespace

void handle_events(ApiService& api, HttpRequest request, const ExchangePtr& exchange) {
  std::make_shared<Watcher>(api, exchange, request.api_key)->start();
}

}  // namespace spillway
