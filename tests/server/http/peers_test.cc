// What clients hold: one entry a client while it holds something, and totals that go back to zero.
#include "server/http/peers.h"

#include <catch2/catch.hpp>

namespace spillway::peers_test {
namespace {

TEST_CASE("a client is one entry while it holds anything, and has a new number after that") {
  Peers peers;
  const auto first = peers.use("10.0.0.1", 1), same = peers.use("10.0.0.1", 1);
  CHECK(first == same);
  CHECK(peers.use("10.0.0.2", 1) != first);
  auto other = peers.use("other", 1);
  const uint64_t number = other->number;
  CHECK(number != 0);
  CHECK(number != first->number);
  other.reset();
  CHECK(peers.use("other", 1)->number != number);
  for (int i = 0; i < 1000; ++i) peers.use(std::to_string(i), 1);
  CHECK(peers.use("10.0.0.1", 1) == first);  // Whoever holds something is never forgotten.
}

TEST_CASE("a body counts until its last holder is gone") {
  const auto total = std::make_shared<BodiesHeld>();
  total->bytes = 5;
  const auto peer = std::make_shared<PeerUse>();
  {
    BodyLease one(total, peer), other(total, peer);
    one.add(10);
    one.add(20);
    other.add(3);
    CHECK(total->bytes == 38);
    CHECK(peer->body_bytes == 33);
  }
  CHECK(total->bytes == 5);
  CHECK(peer->body_bytes == 0);
}

}  // namespace
}  // namespace spillway::peers_test
