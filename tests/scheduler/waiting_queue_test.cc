// Who of the waiting sequences is next: by hand, and against a plain list that is searched.
#include "scheduler/waiting_queue.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/collecting_sink.h"
#include "tests/support/seed.h"
#include "tests/support/tiny_shape.h"

namespace spillway::waiting_queue_test {
namespace {

std::unique_ptr<Sequence> sequence(uint64_t id, uint64_t client, int32_t priority = 0) {
  Request request;
  request.prompt = {1};
  request.client = client;
  request.priority = priority;
  return std::make_unique<Sequence>(RequestId{id}, std::move(request),
                                    std::make_shared<test::CollectingSink>(), test::tiny_shape(),
                                    SequenceKv(), 0, 0);
}

uint64_t id_of(const Sequence& sequence) {
  return static_cast<uint64_t>(sequence.id());
}

std::vector<uint64_t> drain(WaitingQueue& queue) {
  std::vector<uint64_t> ids;
  while (!queue.empty()) {
    const uint64_t front = id_of(queue.front());
    ids.push_back(id_of(*queue.pop()));
    CHECK(front == ids.back());
  }
  return ids;
}

TEST_CASE("clients take turns, and each one's sequences go in the order in which they came") {
  WaitingQueue queue;
  for (uint64_t id = 1; id <= 5; ++id) queue.push(sequence(id, 7));
  queue.push(sequence(6, 9));
  queue.push(sequence(7, 9));
  queue.push(sequence(8, 8));
  CHECK(queue.size() == 8);
  CHECK(drain(queue) == std::vector<uint64_t>{1, 6, 8, 2, 7, 3, 4, 5});
}

TEST_CASE("sequences that are held let others pass, and come back before them in their order") {
  WaitingQueue queue;
  for (uint64_t id = 1; id <= 6; ++id) queue.push(sequence(id, 7));
  queue.hold();  // 1
  CHECK(id_of(*queue.pop()) == 2);
  queue.hold();  // 3
  CHECK(id_of(queue.front()) == 4);
  CHECK(queue.size() == 5);
  queue.resume();
  CHECK(id_of(queue.front()) == 1);
  queue.hold();  // 1 again
  CHECK(id_of(*queue.pop()) == 3);
  queue.hold();  // 4
  queue.push(sequence(7, 8, -1));
  CHECK(id_of(queue.front()) == 7);
  queue.resume();
  CHECK(id_of(*queue.pop()) == 7);  // Of a lower priority value
  CHECK(id_of(*queue.take(RequestId{1}).front()) == 1);
  CHECK(queue.take(RequestId{1}).empty());
  CHECK(drain(queue) == std::vector<uint64_t>{4, 5, 6});
}

TEST_CASE("when all are held there is no next one until they are resumed") {
  WaitingQueue queue;
  queue.push(sequence(1, 7));
  queue.push(sequence(2, 8));
  queue.hold();
  queue.hold();
  CHECK_FALSE(queue.has_next());
  CHECK_FALSE(queue.empty());
  queue.push(sequence(3, 7));
  CHECK(id_of(queue.front()) == 3);
  CHECK(id_of(*queue.take(RequestId{2}).front()) == 2);
  queue.resume();
  CHECK(drain(queue) == std::vector<uint64_t>{1, 3});
  queue.push(sequence(4, 7));
  queue.hold();
  CHECK(queue.take_all().size() == 1);
  CHECK(queue.empty());
  CHECK_FALSE(queue.has_next());
}

TEST_CASE("one client's queue is first come, first served") {
  WaitingQueue queue;
  std::vector<uint64_t> ids;
  for (uint64_t id = 1; id <= 100; ++id) {
    queue.push(sequence(id, 0));
    ids.push_back(id);
  }
  CHECK(drain(queue) == ids);
}

TEST_CASE("a client that keeps a sequence waiting gets no more than its turns") {
  WaitingQueue queue;
  for (uint64_t id = 1; id <= 3; ++id) queue.push(sequence(id, 1));
  queue.push(sequence(10, 2));
  std::vector<uint64_t> ids;
  for (uint64_t id = 11; ids.size() < 6; ++id) {
    ids.push_back(id_of(*queue.pop()));
    if (ids.back() >= 10) queue.push(sequence(id, 2));  // As soon as its last one runs
  }
  CHECK(ids[0] == 1);
  CHECK(std::count_if(ids.begin(), ids.end(), [](uint64_t id) { return id < 10; }) == 3);
}

TEST_CASE("priority goes before turns") {
  WaitingQueue queue;
  queue.push(sequence(1, 1, 1));
  queue.push(sequence(2, 1, 1));
  queue.push(sequence(3, 2, 1));
  queue.push(sequence(4, 1, 0));
  queue.push(sequence(5, 1, -3));
  queue.push(sequence(6, 2, 2));
  CHECK(drain(queue) == std::vector<uint64_t>{5, 4, 1, 3, 2, 6});
}

TEST_CASE("clients with nothing in the block go first within their priority, held ones too") {
  WaitingQueue queue;
  for (uint64_t id = 1; id <= 3; ++id) queue.push(sequence(id, 1));
  queue.push(sequence(4, 2));
  queue.push(sequence(5, 3, 1));
  CHECK_FALSE(queue.running(1) > 0);
  queue.begin(1);
  CHECK(queue.running(1) == 1);
  CHECK(id_of(queue.front()) == 4);
  CHECK(id_of(*queue.pop_to_run()) == 4);
  CHECK(queue.running(2) == 1);
  CHECK(id_of(queue.front()) == 1);  // Before another priority, and a client that has left
  queue.end(2);
  queue.push(sequence(6, 2));
  CHECK(id_of(queue.front()) == 6);
  queue.begin(2);
  CHECK(id_of(queue.front()) == 1);
  queue.hold();  // 1
  queue.hold();  // 6
  CHECK(id_of(queue.front()) == 2);
  queue.end(2);
  queue.resume();
  CHECK(id_of(queue.front()) == 6);
  queue.push(sequence(7, 4));
  CHECK(id_of(*queue.pop_to_run()) == 6);
  CHECK(id_of(queue.front()) == 7);  // Before 1, which was held, of a client that runs
  CHECK(id_of(*queue.pop_to_run()) == 7);
  CHECK(drain(queue) == std::vector<uint64_t>{1, 2, 3, 5});
  CHECK(queue.several_clients());
}

TEST_CASE("one client alone is not several, whatever its priorities") {
  WaitingQueue queue;
  for (uint64_t id = 1; id <= 4; ++id) queue.push(sequence(id, 9, static_cast<int32_t>(4 - id)));
  CHECK_FALSE(queue.several_clients());
  queue.begin(9);
  CHECK(id_of(*queue.take(RequestId{2}).front()) == 2);
  CHECK(drain(queue) == std::vector<uint64_t>{4, 3, 1});
}

TEST_CASE("what is taken leaves the queue, and a client without any its turn") {
  WaitingQueue queue;
  for (uint64_t id = 1; id <= 6; ++id) queue.push(sequence(id, 1 + id % 3));
  for (const uint64_t id : {1, 6, 2, 3}) {
    const WaitingQueue::Sequences taken = queue.take(RequestId{id});
    REQUIRE(taken.size() == 1);
    CHECK(id_of(*taken.front()) == id);
  }
  CHECK(queue.take(RequestId{3}).empty());
  CHECK(queue.take(RequestId{99}).empty());
  CHECK(queue.size() == 2);
  queue.push(sequence(7, 1));  // Client 1 had 3 and 6: it joins anew.
  CHECK(drain(queue) == std::vector<uint64_t>{4, 5, 7});
  CHECK(queue.take(RequestId{7}).empty());
  for (uint64_t id = 8; id <= 12; ++id) queue.push(sequence(id, 1 + id % 3));
  CHECK(queue.take_all().size() == 5);
  CHECK(queue.empty());
  queue.push(sequence(13, 1));
  CHECK(drain(queue) == std::vector<uint64_t>{13});
}

// The definition: a list of lines in the order of their turns.
class PlainQueue {
 public:
  void push(uint64_t id, uint64_t client, int32_t priority) {
    for (Line& line : lines_) {
      if (line.client != client || line.priority != priority) continue;
      line.ids.push_back(id);
      return;
    }
    lines_.push_back({priority, client, {id}});
  }
  uint64_t pop() {
    const auto order = [&](const Line& line) {
      return std::make_pair(line.priority, running_.count(line.client) > 0);
    };
    const auto first =
        std::min_element(lines_.begin(), lines_.end(),
                         [&](const Line& a, const Line& b) { return order(a) < order(b); });
    Line line = *first;
    lines_.erase(first);
    const uint64_t id = line.ids.front();
    line.ids.erase(line.ids.begin());
    if (!line.ids.empty()) lines_.push_back(line);
    return id;
  }
  void remove(uint64_t divisor) {
    for (Line& line : lines_)
      std::erase_if(line.ids, [&](uint64_t id) { return id % divisor == 0; });
    std::erase_if(lines_, [](const Line& line) { return line.ids.empty(); });
  }
  void begin(uint64_t client) { running_.insert(client); }
  void end(uint64_t client) { running_.erase(running_.find(client)); }
  size_t running(uint64_t client) const { return running_.count(client); }

