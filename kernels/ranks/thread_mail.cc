#include "kernels/ranks/thread_mail.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/base/check.h"

namespace spillway {
namespace {

// The boxes of all ranks.
class PostOffice {
 public:
  explicit PostOffice(int size) : boxes_(static_cast<size_t>(size)) {}

  void post(int to, RankMail::Message message) {
    const std::lock_guard lock(mutex_);
    boxes_[static_cast<size_t>(to)].push_back(std::move(message));
    arrived_.notify_all();
  }

  Result<RankMail::Message> receive(int rank) {
    std::unique_lock lock(mutex_);
    auto& box = boxes_[static_cast<size_t>(rank)];
    arrived_.wait(lock, [&] { return !box.empty() || gone_ >= 0; });
    if (box.empty()) {
      return Status(Code::kDeviceLost, "rank " + std::to_string(gone_) + " is gone");
    }
    RankMail::Message message = std::move(box.front());
    box.pop_front();
    return message;
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    gone_ = rank;
    arrived_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::deque<RankMail::Message>> boxes_;
  int gone_ = -1;
};

class ThreadMail final : public RankMail {
 public:
  ThreadMail(int rank, int size, std::shared_ptr<PostOffice> office)
      : RankMail(rank, size), office_(std::move(office)) {}
  ~ThreadMail() override { office_->leave(rank()); }

  void post(int to, std::vector<std::byte> bytes) override {
    SPILLWAY_CHECK(to >= 0 && to < size() && to != rank());
    office_->post(to, {rank(), std::move(bytes)});
  }
  Result<Message> receive() override { return office_->receive(rank()); }

 private:
  const std::shared_ptr<PostOffice> office_;
};

}  // namespace

std::vector<std::unique_ptr<RankMail>> thread_mail(int size) {
  SPILLWAY_CHECK(size > 0);
  const auto office = std::make_shared<PostOffice>(size);
  std::vector<std::unique_ptr<RankMail>> mail;
  for (int rank = 0; rank < size; ++rank) {
    mail.push_back(std::make_unique<ThreadMail>(rank, size, office));
  }
  return mail;
}

}  // namespace spillway
