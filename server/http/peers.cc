#include "server/http/peers.h"

#include <utility>

#include "kernels/base/clock.h"

namespace spillway {

std::shared_ptr<PeerUse> Peers::use(const std::string& key, size_t holders_max) {
  // Expired entries are erased when the table is twice as large as it needs to be.
  if (peers_.size() > 2 * holders_max + 64) {
    std::erase_if(peers_, [](const auto& peer) { return peer.second.expired(); });
  }
  std::weak_ptr<PeerUse>& known = peers_[key];
  std::shared_ptr<PeerUse> use = known.lock();
  if (use != nullptr) return use;
  known = use = std::make_shared<PeerUse>();
  use->number = ++last_;
  return use;
}

BodyLease::BodyLease(std::shared_ptr<BodiesHeld> all, std::shared_ptr<PeerUse> client)
    : all_(std::move(all)), peer_(std::move(client)) {}

BodyLease::~BodyLease() {
  if (bytes_ > 0) all_->pace.freed(static_cast<double>(bytes_), steady_seconds());
  all_->bytes.fetch_sub(bytes_);
  peer_->body_bytes.fetch_sub(bytes_);
}

void BodyLease::add(size_t bytes) {
  if (bytes_ == 0 && all_->bytes == 0) all_->pace.start(steady_seconds());
  bytes_ += bytes;
  all_->bytes.fetch_add(bytes);
  peer_->body_bytes.fetch_add(bytes);
}

}  // namespace spillway
