#include "kernels/ranks/mpi_mail.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/ranks/mpi_process.h"

namespace spillway {
namespace {

constexpr int kMailTag = 2;
// A message in larger pieces than this does not fit MPI's counts.
constexpr size_t kPieceBytes = size_t{1} << 30;
// Waits between looks: short while a message moves, which it does only while MPI is looked at, and
// later a part of the time since the last one, so that they are never long beside what takes place.
constexpr std::chrono::microseconds kShortestWait{10}, kLongestWait{500};
constexpr int kPartOfIdle = 50;

// One thread does all that MPI does; the others leave messages with it, or take them.
class MpiMail final : public RankMail {
 public:
  explicit MpiMail(const MpiProcess& process)
      : RankMail(process.rank, process.size), process_(process) {
    thread_ = std::thread([this] { carry(); });
    pthread_setname_np(thread_.native_handle(), "mail");
  }

  ~MpiMail() override {
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    posted_.notify_one();
    thread_.join();
    leave_mpi(&process_, !lost_.ok());
  }

  void post(int to, std::vector<std::byte> bytes) override {
    SPILLWAY_CHECK(to >= 0 && to < size() && to != rank());
    const std::lock_guard lock(mutex_);
    out_.push_back({to, std::move(bytes)});
    posted_.notify_one();
  }

  Result<Message> receive() override {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !in_.empty() || !lost_.ok(); });
    if (in_.empty()) return lost_;
    Message message = std::move(in_.front());
    in_.pop_front();
    return message;
  }

 private:
  struct Posted {
    int to;
    std::vector<std::byte> bytes;
  };
  // A message on its way, whose pieces MPI reads or writes.
  struct Moving {
    int peer;
    std::vector<std::byte> bytes;
    uint64_t count;  // Sent ahead of the pieces
    std::vector<MPI_Request> pieces;
  };

