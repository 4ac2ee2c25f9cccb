// `spillway serve`: opens the model, then answers the API over HTTP until a signal ends it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/cli/common/served_model.h"
#include "server/cli/flags/command_line.h"
#include "server/http/limits.h"
#include "server/http/listener.h"

namespace spillway {

struct ServeFlags {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;                         // 0: any free port
  std::vector<std::string> served_model_names;  // None: the model's own
  std::vector<std::string> api_keys;            // None: everyone may ask
  std::vector<std::string> allowed_origins;     // Web pages that may ask, "*": all
  int64_t queue_max = 0;            // Sequences running and waiting; 0: what the scheduler takes
  int64_t request_seconds_max = 0;  // 0: no bound; an offloaded model may take hours
  int64_t stall_seconds = 900;      // Work without a sweep's end before /health says so; 0: never
  double ping_seconds = 15;         // --sse-ping-interval; 0: never
  double drain_seconds = 60;        // After SIGTERM, for what still runs
  bool strict_params = false;       // Unknown request fields are errors
  // Whether requests may go before others: "on", "off", or "auto": unless there are several keys,
  // and so clients that have nothing to do with each other.
  std::string priority = "auto";
  uint64_t answers_bytes_max = uint64_t{1} << 30;  // Prompts and answers of all requests
  uint64_t seed = 0;                               // Of requests that bring none
  HttpLimits http;                                 // body_bytes_max and the others
};

// What can be said against the flags without looking at anything else.
Status validate(const ServeFlags& flags);

// What is served, to whom and within which limits, for the log. Never a key.
std::string start_line(const ServeFlags& flags, const ApiContext& context, int64_t slots_max);

// Serves until SIGINT, SIGTERM or SIGHUP (unless that one was ignored, as by nohup): then accepts
// nothing new, answers 503, finishes what runs for up to drain_seconds, and returns OK. A second
// signal cuts the running answers off; a third ends the process as if it had no handler. An engine
// that only a restart cures is drained in the same way: kDeviceLost. `announce` is called once with
// the URL when it listens; the default prints one line to standard output. Blocks; call from the
// main thread. The scheduler is drained afterwards. Errors: the address cannot be listened on.
// REQUIRES: model.scheduler.
Status run_serve(const ServeFlags& flags, HttpListener listener, const ServedModel& model,
                 std::function<void(std::string_view url)> announce = nullptr);

Command serve_command(const OpenModel& open);

}  // namespace spillway