  size_t size() const {
    size_t size = 0;
    for (const Line& line : lines_) size += line.ids.size();
    return size;
  }

 private:
  struct Line {
    int32_t priority;
    uint64_t client;
    std::vector<uint64_t> ids;
  };
  std::vector<Line> lines_;
  std::multiset<uint64_t> running_;
};

TEST_CASE("any order of arrivals, admissions and cancellations goes as defined") {
  const unsigned seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  WaitingQueue queue;
  PlainQueue plain;
  uint64_t id = 0;
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t what = random() % 100;
    if (what < 52) {
      const uint64_t client = random() % 6;
      const auto priority = static_cast<int32_t>(random() % 3);
      queue.push(sequence(++id, client, priority));
      plain.push(id, client, priority);
    } else if (what < 80) {
      if (queue.empty()) continue;
      REQUIRE(id_of(*queue.pop()) == plain.pop());
    } else if (what < 99) {
      const uint64_t client = random() % 6;
      if (plain.running(client) > random() % 3) {
        queue.end(client);
        plain.end(client);
      } else {
        queue.begin(client);
        plain.begin(client);
      }
      REQUIRE(queue.running(client) == static_cast<int64_t>(plain.running(client)));
    } else {
      const uint64_t divisor = 2 + random() % 3;
      for (uint64_t one = divisor; one <= id; one += divisor) queue.take(RequestId{one});
      plain.remove(divisor);
    }
    REQUIRE(queue.size() == plain.size());
  }
}

}  // namespace
}  // namespace spillway::waiting_queue_test
