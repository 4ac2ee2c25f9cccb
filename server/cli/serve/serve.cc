#include "server/cli/serve/serve.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include "kernels/base/check.h"
#include "kernels/base/units.h"
#include "server/api/seed_stream.h"
#include "server/api/service.h"
#include "server/http/server.h"
#include "server/log.h"

namespace spillway {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::seconds kHealthInterval{1};

ApiContext make_context(const ServeFlags& flags, const ServedModel& model, int64_t slots_max) {
  ApiContext context = model.context;
  if (!flags.served_model_names.empty()) context.model_names = flags.served_model_names;
  context.limits.strict_params = flags.strict_params;
  context.limits.priority =
      flags.priority == "on" || (flags.priority == "auto" && flags.api_keys.size() <= 1);
  context.seeds = std::make_shared<SeedStream>(flags.seed);
  context.limits.sequences_max = std::min(context.limits.sequences_max, slots_max);
  return context;
}

void print_url(std::string_view url) {
  std::printf("Listening on %.*s\n", static_cast<int>(url.size()), url.data());
  std::fflush(stdout);
}

// Its caller wants the server to outlive the terminal.
bool started_by_nohup() {
  struct sigaction present {};
  return sigaction(SIGHUP, nullptr, &present) == 0 && present.sa_handler == SIG_IGN;
}

// Finishes what runs on a thread of its own, so that the caller hears the second signal.
class Drain {
 public:
  Drain(ApiService& api, HttpServer& server, double seconds, asio::io_context& signals)
      : thread_([&api, &server, seconds, &signals] {
          api.draining = true;
          server.begin_drain();
          api.scheduler.drain(seconds);
          // The sequences are done; their last bytes may still be on the way to slow clients.
          server.wait_quiet(5);
          signals.stop();
        }) {}
  ~Drain() { thread_.join(); }
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

 private:
  std::thread thread_;
};

}  // namespace

Status validate(const ServeFlags& flags) {
  for (const std::string& name : flags.served_model_names) {
    if (name.empty()) return invalid_argument("--served-model-name: a name is empty");
  }
  for (const std::string& origin : flags.allowed_origins) {
    const size_t scheme = origin.find("://");
    const bool whole = scheme != std::string::npos && scheme > 0 && scheme + 3 < origin.size() &&
                       origin.find('/', scheme + 3) == std::string::npos;
    if (origin != "*" && !whole) {
      return invalid_argument("--allowed-origins: '" + origin.substr(0, 64) +
                              "' is no origin such as https://example.org, nor *");
    }
  }
  return {};
}

std::string start_line(const ServeFlags& flags, const ApiContext& context, int64_t slots_max) {
  std::string names;
  for (const std::string& name : context.model_names) names += (names.empty() ? "" : ", ") + name;
  const size_t keys = flags.api_keys.size();
  const std::string asked = keys == 0   ? "asks for no API key"
                            : keys == 1 ? "asks for the API key"
                                        : "asks for one of " + std::to_string(keys) + " API keys";
  return "Serving " + names + " (" + std::to_string(context.shape->positions) + " positions); " +
         asked + "; at most " + std::to_string(slots_max) + " sequences running and waiting, " +
         format_bytes(flags.http.body_bytes_max) + " a request, " +
         std::to_string(flags.http.connections_per_peer_max) + " connections a client";
}

Status run_serve(const ServeFlags& flags, HttpListener listener, const ServedModel& model,
                 std::function<void(std::string_view)> announce) {
  SPILLWAY_CHECK(model.scheduler != nullptr);
  const int64_t queue_max = model.scheduler->queue_max();
  const int64_t slots_max = flags.queue_max > 0 ? std::min(flags.queue_max, queue_max) : queue_max;
  ApiService api(*model.scheduler, make_context(flags, model, slots_max), slots_max,
                 flags.answers_bytes_max);
  api.plan = {model.tier_bytes, model.predicted_tokens_per_second};
  api.request_seconds_max = flags.request_seconds_max;
  api.stall_seconds = flags.stall_seconds;
  api.ping_seconds = flags.ping_seconds;

  // Before the first request, so that no signal is lost.
  asio::io_context io{1};
  asio::signal_set signals(io, SIGINT, SIGTERM);
  if (!started_by_nohup()) signals.add(SIGHUP);
  const Access access{flags.api_keys, flags.allowed_origins, listener.loopback(), flags.host};
  SPILLWAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<HttpServer> server,
      HttpServer::start(std::move(listener), flags.http, make_router(api, access)));
  log_info(start_line(flags, api.context, slots_max));
  announce ? announce(server->url()) : print_url(server->url());

  std::optional<Drain> drain;
  const std::function<void()> await_signal = [&] {
    signals.async_wait([&](const boost::system::error_code& ec, int) {
      if (ec) return;
      if (!drain) {
        drain.emplace(api, *server, flags.drain_seconds, io);
        return await_signal();
      }
      server->stop();  // Its clients are gone now, so their sequences are cancelled.
      signals.clear();
    });
  };
  asio::steady_timer health(io);
  const std::function<void()> await_failure = [&] {
    health.expires_after(kHealthInterval);
    health.async_wait([&](const boost::system::error_code& ec) {
      if (ec || drain) return;
      if (model.scheduler->stats().healthy) return await_failure();
      drain.emplace(api, *server, flags.drain_seconds, io);
    });
  };
  await_signal();
  await_failure();
  io.run();
  drain.reset();
  server->stop();
  if (model.scheduler->stats().healthy) return {};
  return {Code::kDeviceLost,
          "the engine failed and cannot go on; the log says why. Start it again."};
}

}  // namespace spillway
