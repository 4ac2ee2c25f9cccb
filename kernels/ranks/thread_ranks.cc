#include "kernels/ranks/thread_ranks.h"

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/base/check.h"

namespace spillway {
namespace {

enum class Kind : uint8_t { kAllGather, kBroadcast, kSend, kReceive };

struct Call {
  Kind kind = Kind::kAllGather;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;
  int peer = 0;  // Of a broadcast: the root
};

std::string text_of(const Call& call) {
  const std::string bytes = std::to_string(call.bytes) + " bytes";
  const std::string peer = std::to_string(call.peer);
  switch (call.kind) {
    case Kind::kAllGather:
      return "all_gather of " + bytes;
    case Kind::kBroadcast:
      return "broadcast of " + bytes + " from rank " + peer;
    case Kind::kSend:
      return "send of " + bytes + " to rank " + peer;
    case Kind::kReceive:
      return "receive of " + bytes + " from rank " + peer;
  }
  return "";
}

bool same(const Call& a, const Call& b) {
  return a.kind == b.kind && a.bytes == b.bytes && a.peer == b.peer;
}

bool collective(const Call& call) {
  return call.kind == Kind::kAllGather || call.kind == Kind::kBroadcast;
}

// Where the ranks meet. A call is posted, then matched with those that it goes with; then each of
// its ranks copies what it gets, and leaves when all of them have.
class Meeting {
 public:
  explicit Meeting(int size) : places_(static_cast<size_t>(size)) {}

  Status call(int rank, const Call& call) {
    std::unique_lock lock(mutex_);
    SPILLWAY_RETURN_IF_ERROR(broken_);
    Place& place = places_[static_cast<size_t>(rank)];
    place.call = call;
    place.match = nullptr;
    match();
    changed_.wait(lock, [&] { return !broken_.ok() || place.match != nullptr; });
    // A call that was matched is brought to its end: others read this rank's memory.
    if (place.match == nullptr) {
      place.call.reset();
      return broken_;
    }
    const std::shared_ptr<Match> mine = place.match;
    lock.unlock();
    take(rank, *mine, call);
    lock.lock();
    if (--mine->copying == 0) changed_.notify_all();
    changed_.wait(lock, [&] { return mine->copying == 0; });
    return {};
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    fail({Code::kDeviceLost, "rank " + std::to_string(rank) + " is gone"});
  }

 private:
  // Calls that belong together, by rank; null: the rank has no part in it.
  struct Match {
    std::vector<std::optional<Call>> calls;
    int copying = 0;
  };
  struct Place {
    std::optional<Call> call;  // Posted and not matched
    std::shared_ptr<Match> match;
  };

  void fail(Status why) {
    if (broken_.ok()) broken_ = std::move(why);
    changed_.notify_all();
  }

  void join(const std::vector<size_t>& ranks) {
    auto match = std::make_shared<Match>();
    match->calls.resize(places_.size());
    match->copying = static_cast<int>(ranks.size());
    for (const size_t rank : ranks) {
      match->calls[rank] = std::exchange(places_[rank].call, std::nullopt);
      places_[rank].match = match;
    }
    changed_.notify_all();
  }

  // Finds calls that go together. The lock is held.
  void match() {
    std::vector<size_t> all;
    bool everyone = true;
    for (size_t rank = 0; rank < places_.size(); ++rank) {
      if (!places_[rank].call) {
        everyone = false;
        continue;
      }
      all.push_back(rank);
      const Call& call = *places_[rank].call;
      if (call.kind != Kind::kSend) continue;
      const std::optional<Call>& other = places_[static_cast<size_t>(call.peer)].call;
      if (!other || other->kind != Kind::kReceive || other->peer != static_cast<int>(rank))
        continue;
      if (other->bytes != call.bytes) return fail(mismatch());
      join({rank, static_cast<size_t>(call.peer)});
      return match();
    }
    if (!everyone) return;
    const Call& first = *places_.front().call;
    for (const Place& place : places_) {
      if (!collective(first) || !same(*place.call, first)) return fail(mismatch());
    }
    join(all);
  }

  Status mismatch() const {
    std::string calls;
    for (size_t rank = 0; rank < places_.size(); ++rank) {
      if (!places_[rank].call) continue;
      calls += (calls.empty() ? "rank " : "; rank ") + std::to_string(rank) + ": " +
               text_of(*places_[rank].call);
    }
    return invalid_argument("ranks wait for each other (" + calls + ")");
  }

  static void take(int rank, const Match& match, const Call& call) {
    switch (call.kind) {
      case Kind::kAllGather:
        for (size_t other = 0; other < match.calls.size(); ++other) {
          std::byte* const to = call.to + other * call.bytes;
          const std::byte* const from = match.calls[other]->from;
          if (to != from && call.bytes > 0) std::memcpy(to, from, call.bytes);
        }
        return;
      case Kind::kBroadcast:
        if (rank != call.peer && call.bytes > 0) {
          std::memcpy(call.to, match.calls[static_cast<size_t>(call.peer)]->from, call.bytes);
        }
        return;
      case Kind::kReceive:
        if (call.bytes > 0) {
          std::memcpy(call.to, match.calls[static_cast<size_t>(call.peer)]->from, call.bytes);
        }
        return;
      case Kind::kSend:
        return;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Place> places_;
  Status broken_;
};

class ThreadRank final : public RankGroup {
 public:
  ThreadRank(int rank, int size, std::shared_ptr<Meeting> meeting)
      : RankGroup(rank, size), meeting_(std::move(meeting)) {}
  ~ThreadRank() override { meeting_->leave(rank()); }

  Status all_gather(Stream& stream, const std::byte* from, std::byte* to, size_t bytes) override {
    return call(stream, {Kind::kAllGather, from, to, bytes, 0});
  }
  Status broadcast(Stream& stream, std::byte* data, size_t bytes, int root) override {
    return call(stream, {Kind::kBroadcast, data, data, bytes, root});
  }
  Status send(Stream& stream, const std::byte* data, size_t bytes, int to) override {
    return call(stream, {Kind::kSend, data, nullptr, bytes, to});
  }
  Status receive(Stream& stream, std::byte* data, size_t bytes, int from) override {
    return call(stream, {Kind::kReceive, nullptr, data, bytes, from});
  }
  void leave() override { meeting_->leave(rank()); }

 private:
  Status call(Stream& stream, const Call& call) {
    SPILLWAY_CHECK(stream.kind() == DeviceKind::kCpu);
    const bool pair = call.kind == Kind::kSend || call.kind == Kind::kReceive;
    if (call.peer < 0 || call.peer >= size() || (pair && call.peer == rank())) {
      return invalid_argument("rank " + std::to_string(rank()) + " of " + std::to_string(size()) +
                              ": " + text_of(call) + ": there is no such other rank");
    }
    return meeting_->call(rank(), call);
  }

  const std::shared_ptr<Meeting> meeting_;
};

}  // namespace

std::vector<std::unique_ptr<RankGroup>> thread_ranks(int size) {
  SPILLWAY_CHECK(size > 0);
  const auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::unique_ptr<RankGroup>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<ThreadRank>(rank, size, meeting));
  }
  return ranks;
}

}  // namespace spillway
