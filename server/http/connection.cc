#include "server/http/connection.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/socket_base.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>

#include "server/http/framing.h"

namespace spillway {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

std::chrono::nanoseconds duration(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

ApiError bodies_full() {
  ApiError error = queue_full(5);
  error.message = "Too many request bodies are being read at once. Try again later.";
  return error;
}

// Gives a body's bytes back to the server's total when the last holder of the body lets go.
std::shared_ptr<void> make_lease(const std::shared_ptr<std::atomic<size_t>>& total,
                                 std::shared_ptr<size_t> bytes) {
  return {bytes.get(), [total, bytes](void*) { total->fetch_sub(*bytes); }};
}

}  // namespace

struct Connection::Net {
  explicit Net(asio::io_context& io) : socket(io), deadline(io), ticker(io) {}

  asio::ip::tcp::socket socket;
  asio::steady_timer deadline;
  asio::steady_timer ticker;
};

Connection::Connection(std::shared_ptr<HttpCore> core, int fd, bool ipv6, std::string peer)
    : core_(std::move(core)),
      net_(std::make_unique<Net>(*core_->io)),
      peer_(std::move(peer)),
      parser_(core_->limits) {
  error_code ec;
  net_->socket.assign(ipv6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), fd, ec);
  if (ec) ::close(fd);  // Out of kernel memory; the first read then ends this connection.
}

Connection::~Connection() = default;

void Connection::start() {
  core_->connections.emplace(this, weak_from_this());
  ++core_->per_peer[peer_];
  error_code ignored;
  net_->socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  net_->socket.non_blocking(true, ignored);
  arm(core_->limits.header_seconds_max, &Connection::on_request_deadline);
  wait_readable();
}

// ---- Reading ------------------------------------------------------------------------------------

void Connection::wait_readable() {
  net_->socket.async_wait(asio::ip::tcp::socket::wait_read,
                          [self = shared_from_this()](const error_code& ec) {
                            ec ? self->close() : self->on_readable();
                          });
}

void Connection::on_readable() {
  if (phase_ == Phase::kClosed) return;
  error_code ec;
  const size_t count = net_->socket.read_some(asio::buffer(core_->scratch), ec);
  if (ec == asio::error::would_block || ec == asio::error::try_again) return wait_readable();
  if (ec) return on_peer_end();
  on_bytes({core_->scratch.data(), count});
  if (phase_ != Phase::kClosed) wait_readable();
}

void Connection::on_bytes(std::string_view bytes) {
  switch (phase_) {
    case Phase::kReading: {
      const bool first = !parser_.started();
      window_bytes_ += bytes.size();
      const auto state = parser_.feed(bytes);
      if (first && state == RequestParser::State::kHeader && requests_ > 0) expect_more(true);
      return advance(state);
    }
    case Phase::kAnswering:
      ahead_.append(bytes);
      if (ahead_.size() > core_->limits.pipelined_bytes_max) reset();
      return;
    case Phase::kLingering:
    case Phase::kClosed:
      return;
  }
}

// A client that shuts down its sending side counts as gone, too: it cannot be told from one that
// left, and work for nobody is what hurts here.
void Connection::on_peer_end() {
  if (phase_ == Phase::kAnswering) return reset();
  close();
}

void Connection::advance(RequestParser::State state) {
  switch (state) {
    case RequestParser::State::kHeader:
      return;
    case RequestParser::State::kFailed:
      return refuse(parser_.error());
    case RequestParser::State::kComplete:
      account_body();
      if (phase_ == Phase::kReading) dispatch();
      return;
    case RequestParser::State::kBody:
      account_body();
      if (phase_ == Phase::kReading && !reading_body_) {
        reading_body_ = true;
        window_bytes_ = 0;
        arm(core_->limits.body_window_seconds, &Connection::on_body_window);
        if (parser_.wants_continue()) enqueue("HTTP/1.1 100 Continue\r\n\r\n");
      }
      return;
  }
}

// Takes the body's growth from the total that all bodies share.
void Connection::account_body() {
  const size_t bytes = parser_.body_bytes();
  if (bytes <= leased_bytes_) return;
  if (!body_lease_) body_lease_ = make_lease(core_->body_bytes, std::make_shared<size_t>(0));
  const size_t more = bytes - leased_bytes_;
  core_->body_bytes->fetch_add(more);
  *static_cast<size_t*>(body_lease_.get()) += more;
  leased_bytes_ = bytes;
  if (core_->body_bytes->load() > core_->limits.bodies_bytes_max) refuse(bodies_full());
}

