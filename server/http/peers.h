// What each client holds of the server: connections, and bytes of bodies. A client is an address:
// IpAddress::client_key().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "server/http/pace.h"

namespace spillway {

// Of one client. `connections` belongs to the network thread; `body_bytes` to any.
struct PeerUse {
  uint64_t number = 0;  // The address's number while it holds anything; never 0 nor used again
  int64_t connections = 0;
  std::atomic<size_t> body_bytes{0};
};

// The clients that hold anything. The network thread's.
class Peers {
 public:
  // Of the client with this key; lives as long as its connections and bodies. `holders_max`: the
  // most that can hold anything now.
  std::shared_ptr<PeerUse> use(const std::string& key, size_t holders_max);

 private:
  std::unordered_map<std::string, std::weak_ptr<PeerUse>> peers_;
  uint64_t last_ = 0;
};

// All bodies that are read or held. Any thread.
struct BodiesHeld {
  std::atomic<size_t> bytes{0};
  Pace pace;  // In bytes
};

// Bytes of one body, counted in the server's and its client's totals until the last holder is gone.
// Grows on the network thread; any thread may be the last.
class BodyLease {
 public:
  BodyLease(std::shared_ptr<BodiesHeld> all, std::shared_ptr<PeerUse> client);
  ~BodyLease();
  BodyLease(const BodyLease&) = delete;
  BodyLease& operator=(const BodyLease&) = delete;

  void add(size_t bytes);

 private:
  const std::shared_ptr<BodiesHeld> all_;
  const std::shared_ptr<PeerUse> peer_;
  size_t bytes_ = 0;
};

}  // namespace spillway
