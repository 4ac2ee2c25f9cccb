#include "server/cli/serve/http_flags.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace spillway {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr double kDay = 86'400;
constexpr double kSecondsLeast = 0.001;

Setting trusted_proxy_setting(TrustedProxies* field) {
  Setting setting;
  setting.name = "trusted-proxy";
  setting.meaning = "ADDR[/BITS]";
  setting.help =
      "a reverse proxy whose X-Forwarded-For says for which client a connection is counted; unix: "
      "all that come over --socket";
  setting.repeats = true;
  setting.assign = [field](const std::string& text) -> Status {
    TrustedProxies proxies;
    for (const std::string& part : split_list(text)) {
      if (part == "unix") {
        proxies.unix_sockets = true;
        continue;
      }
      SPILLWAY_ASSIGN_OR_RETURN(const IpRange range, IpRange::parse(part));
      proxies.ranges.push_back(range);
    }
    *field = std::move(proxies);
    return {};
  };
  return setting;
}

void add_connection_flags(Settings& settings, HttpLimits* limits) {
  settings.add_integer("connections-per-client-max", &limits->connections_per_peer_max, 1,
                       1'000'000, "connections of one address before 503");
  settings.add_integer("connections-max", &limits->connections_max, 1, 1'000'000,
                       "connections of all clients before 503");
  settings.add_integer("requests-per-connection-max", &limits->requests_per_connection_max, 1,
                       int64_t{1} << 40, "requests before a connection is closed");
  settings.add_integer("turned-away-max", &limits->turned_away_max, 0, 1'000'000,
                       "connections beyond these limits that are told so; others are just closed");
  settings.add_real("idle-seconds", &limits->idle_seconds, kSecondsLeast, kDay,
                    "time of a connection between two requests");
  settings.add_integer(
      "probe-seconds", &limits->probe_seconds, 1, 32'767,
      "silence (up to half as long again) before TCP asks whether the peer is there; "
      "as long again and the connection is cut");
  settings.add_real("half-close-seconds", &limits->half_close_seconds, 0, kDay,
                    "wait for the answer of a client that has shut its sending side");
  settings.add_real("linger-seconds", &limits->linger_seconds, 0, kDay,
                    "time for a client to read the last answer");
  settings.add(trusted_proxy_setting(&limits->trusted_proxies));
}

void add_request_flags(Settings& settings, HttpLimits* limits) {
  settings.add_count("header-bytes-max", &limits->header_bytes_max, 1024, kMiB,
                     "largest head of a request before 431");
  settings.add_count("header-fields-max", &limits->header_fields_max, 8, 10'000,
                     "fields of a head before 431");
  settings.add_real("header-seconds-max", &limits->header_seconds_max, kSecondsLeast, kDay,
                    "time for a whole head");
  settings.add_count("chunk-extension-bytes-max", &limits->chunk_extension_bytes_max, 0, kMiB,
                     "extensions of all chunks of a body");
  settings.add_count("pipelined-bytes-max", &limits->pipelined_bytes_max, 0, 1024 * kMiB,
                     "what a client may send while its answer is due");
  settings.add_count("other-body-bytes-max", &limits->other_body_bytes_max, 0, 1024 * kMiB,
                     "body of a request that needs none before 413");
  settings.add_real("client-body-share", &limits->peer_share_of_bodies, 0, 1,
                    "a client's part of the memory for bodies; at least one body");
  settings.add_real("body-window-seconds", &limits->body_window_seconds, kSecondsLeast, kDay,
                    "in each such time a body must go on by --body-window-bytes-min");
  settings.add_count("body-window-bytes-min", &limits->body_window_bytes_min, 0, 1024 * kMiB,
                     "bytes of a body in each window");
  settings.add_real("body-seconds-min", &limits->body_seconds_min, 0, kDay,
                    "time that every body has, beside what its length allows");
  settings.add_real("body-bytes-per-second-min", &limits->body_bytes_per_second_min, 1, 1e12,
                    "pace at which a body's length becomes time");
}

void add_answer_flags(Settings& settings, HttpLimits* limits) {
  settings.add_count("output-bytes-max", &limits->output_bytes_max, 1024, 1024 * kMiB,
                     "events that a stream's reader may lag behind before it is cut off");
  settings.add_real("write-stall-seconds", &limits->write_stall_seconds, kSecondsLeast, kDay,
                    "time in which a reader must take something");
}

}  // namespace

void add_http_flags(Settings& settings, HttpLimits* limits) {
  settings.group("Connections and requests");
  add_connection_flags(settings, limits);
  add_request_flags(settings, limits);
  add_answer_flags(settings, limits);
}

void raise_connections_max(HttpLimits* limits) {
  if (limits->connections_max != HttpLimits().connections_max) return;
  limits->connections_max = std::max(limits->connections_max, limits->connections_per_peer_max);
}

}  // namespace spillway
