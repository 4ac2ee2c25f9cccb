#include "server/http/connection.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/socket_base.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>

#include "server/http/framing.h"
#include "server/http/socket.h"

namespace spillway {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

std::chrono::nanoseconds duration(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

}  // namespace

struct Connection::Net {
  explicit Net(asio::io_context& io) : socket(io), deadline(io), ticker(io) {}

  asio::generic::stream_protocol::socket socket;  // TCP, or a Unix socket
  asio::steady_timer deadline;
  asio::steady_timer ticker;
  asio::steady_timer grace{socket.get_executor()};
};

Connection::Connection(std::shared_ptr<HttpCore> core, int fd, int family,
                       const std::optional<IpAddress>& address, std::shared_ptr<PeerUse> peer)
    : core_(std::move(core)),
      net_(std::make_unique<Net>(*core_->io)),
      address_(address),
      own_peer_(std::move(peer)),
      peer_(own_peer_),
      parser_(core_->limits) {
  error_code ec;
  net_->socket.assign({family, 0}, fd, ec);
  if (ec) ::close(fd);  // Out of kernel memory; the first read then ends this connection.
}

Connection::~Connection() = default;

void Connection::start() {
  core_->connections.emplace(this, weak_from_this());
  ++peer_->connections;
  error_code ignored;
  net_->socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  net_->socket.non_blocking(true, ignored);
  probe_when_silent(net_->socket.native_handle(), static_cast<int>(core_->limits.probe_seconds));
  arm(core_->limits.header_seconds_max, &Connection::on_request_deadline);
  wait_readable();
}

void Connection::turn_away() {
  turned_away_ = true;
  core_->connections.emplace(this, weak_from_this());
  ++core_->turned_away;
  error_code ignored;
  net_->socket.non_blocking(true, ignored);
  refuse(too_many_connections());
  if (phase_ != Phase::kClosed) wait_readable();
}

// ---- Reading ------------------------------------------------------------------------------------

void Connection::wait_readable() {
  if (waiting_) return;
  waiting_ = true;
  net_->socket.async_wait(asio::ip::tcp::socket::wait_read,
                          [self = shared_from_this()](const error_code& ec) {
                            self->waiting_ = false;
                            ec ? self->close() : self->on_readable();
                          });
}

void Connection::on_readable() {
  // on_sink_fed() and resume() wait again.
  if (phase_ == Phase::kClosed || feeding_sink_ || resuming_) return;
  error_code ec;
  const size_t count = net_->socket.read_some(asio::buffer(core_->scratch), ec);
  if (ec == asio::error::would_block || ec == asio::error::try_again) return wait_readable();
  if (ec) return on_peer_end(ec == asio::error::eof);
  attempt([&] { on_bytes({core_->scratch.data(), count}); });
  if (phase_ != Phase::kClosed && !feeding_sink_) wait_readable();
}

void Connection::on_bytes(std::string_view bytes) {
  switch (phase_) {
    case Phase::kReading: {
      const bool first = !parser_.started();
      window_bytes_ += bytes.size();
      const auto state = parser_.feed(bytes);
      const bool begun = first && parser_.started();  // Line ends alone gain no more time.
      if (begun && state == RequestParser::State::kHeader && requests_ > 0) expect_more(true);
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

// A client that shuts down its sending side cannot be told from one that left, and work without a
// receiver is the greater cost: an answer that is not ready in a moment is dropped.
void Connection::on_peer_end(bool orderly) {
  if (phase_ != Phase::kAnswering) return close();
  if (!orderly) return reset();
  half_closed_ = true;  // Nothing more is read; a reset shows when something is written.
  keep_alive_ = false;
  if (answer_ended_) return;  // The answer is complete; a deadline bounds its writing.
  net_->grace.expires_after(duration(core_->limits.half_close_seconds));
  net_->grace.async_wait([self = shared_from_this(), serial = serial_](const error_code& ec) {
    if (!ec && self->answering(serial)) self->reset();
  });
}

void Connection::advance(RequestParser::State state) {
  if (state == RequestParser::State::kHeader) return;
  if (state == RequestParser::State::kFailed) return refuse(parser_.error());
  if (!head_read_ && !count_client()) return refuse(too_many_connections());
  if (!head_read_ && state == RequestParser::State::kBody) {
    if (auto refusal = read_head()) return refuse(*std::move(refusal));
    if (const auto refusal = refuse_body()) return refuse(*refusal);
    if (sink_ == nullptr) parser_.reserve_body();
  }
  if (sink_ != nullptr) {
    if (!reading_body_ && state == RequestParser::State::kBody) begin_body();
    return feed_sink(state);
  }
  account_body();
  if (phase_ != Phase::kReading) return;
  if (state == RequestParser::State::kComplete) return dispatch();
  if (!reading_body_) begin_body();
}

// Finds the route before any of the body is requested; returns the refusal if there is none.
std::optional<HttpResponse> Connection::read_head() {
  head_read_ = true;
  HttpRequest& head = parser_.head();
  record_ = new_record(&head);
  router_ = core_->router;
  cors_ = router_->access().cors_fields(head);
  auto found = router_->find(head);
  if (auto* refusal = std::get_if<HttpResponse>(&found)) return std::move(*refusal);
  route_ = std::get<const Route*>(found);
  const Access& access = router_->access();
  head.api_key = access.key_of(head);
  head.client = access.api_keys.empty() ? peer_->number : head.api_key;
  record_->routed(route_->path, access.key_name(head.api_key));
  if (const auto error = count_key(head.api_key)) {
    HttpResponse refusal = error_response(*error);
    refusal.close = true;  // Else the connection would stay, uncounted.
    return refusal;
  }
  if (core_->draining && !route_->open) return error_response(shutting_down());
  if (route_->sink) {
    auto made = route_->sink(head);
    if (const auto* error = std::get_if<ApiError>(&made)) return error_response(*error);
    sink_ = std::get<std::shared_ptr<BodySink>>(std::move(made));
  }
  return {};
}

// ---- Whose it is --------------------------------------------------------------------------------

void Connection::count_for(std::shared_ptr<PeerUse> peer) {
  --peer_->connections;
  peer_ = std::move(peer);
  ++peer_->connections;
}

// Counts the connection for the client that a trusted proxy names, while it has its request: the
// next one may be another's. False: that client has too many. REQUIRES: a head.
bool Connection::count_client() {
  const HttpLimits& limits = core_->limits;
  if (!limits.trusted_proxies.trust(address_)) return true;
  const auto client = client_of(address_, parser_.head().forwarded_for, limits.trusted_proxies);
  const bool forwarded = client != address_;
  forwarded_for_ = forwarded ? client->text() : "";
  count_for(forwarded ? core_->peer_use(client->client_key()) : own_peer_);
  return peer_ == own_peer_ || peer_->connections <= limits.connections_per_peer_max;
}

// Counts the connection for the API key that it has shown last; an error: the key has too many.
std::optional<ApiError> Connection::count_key(uint64_t key) {
  if (key == key_) return {};
  if (key_ > 0) --core_->key_connections[key_];
  key_ = 0;
  if (key == 0) return {};
  const KeyLimits& limits = router_->access().limits_of(key);
  int64_t& open = core_->key_connections[key];
  if (limits.connections > 0 && open >= limits.connections) return too_many_connections_of(limits);
  ++open;
  key_ = key;
  return {};
}

// ---- Answering ----------------------------------------------------------------------------------

void Connection::dispatch() {
  std::optional<HttpResponse> refusal;
  if (!head_read_) {
    refusal = read_head();
    if (!refusal && limit_body() == RequestParser::State::kFailed) return refuse(parser_.error());
    if (!refusal && sink_ != nullptr && parser_.body_bytes() > 0) {
      return feed_sink(RequestParser::State::kComplete);
    }
  }
  const Route* route = route_;
  HttpRequest request = parser_.take();
  request.body_lease = std::move(body_lease_);
  request.sink = std::move(sink_);
  ++requests_;
  begin_answer(request.request_id);
  head_only_ = request.method == "HEAD";
  chunked_ = !request.http_1_0;
  keep_alive_ = request.keep_alive && requests_ < core_->limits.requests_per_connection_max;
  if (refusal) return respond(serial_, *refusal);
  if (core_->draining && !route->open) {  // Draining began after the head was read
    return respond(serial_, error_response(shutting_down()));
  }
  route->handler(std::move(request),
                 std::make_shared<Exchange>(shared_from_this(), serial_, record_));
}

void Connection::begin_answer(std::string request_id) {
  disarm();
  body_lease_.reset();
  sink_.reset();
  leased_bytes_ = 0;
  reading_body_ = false;
  head_read_ = false;
  route_ = nullptr;
  phase_ = Phase::kAnswering;
  ++serial_;
  request_id_ = std::move(request_id);
  if (record_ == nullptr) record_ = new_record(nullptr);
  streaming_ = false;
  answer_ended_ = false;
  core_->add_busy(1);
}

// Refuses a request that is not read to its end. Later bytes are not trusted to begin a request.
void Connection::refuse(HttpResponse response) {
  parser_.abandon();
  const HttpRequest& head = parser_.head();
  head_only_ = head.method == "HEAD";
  if (record_ == nullptr) record_ = new_record(head.path.empty() ? nullptr : &head);
  begin_answer(head.request_id.empty() ? "req-refused-" + std::to_string(serial_ + 1)
                                       : head.request_id);
  response.close = true;
  respond(serial_, response);
}

void Connection::respond(uint64_t serial, const HttpResponse& response) {
  if (!answering(serial) || streaming_) return;
  if (response.close || core_->draining) keep_alive_ = false;
  end_answer();
  record_->answered(response.status, response.error, request_id_);
  answer_lease_ = response.lease;
  if (!head_only_) source_ = response.source;
  enqueue(serialise(response, {request_id_, keep_alive_, head_only_, cors_}));
}

void Connection::begin_stream(uint64_t serial, const HttpFields& fields) {
  if (!answering(serial) || streaming_) return;
  streaming_ = true;
  record_->answered(200, "", request_id_);
  out_bytes_allowed_ = core_->limits.output_bytes_max;
  if (!chunked_ || core_->draining) keep_alive_ = false;
  if (head_only_) end_answer();
  enqueue(event_stream_head(fields, {request_id_, keep_alive_, head_only_, cors_}, chunked_));
}

void Connection::send(uint64_t serial, const std::string& event, bool echo) {
  if (!answering(serial) || !streaming_) return;
  if (echo) out_bytes_allowed_ += event.size();
  if (out_bytes_ > out_bytes_allowed_) return reset();
  std::string bytes = chunked_ ? chunk(event) : event;
  if (!writing_) {      // Nearly always there is room, and then nothing has to wait.
    error_code failed;  // Happens again in write_next().
    const size_t sent = net_->socket.write_some(asio::buffer(bytes), failed);
    if (sent == bytes.size()) return;
    if (!failed) bytes.erase(0, sent);
  }
  attempt([&] { enqueue(std::move(bytes)); });  // The rest of what may have begun
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
    const auto tick = self->tick_;  // The callback may end the answer, which drops tick_.
    tick();
    if (self->answering(serial)) self->schedule_tick();
  });
}

// Ends the handler's part; bytes may still wait to be written.
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
  if (source_ != nullptr) return pull_source();
  if (answer_ended_) on_answer_written();
}

// The next piece of a large body, once the one before is written.
void Connection::pull_source() {
  core_->post_bulk_work([self = shared_from_this(), source = source_, serial = serial_] {
    Result<std::string> piece = Status(Code::kCapacity, "no memory");
    try {
      piece = source->next();
    } catch (const std::exception&) {
    }
    auto moved = std::make_shared<Result<std::string>>(std::move(piece));
    self->core_->post([self, serial, moved] { self->on_piece(serial, std::move(*moved)); });
  });
}

void Connection::on_piece(uint64_t serial, Result<std::string> piece) {
  if (phase_ != Phase::kAnswering || serial != serial_ || source_ == nullptr) return;
  if (!piece.ok()) return reset();
  if (!piece->empty()) return enqueue(std::move(piece).value());
  source_.reset();
  on_answer_written();
}

std::shared_ptr<RequestRecord> Connection::new_record(const HttpRequest* head) {
  auto record =
      std::make_shared<RequestRecord>(core_->observer, net_->socket.native_handle(), head);
  if (!forwarded_for_.empty()) record->forwarded_for(forwarded_for_);
  return record;
}

void Connection::on_answer_written() {
  end_record(true);
  answer_lease_.reset();
  core_->add_busy(-1);
  cors_.clear();
  if (peer_ != own_peer_) count_for(own_peer_);
  if (half_closed_) return end();
  if (!keep_alive_ || core_->draining) return linger();
  phase_ = Phase::kReading;
  next_request();
}

void Connection::next_request() {
  expect_more(false);
  resuming_ = true;
  // Posted, since a long pipeline of requests must not become a deep stack.
  asio::post(*core_->io, [self = shared_from_this()] { self->resume(); });
}

// Goes on with what arrived while an answer was due. Nothing newer is read before that.
void Connection::resume() {
  resuming_ = false;
  if (phase_ != Phase::kReading) return;
  attempt([&] {
    const auto state = parser_.feed(std::exchange(ahead_, {}));
    if (state == RequestParser::State::kHeader && parser_.started()) expect_more(true);
    advance(state);
  });
  if (phase_ != Phase::kClosed && !feeding_sink_) wait_readable();
}

// ---- Deadlines and the end ----------------------------------------------------------------------

void Connection::arm(double seconds, void (Connection::*expired)()) {
  net_->deadline.expires_after(duration(seconds));
  net_->deadline.async_wait(
      [self = shared_from_this(), expired, armed = ++deadlines_armed_](const error_code& ec) {
        // A handler that was queued before it was disarmed arrives without an error.
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

void Connection::shut() {
  phase_ == Phase::kAnswering ? reset() : close();
}

void Connection::close_when_idle() {
  if (phase_ == Phase::kReading && !parser_.started()) close();
}

// Closing with unread bytes would reset the connection and may lose the answer, so reads on until
// the client closes, too.
void Connection::linger() {
  phase_ = Phase::kLingering;
  ahead_.clear();
  error_code ignored;
  net_->socket.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  arm(core_->limits.linger_seconds, &Connection::close);
}

// Both sides are finished.
void Connection::end() {
  phase_ = Phase::kLingering;
  close();
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
  end_record(false);
  end_answer();
  answer_lease_.reset();
  source_.reset();
  disarm();
  error_code ignored;
  net_->socket.close(ignored);
  net_->grace.cancel();
  core_->connections.erase(this);
  turned_away_ ? --core_->turned_away : --peer_->connections;
  if (key_ > 0) --core_->key_connections[key_];
  if (busy) core_->add_busy(-1);
  if (gone) gone();
}

}  // namespace spillway
