// Every limit of the HTTP server is a flag of `serve`.
#include "server/cli/serve/http_flags.h"

#include <catch2/catch.hpp>

namespace spillway::http_flags_test {
namespace {

Status set(Settings& settings, const std::string& name, const std::string& value) {
  return settings.set(name, value, SettingSource::kFlag, "--" + name);
}

TEST_CASE("every limit of the HTTP server is a flag") {
  HttpLimits limits;
  Settings settings;
  add_http_flags(settings, &limits);
  const auto takes = [&](const std::string& name, const std::string& value) {
    INFO(name);
    REQUIRE(settings.find(name) != nullptr);
    CHECK(settings.find(name)->value != value);  // The default is another.
    CHECK(set(settings, name, value).ok());
  };
  takes("connections-per-client-max", "3");
  takes("connections-max", "4");
  takes("requests-per-connection-max", "5");
  takes("turned-away-max", "6");
  takes("idle-seconds", "7.5");
  takes("probe-seconds", "8");
  takes("half-close-seconds", "0.5");
  takes("linger-seconds", "0.75");
  takes("header-bytes-max", "2048");
  takes("header-fields-max", "10");
  takes("header-seconds-max", "11");
  takes("chunk-extension-bytes-max", "12");
  takes("pipelined-bytes-max", "13");
  takes("other-body-bytes-max", "14");
  takes("client-body-share", "0.25");
  takes("body-window-seconds", "15");
  takes("body-window-bytes-min", "16");
  takes("body-seconds-min", "17");
  takes("body-bytes-per-second-min", "18");
  takes("output-bytes-max", "4096");
  takes("write-stall-seconds", "19");
  CHECK(limits.connections_per_peer_max == 3);
  CHECK(limits.connections_max == 4);
  CHECK(limits.requests_per_connection_max == 5);
  CHECK(limits.turned_away_max == 6);
  CHECK(limits.idle_seconds == 7.5);
  CHECK(limits.probe_seconds == 8);
  CHECK(limits.half_close_seconds == 0.5);
  CHECK(limits.linger_seconds == 0.75);
  CHECK(limits.header_bytes_max == 2048);
  CHECK(limits.header_fields_max == 10);
  CHECK(limits.header_seconds_max == 11);
  CHECK(limits.chunk_extension_bytes_max == 12);
  CHECK(limits.pipelined_bytes_max == 13);
  CHECK(limits.other_body_bytes_max == 14);
  CHECK(limits.peer_share_of_bodies == 0.25);
  CHECK(limits.body_window_seconds == 15);
  CHECK(limits.body_window_bytes_min == 16);
  CHECK(limits.body_seconds_min == 17);
  CHECK(limits.body_bytes_per_second_min == 18);
  CHECK(limits.output_bytes_max == 4096);
  CHECK(limits.write_stall_seconds == 19);
  CHECK(settings.all().size() == 22);  // These and trusted-proxy
  for (const Setting& setting : settings.all()) {
    INFO(setting.name);
    CHECK_FALSE(set(settings, setting.name, "-1").ok());
    CHECK_FALSE(set(settings, setting.name, "many").ok());
  }
}

TEST_CASE("trusted proxies are addresses and ranges, and a name is refused") {
  HttpLimits limits;
  Settings settings;
  add_http_flags(settings, &limits);
  REQUIRE(set(settings, "trusted-proxy", "127.0.0.1,10.0.0.0/8").ok());
  CHECK(limits.trusted_proxies.trust(IpAddress::parse("10.9.9.9")));
  CHECK_FALSE(limits.trusted_proxies.trust(IpAddress::parse("11.9.9.9")));
  CHECK_FALSE(limits.trusted_proxies.trust({}));
  REQUIRE(set(settings, "trusted-proxy", "unix,10.0.0.1").ok());
  CHECK(limits.trusted_proxies.trust({}));
  for (const char* wrong : {"", "proxy.example.org", "10.0.0.0/33", "127.0.0.1,"}) {
    INFO(wrong);
    const Status status = set(settings, "trusted-proxy", wrong);
    CHECK_FALSE(status.ok());
    CHECK(std::string(status.message()).find("--trusted-proxy") != std::string::npos);
  }
}

TEST_CASE("one client's connections are possible in total, unless a total is given") {
  HttpLimits limits;
  limits.connections_per_peer_max = 50'000;
  raise_connections_max(&limits);
  CHECK(limits.connections_max == 50'000);
  limits.connections_max = 100;
  raise_connections_max(&limits);
  CHECK(limits.connections_max == 100);
}

}  // namespace
}  // namespace spillway::http_flags_test
