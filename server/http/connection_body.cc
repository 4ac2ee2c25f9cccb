// The part of a Connection that reads bodies: how many bytes it takes, how fast they must come, and
// where they go.
#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "kernels/base/clock.h"
#include "server/http/connection.h"
#include "server/http/framing.h"

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point after(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

// The most bytes of the present request's body.
RequestParser::State Connection::limit_body() {
  return parser_.limit_body(sink_ != nullptr ? core_->limits.upload_bytes_max
                                             : core_->limits.body_bytes_max);
}

// Hands on what there is of the body, on a worker thread; nothing is read until that is done, and
// no deadline runs: the time is the disk's.
void Connection::feed_sink(RequestParser::State state) {
  std::string bytes = parser_.take_body();
  if (bytes.empty()) {
    if (state == RequestParser::State::kComplete) dispatch();
    return;
  }
  feeding_sink_ = true;
  disarm();
  sink_fed_ = Clock::now();
  core_->post_bulk_work([self = shared_from_this(), sink = sink_, moved = std::move(bytes)] {
    std::optional<ApiError> error;
    try {
      error = sink->write(moved);
    } catch (const std::exception&) {
      error = engine_error();  // Out of memory
    }
    self->core_->post([self, error] { self->on_sink_fed(error); });
  });
}

void Connection::on_sink_fed(const std::optional<ApiError>& error) {
  feeding_sink_ = false;
  if (phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kReading) {
    attempt([&] {
      if (error) {
        refuse(*error);
      } else if (parser_.state() == RequestParser::State::kComplete) {
        dispatch();
      } else {
        const auto taken = Clock::now() - sink_fed_;
        body_deadline_ += taken;
        window_end_ += taken;
        arm_body_deadline();
      }
    });
  }
  if (phase_ != Phase::kClosed) wait_readable();
}

// Whether the announced body is too large for its route, the server or the client.
std::optional<ApiError> Connection::refuse_body() {
  const size_t length = parser_.head().content_length.value_or(0);
  const HttpLimits& limits = core_->limits;
  if (sink_ == nullptr && !route_->json_body && length > limits.other_body_bytes_max) {
    return body_not_read(limits);
  }
  if (limit_body() == RequestParser::State::kFailed) return parser_.error();
  if (sink_ != nullptr) return {};
  if (core_->bodies->bytes.load() + length > limits.bodies_bytes_max) return bodies_full(length);
  if (peer_->body_bytes.load() + length > core_->peer_body_bytes_max()) return bodies_full(length);
  return {};
}

void Connection::begin_body() {
  reading_body_ = true;
  const HttpLimits& limits = core_->limits;
  const auto length = parser_.head().content_length.value_or(
      sink_ != nullptr ? limits.upload_bytes_max : limits.body_bytes_max);
  body_deadline_ = after(limits.body_seconds_min +
                         static_cast<double>(length) / limits.body_bytes_per_second_min);
  begin_body_window();
  if (parser_.wants_continue()) enqueue("HTTP/1.1 100 Continue\r\n\r\n");
}

// Counts the body's growth in the totals of the server and of this client.
void Connection::account_body() {
  const size_t bytes = parser_.body_bytes();
  if (bytes <= leased_bytes_) return;
  if (!body_lease_) body_lease_ = std::make_shared<BodyLease>(core_->bodies, peer_);
  body_lease_->add(bytes - leased_bytes_);
  leased_bytes_ = bytes;
  if (route_ != nullptr && !route_->json_body && bytes > core_->limits.other_body_bytes_max) {
    return refuse(body_not_read(core_->limits));
  }
  if (core_->bodies->bytes.load() > core_->limits.bodies_bytes_max ||
      peer_->body_bytes.load() > core_->peer_body_bytes_max()) {
    refuse(bodies_full(bytes));
  }
}

// The refusal of so many bytes that there is no room for now.
ApiError Connection::bodies_full(size_t bytes) const {
  const Pace& pace = core_->bodies->pace;
  ApiError error =
      queue_full(retry_after(pace.seconds_for(static_cast<double>(bytes), steady_seconds())));
  error.message = "Too many request bodies are being read at once. Try again later.";
  return error;
}

void Connection::begin_body_window() {
  window_bytes_ = 0;
  window_end_ = after(core_->limits.body_window_seconds);
  arm_body_deadline();
}

void Connection::arm_body_deadline() {
  const std::chrono::duration<double> left = std::min(window_end_, body_deadline_) - Clock::now();
  arm(std::max(left.count(), 0.0), &Connection::on_body_deadline);
}

void Connection::on_body_deadline() {
  if (phase_ != Phase::kReading) return;
  if (Clock::now() >= body_deadline_ || window_bytes_ < core_->limits.body_window_bytes_min) {
    return refuse(request_too_slow());
  }
  begin_body_window();
}

}  // namespace spillway
