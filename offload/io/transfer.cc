#include "offload/io/transfer.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"

namespace spillway {

TransferQueue::TransferQueue(Io& io, Trace* trace) : io_(io), trace_(trace) {
  if (trace_ == nullptr) return;
  read_track_ = trace_->track("disk -> host");
  write_track_ = trace_->track("host -> disk");
}

TransferQueue::~TransferQueue() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return under_way_ == 0; });
}

void TransferQueue::start(Transfer& transfer) {
  {
    const std::lock_guard lock(mutex_);
    SPILLWAY_CHECK(!transfer.under_way);
    transfer.under_way = true;
    transfer.again = false;
    transfer.status = {};
    transfer.started = steady_seconds();
    ++under_way_;
    Direction& direction = directions_[static_cast<size_t>(transfer.kind)];
    if (direction.under_way++ == 0) direction.busy_since = transfer.started;
  }
  transfer.done = &TransferQueue::on_done;
  transfer.owner = this;
  io_.submit(transfer);
}

void TransferQueue::on_done(IoRequest& request, Status status) {
  auto& transfer = static_cast<Transfer&>(request);
  auto* queue = static_cast<TransferQueue*>(request.owner);
  const bool read = request.kind == IoRequest::Kind::kRead;
  if (status.ok() && read && transfer.verify != nullptr) status = transfer.verify(transfer);
  if (!status.ok() && read && !transfer.again) {
    transfer.again = true;
    queue->io_.submit(request);
    return;
  }
  queue->finish(transfer, std::move(status));
}

void TransferQueue::finish(Transfer& transfer, Status status) {
  const auto arrived = transfer.arrived;
  {
    const std::lock_guard lock(mutex_);
    transfer.status = std::move(status);
    transfer.under_way = false;
    count_end(transfer);
    record(transfer);
    // `arrived` may still need the queue, so the transfer counts as under way until it returns.
    if (arrived == nullptr) --under_way_;
    changed_.notify_all();
  }
  if (arrived == nullptr) return;
  arrived(transfer);
  const std::lock_guard lock(mutex_);
  --under_way_;
  changed_.notify_all();
}

void TransferQueue::count_end(const Transfer& transfer) {
  Direction& direction = directions_[static_cast<size_t>(transfer.kind)];
  if (transfer.status.ok()) direction.use.bytes += transfer.bytes;
  if (--direction.under_way == 0) {
    direction.use.busy_seconds += steady_seconds() - direction.busy_since;
  }
}

LinkUse TransferQueue::use(IoRequest::Kind kind) const {
  const std::lock_guard lock(mutex_);
  const Direction& direction = directions_[static_cast<size_t>(kind)];
  LinkUse use = direction.use;
  if (direction.under_way > 0) use.busy_seconds += steady_seconds() - direction.busy_since;
  return use;
}

void TransferQueue::record(const Transfer& transfer) {
  if (trace_ == nullptr) return;
  const bool read = transfer.kind == IoRequest::Kind::kRead;
  trace_->span(read ? read_track_ : write_track_, read ? "read" : "write", transfer.started,
               steady_seconds(), "bytes", static_cast<int64_t>(transfer.bytes));
}

bool TransferQueue::done(const Transfer& transfer) const {
  const std::lock_guard lock(mutex_);
  return !transfer.under_way;
}

Status TransferQueue::wait(const Transfer& transfer) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !transfer.under_way; });
  return transfer.status;
}

}  // namespace spillway
