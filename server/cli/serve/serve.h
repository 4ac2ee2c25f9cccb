// `spillway serve`: opens the model, then answers the API over HTTP until a signal ends it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/cli/common/served_model.h"
#include "server/cli/flags/command_line.h"
#include "server/cli/serve/listen_flags.h"
#include "server/http/access.h"
#include "server/http/http_counts.h"
#include "server/http/limits.h"
#include "server/http/listener.h"
#include "server/http/server.h"

namespace spillway {

struct ServeFlags : ListenFlags {
  std::vector<std::string> served_model_names;  // None: the model's own
  std::vector<std::string> api_keys;            // None: no key is required
  std::vector<KeyLimits> key_limits;            // Of the first of api_keys, in their order
  int64_t queue_max = 0;            // Sequences running and waiting; 0: the scheduler's limit
  int64_t request_seconds_max = 0;  // 0: no bound; an offloaded model may take hours
  int64_t stall_seconds = 900;      // Work without a sweep's end before /health fails; 0: never
  double ping_seconds = 15;         // --sse-ping-interval; 0: never
  double drain_seconds = 60;        // Time for running requests after SIGTERM
  bool strict_params = false;       // Unknown request fields are errors
  // Whether requests may overtake others: "on", "off", or "auto": unless there are several keys,
  // and so unrelated clients.
  std::string priority = "auto";
  uint64_t answers_bytes_max = uint64_t{1} << 30;  // Prompts and answers of all requests
  uint64_t seed = 0;                               // For requests without one
  // Files and batches of clients; empty: there are none. A directory that was chosen must be free,
  // else the server does without.
  std::string batch_dir;
  bool batch_dir_chosen = false;
  int64_t file_bytes_max = int64_t{1} << 30;
  int64_t files_bytes_max = int64_t{10} << 30;  // Of one client
  int64_t batch_lines_max = 50'000;
  int64_t batches_max = 1000;
  HttpLimits http;  // body_bytes_max and the others
};

// Checks the flags by themselves.
Status validate(const ServeFlags& flags);

// The log line with the model, the clients allowed and the limits. Never shows a key.
std::string start_line(const ServeFlags& flags, const ApiContext& context, int64_t slots_max);

// A server before its model is there: it answers 503 (model_loading).
struct LoadingServer {
  std::unique_ptr<HttpServer> server;
  Access access;
  std::shared_ptr<const HttpCounts> counts;  // Of its requests, which are also logged

  // Errors: the address cannot be listened on.
  static Result<LoadingServer> start(const ServeFlags& flags, std::vector<HttpListener> listeners);
};

// Serves until SIGINT, SIGTERM or SIGHUP (unless that one was ignored, as by nohup): then answers
// what is new with 503, finishes running requests for up to drain_seconds, and returns OK. A
// second signal cuts the running answers off; a third ends the process as if it had no handler. An
// engine that only a restart cures is drained in the same way: kDeviceLost. `announce` is called
// once with the first URL when requests are answered; the default prints a line for each to
// standard output.
// Blocks; call from the main thread. The scheduler is drained afterwards. REQUIRES:
// model.scheduler.
Status run_serve(const ServeFlags& flags, LoadingServer server, const ServedModel& model,
                 std::function<void(std::string_view url)> announce = nullptr);

// LoadingServer::start() and run_serve().
Status run_serve(const ServeFlags& flags, HttpListener listener, const ServedModel& model,
                 std::function<void(std::string_view url)> announce = nullptr);

Command serve_command(const OpenModel& open);

}  // namespace spillway