void Connection::dispatch() {
  HttpRequest request = parser_.take();
  request.body_lease = std::move(body_lease_);
  leased_bytes_ = 0;
  reading_body_ = false;
  disarm();

  phase_ = Phase::kAnswering;
  ++serial_;
  ++requests_;
  request_id_ = request.request_id;
  chunked_ = !request.http_1_0;
  keep_alive_ = request.keep_alive && requests_ < core_->limits.requests_per_connection_max;
  streaming_ = false;
  answer_ended_ = false;
  core_->add_busy(1);

  auto found = core_->router.find(request);
  if (auto* refusal = std::get_if<HttpResponse>(&found)) return respond(serial_, *refusal);
  const Route* route = std::get<const Route*>(found);
  if (core_->draining && !route->open) {
    return respond(serial_, error_response(shutting_down()));
  }
  route->handler(std::move(request), std::make_shared<Exchange>(shared_from_this(), serial_));
}

// Answers what could not be read as a request. Whatever follows is not trusted to begin one.
void Connection::refuse(const ApiError& error) {
  body_lease_.reset();
  phase_ = Phase::kAnswering;
  ++serial_;
  request_id_ = "req-refused-" + std::to_string(serial_);
  streaming_ = false;
  answer_ended_ = false;
  core_->add_busy(1);
  HttpResponse response = error_response(error);
  response.close = true;
  respond(serial_, response);
}

// ---- Answering ----------------------------------------------------------------------------------

void Connection::respond(uint64_t serial, const HttpResponse& response) {
  if (!answering(serial) || streaming_) return;
  if (response.close || core_->draining) keep_alive_ = false;
  end_answer();
  answer_lease_ = response.lease;
  enqueue(serialise(response, {request_id_, keep_alive_}));
}

void Connection::begin_stream(uint64_t serial, const HttpFields& fields) {
  if (!answering(serial) || streaming_) return;
  streaming_ = true;
  out_bytes_allowed_ = core_->limits.output_bytes_max;
  if (!chunked_ || core_->draining) keep_alive_ = false;
  enqueue(event_stream_head(fields, {request_id_, keep_alive_}, chunked_));
}

void Connection::send(uint64_t serial, const std::string& event, bool echo) {
  if (!answering(serial) || !streaming_) return;
  if (echo) out_bytes_allowed_ += event.size();
  if (out_bytes_ > out_bytes_allowed_) return reset();
  enqueue(chunked_ ? chunk(event) : event);
}

void Connection::end_stream(uint64_t serial) {
  if (!answering(serial) || !streaming_) return;
  end_answer();
  if (chunked_) {
    enqueue(std::string(kLastChunk));
  } else if (!writing_) {
    on_answer_written();
  }
}

void Connection::abort(uint64_t serial) {
  if (answering(serial)) reset();
}

void Connection::set_gone(uint64_t serial, std::function<void()> gone) {
  if (answering(serial)) {
    gone_ = std::move(gone);
  } else {
    gone();
  }
}

void Connection::set_tick(uint64_t serial, double seconds, std::function<void()> tick) {
  if (!answering(serial)) return;
  tick_ = std::move(tick);
  tick_seconds_ = seconds;
  schedule_tick();
}

void Connection::schedule_tick() {
  net_->ticker.expires_after(duration(tick_seconds_));
  net_->ticker.async_wait([self = shared_from_this(), serial = serial_](const error_code& ec) {
    if (ec || !self->answering(serial) || !self->tick_) return;
    const auto tick = self->tick_;  // It may end the answer, which drops tick_.
    tick();
    if (self->answering(serial)) self->schedule_tick();
  });
}

// The handler has nothing more to say; bytes may still wait to be written.
void Connection::end_answer() {
  answer_ended_ = true;
  net_->ticker.cancel();
  gone_ = nullptr;
  tick_ = nullptr;
}

void Connection::enqueue(std::string bytes) {
  out_bytes_ += bytes.size();
  out_.push_back(std::move(bytes));
  if (!writing_) write_next();
}

