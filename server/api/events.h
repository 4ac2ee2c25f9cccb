// Who watches GET /api/events. The event is made once a second for each API key, however many watch
// with it: it lists batches, for which it may wait for the disk. Owned by ApiService. The network
// thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

namespace spillway {

// Of one client -> 429: a watcher is a connection that is written to each second.
constexpr int64_t kWatchersPerClientMax = 64;

class EventFeed;

struct EventWatchers {
  std::unordered_map<uint64_t, std::shared_ptr<EventFeed>> feeds;  // By the API key's number
  std::unordered_map<uint64_t, int64_t> of_client;                 // By HttpRequest::client
};

}  // namespace spillway
