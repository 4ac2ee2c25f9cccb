// Slots for sequences: what a request takes, what comes back, and what one client leaves to others.
#include "server/api/admission.h"

#include <catch2/catch.hpp>
#include <vector>

namespace spillway::admission_test {
namespace {

TEST_CASE("admission gives back what it gave") {
  Admission admission(4);
  auto first = admission.enter(1);
  REQUIRE(first);
  CHECK(first->grow_to(3));
  auto second = admission.enter(1);
  REQUIRE(second);
  CHECK_FALSE(admission.enter(1));
  CHECK_FALSE(second->grow_to(2));
  CHECK(admission.held() == 4);
  first->release();
  CHECK(admission.held() == 1);
  CHECK(second->grow_to(4));
  second.reset();
  CHECK(admission.held() == 0);
  CHECK(admission.retry_after_seconds() >= 1);
  CHECK(admission.retry_after_seconds() <= 59);
}

TEST_CASE("a client's flood leaves slots to others, also to the first of them") {
  Admission admission(16);
  std::vector<Admission::Ticket> flood;
  for (;;) {
    auto ticket = admission.enter(1);
    if (!ticket) break;
    flood.push_back(*std::move(ticket));
  }
  CHECK(flood.size() == 14);
  auto other = admission.enter(2);
  REQUIRE(other);
  CHECK(other->grow_to(2));
  CHECK_FALSE(admission.enter(3));
  other.reset();
  flood.clear();
  auto whole = admission.enter(1);
  REQUIRE(whole);
  whole->release();
  CHECK(admission.held() == 0);
}

TEST_CASE("a request may have all slots where nobody holds any") {
  Admission admission(16);
  admission.enter(1).reset();
  admission.enter(2).reset();
  auto ticket = admission.enter(1);
  REQUIRE(ticket);
  CHECK_FALSE(ticket->grow_to(17));
  CHECK(ticket->grow_to(16));
  CHECK_FALSE(admission.enter(2));
}

}  // namespace
}  // namespace spillway::admission_test