void Connection::write_next() {
  writing_ = true;
  if (phase_ == Phase::kAnswering) {
    arm(core_->limits.write_stall_seconds, &Connection::on_stalled_write);
  }
  const std::string& front = out_.front();
  net_->socket.async_write_some(
      asio::buffer(front.data() + out_offset_, front.size() - out_offset_),
      [self = shared_from_this()](const error_code& ec, size_t bytes) {
        if (self->phase_ == Phase::kClosed) return;
        if (ec) return self->reset();
        self->on_written(bytes);
      });
}

void Connection::on_written(size_t bytes) {
  out_offset_ += bytes;
  out_bytes_ -= bytes;
  if (out_offset_ == out_.front().size()) {
    out_.pop_front();
    out_offset_ = 0;
  }
  if (!out_.empty()) return write_next();
  writing_ = false;
  if (phase_ != Phase::kAnswering) return;
  disarm();
  if (answer_ended_) on_answer_written();
}

void Connection::on_answer_written() {
  answer_lease_.reset();
  core_->add_busy(-1);
  if (!keep_alive_ || core_->draining) return linger();
  phase_ = Phase::kReading;
  next_request();
}

void Connection::next_request() {
  const std::string bytes = std::move(ahead_);
  ahead_.clear();
  expect_more(!bytes.empty() || parser_.waiting_bytes() > 0);
  // Not now: a long pipeline of requests must not become a deep stack.
  asio::post(*core_->io, [self = shared_from_this(), bytes] {
    if (self->phase_ == Phase::kReading) self->advance(self->parser_.feed(bytes));
  });
}

// ---- Deadlines and the end ----------------------------------------------------------------------

void Connection::arm(double seconds, void (Connection::*expired)()) {
  net_->deadline.expires_after(duration(seconds));
  net_->deadline.async_wait(
      [self = shared_from_this(), expired, armed = ++deadlines_armed_](const error_code& ec) {
        // One that was queued already when it was disarmed arrives without an error.
        if (ec || self->deadlines_armed_ != armed || self->phase_ == Phase::kClosed) return;
        ((*self).*expired)();
      });
}

void Connection::disarm() {
  ++deadlines_armed_;
  net_->deadline.cancel();
}

void Connection::expect_more(bool first_bytes) {
  if (first_bytes) {
    arm(core_->limits.header_seconds_max, &Connection::on_request_deadline);
  } else {
    arm(core_->limits.idle_seconds, &Connection::on_idle_deadline);
  }
}

void Connection::on_request_deadline() {
  if (phase_ != Phase::kReading) return;
  if (!parser_.started()) return close();
  refuse(request_too_slow());
}

void Connection::on_idle_deadline() {
  if (phase_ == Phase::kReading) close();
}

void Connection::on_body_window() {
  if (phase_ != Phase::kReading) return;
  if (window_bytes_ < core_->limits.body_window_bytes_min) return refuse(request_too_slow());
  window_bytes_ = 0;
  arm(core_->limits.body_window_seconds, &Connection::on_body_window);
}

void Connection::shut() {
  phase_ == Phase::kAnswering ? reset() : close();
}

void Connection::close_when_idle() {
  if (phase_ == Phase::kReading && !parser_.started()) close();
}

// Closing with unread bytes would reset the connection and may take the answer with it, so read on
// until the client closes, too.
void Connection::linger() {
  phase_ = Phase::kLingering;
  ahead_.clear();
  error_code ignored;
  net_->socket.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  arm(core_->limits.linger_seconds, &Connection::close);
}

void Connection::reset() {
  error_code ignored;
  net_->socket.set_option(asio::socket_base::linger(true, 0), ignored);
  close();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  const bool busy = phase_ == Phase::kAnswering;
  phase_ = Phase::kClosed;
  const auto gone = std::move(gone_);
  end_answer();
  answer_lease_.reset();
  disarm();
  error_code ignored;
  net_->socket.close(ignored);
  core_->connections.erase(this);
  if (const auto peer = core_->per_peer.find(peer_); --peer->second == 0) {
    core_->per_peer.erase(peer);
  }
  if (busy) core_->add_busy(-1);
  if (gone) gone();
}

}  // namespace spillway