  void carry() {
    ::prctl(PR_SET_TIMERSLACK, 1UL);  // Else 50 us are added to each.
    using Clock = std::chrono::steady_clock;
    auto moved = Clock::now();
    for (;;) {
      std::deque<Posted> posted;
      bool leaving = false;
      {
        std::unique_lock lock(mutex_);
        const auto idle =
            std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - moved);
        const auto wait = std::clamp(idle / kPartOfIdle, kShortestWait, kLongestWait);
        posted_.wait_for(lock, wait, [&] { return !out_.empty() || (leaving_ && !parting_); });
        posted.swap(out_);
        leaving = leaving_ && posted.empty() && sending_.empty();
      }
      Result<bool> any = try_step(std::move(posted));
      if (any.ok() && leaving) {
        const Result<bool> gone = all_leave();
        if (gone.ok() && gone.value()) return;
        if (!gone.ok()) any = gone;
      }
      if (!any.ok()) {
        const std::lock_guard lock(mutex_);
        lost_ = any.status();
        arrived_.notify_all();
        return;
      }
      if (any.value() || receiving_ || !sending_.empty()) moved = Clock::now();
    }
  }

  // Whether all ranks leave, and what they have sent is sent: MPI moves larger messages only while
  // their other ends look, so that a rank which went at once would keep others from ending.
  Result<bool> all_leave() {
    if (!std::exchange(parting_, true)) {
      SPILLWAY_RETURN_IF_ERROR(check(MPI_Ibarrier(process_.all, &all_leaving_), "leaving"));
    }
    int all = 0;
    SPILLWAY_RETURN_IF_ERROR(
        check(MPI_Test(&all_leaving_, &all, MPI_STATUS_IGNORE), "waiting for others to leave"));
    return all != 0 && receiving_ == nullptr;
  }

  Result<bool> try_step(std::deque<Posted> posted) {
    try {
      return step(std::move(posted));
    } catch (const std::bad_alloc&) {
      return Status(Code::kDeviceLost, "rank " + std::to_string(rank()) + " of " +
                                           std::to_string(size()) + ": no memory for a message");
    }
  }

  // Begins to send what was posted, and takes what has come. False: nothing happened.
  Result<bool> step(std::deque<Posted> posted) {
    bool any = !posted.empty();
    for (Posted& message : posted) SPILLWAY_RETURN_IF_ERROR(begin_sending(std::move(message)));
    while (!sending_.empty()) {
      SPILLWAY_ASSIGN_OR_RETURN(const bool done, all_done(&sending_.front()));
      if (!done) break;
      sending_.pop_front();
      any = true;
    }
    for (;;) {
      if (!receiving_) {
        SPILLWAY_ASSIGN_OR_RETURN(receiving_, begin_receiving());
        if (!receiving_) return any;
        any = true;
      }
      SPILLWAY_ASSIGN_OR_RETURN(const bool done, all_done(receiving_.get()));
      if (!done) return any;
      const std::lock_guard lock(mutex_);
      in_.push_back({receiving_->peer, std::move(receiving_->bytes)});
      arrived_.notify_one();
      receiving_.reset();
      any = true;
    }
  }

  Status begin_sending(Posted message) {
    // A deque does not move its elements: MPI reads `count`.
    Moving& moving = sending_.emplace_back(Moving{message.to, std::move(message.bytes), 0, {}});
    moving.count = moving.bytes.size();
    SPILLWAY_RETURN_IF_ERROR(
        check(MPI_Isend(&moving.count, sizeof moving.count, MPI_BYTE, moving.peer, kMailTag,
                        process_.all, &moving.pieces.emplace_back(MPI_REQUEST_NULL)),
              "sending"));
    return for_pieces(&moving, [&](std::byte* piece, int bytes, MPI_Request* request) {
      return check(MPI_Isend(piece, bytes, MPI_BYTE, moving.peer, kMailTag, process_.all, request),
                   "sending");
    });
  }

  // Null: nothing has come.
  Result<std::unique_ptr<Moving>> begin_receiving() {
    int there = 0;
    MPI_Status from;
    SPILLWAY_RETURN_IF_ERROR(
        check(MPI_Iprobe(MPI_ANY_SOURCE, kMailTag, process_.all, &there, &from), "receiving"));
    if (there == 0) return std::unique_ptr<Moving>();
    auto moving = std::make_unique<Moving>();
    moving->peer = from.MPI_SOURCE;
    SPILLWAY_RETURN_IF_ERROR(
        check(MPI_Recv(&moving->count, sizeof moving->count, MPI_BYTE, moving->peer, kMailTag,
                       process_.all, MPI_STATUS_IGNORE),
              "receiving"));
    moving->bytes.resize(moving->count);
    Moving& message = *moving;
    SPILLWAY_RETURN_IF_ERROR(for_pieces(&message, [&](std::byte* piece, int bytes,
                                                      MPI_Request* request) {
      return check(MPI_Irecv(piece, bytes, MPI_BYTE, message.peer, kMailTag, process_.all, request),
                   "receiving");
    }));
    return moving;
  }

  template <class Begin>
  static Status for_pieces(Moving* moving, const Begin& begin) {
    for (size_t at = 0; at < moving->bytes.size(); at += kPieceBytes) {
      const size_t bytes = std::min(kPieceBytes, moving->bytes.size() - at);
      moving->pieces.push_back(MPI_REQUEST_NULL);
      SPILLWAY_RETURN_IF_ERROR(
          begin(moving->bytes.data() + at, static_cast<int>(bytes), &moving->pieces.back()));
    }
    return {};
  }

  Result<bool> all_done(Moving* moving) {
    int done = 0;
    SPILLWAY_RETURN_IF_ERROR(check(MPI_Testall(static_cast<int>(moving->pieces.size()),
                                               moving->pieces.data(), &done, MPI_STATUSES_IGNORE),
                                   "waiting for a message"));
    return done != 0;
  }

  Status check(int error, const char* what) const {
    if (error == MPI_SUCCESS) return {};
    return {Code::kDeviceLost, "rank " + std::to_string(rank()) + " of " + std::to_string(size()) +
                                   ": " + what + ": " + mpi_error_text(error)};
  }

  MpiProcess process_;

  std::mutex mutex_;  // Guards the members down to the blank line.
  std::condition_variable posted_, arrived_;
  std::deque<Posted> out_;
  std::deque<Message> in_;
  bool leaving_ = false;
  Status lost_;

  // The mail thread only.
  std::deque<Moving> sending_;
  std::unique_ptr<Moving> receiving_;
  bool parting_ = false;  // It has told the others that it leaves
  MPI_Request all_leaving_ = MPI_REQUEST_NULL;

  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<RankMail>> mpi_mail() {
  SPILLWAY_ASSIGN_OR_RETURN(const MpiProcess process, join_mpi());
  return std::unique_ptr<RankMail>(std::make_unique<MpiMail>(process));
}

}  // namespace spillway
