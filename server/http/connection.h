// One client's socket: reads requests, passes each to its route as an Exchange, writes the answer,
// detects that the client leaves. Owned by its own pending operations; everything happens on the
// network thread. Only the server's own .cc files include this.
//
// Invariants: one request at a time; every wait has a deadline, except those for the handler's
// answer (which the handler bounds) and for the sink of a body; unsent stream bytes stay under
// HttpLimits::output_bytes_max.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/http/core.h"
#include "server/http/request_parser.h"
#include "server/http/request_record.h"

namespace spillway {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // Takes ownership of the connected socket `fd`, of an address family such as AF_INET, whose other
  // end is `address`; none: it is on this machine, over a Unix socket. `peer`: that client's.
  Connection(std::shared_ptr<HttpCore> core, int fd, int family,
             const std::optional<IpAddress>& address, std::shared_ptr<PeerUse> peer);
  ~Connection();

  void start();

  // Replaces start(): answers at once that there are too many connections.
  void turn_away();

  // Resets the connection at once; a running answer's client counts as gone.
  void reset();

  // Closes for a stopping server: a client with an unsent answer is reset, others are closed.
  void shut();

  // Closes for a draining server: at once if no answer is due; else after the answer.
  void close_when_idle();

  HttpCore& core() { return *core_; }

  // Implementations of Exchange's methods on the network thread. Ignored unless `serial` is the
  // running answer's.
  void respond(uint64_t serial, const HttpResponse& response);
  void begin_stream(uint64_t serial, const HttpFields& fields);
  void send(uint64_t serial, const std::string& event, bool echo);
  void end_stream(uint64_t serial);
  void abort(uint64_t serial);
  void set_gone(uint64_t serial, std::function<void()> gone);
  void set_tick(uint64_t serial, double seconds, std::function<void()> tick);

 private:
  enum class Phase : uint8_t {
    kReading,    // Waiting for a request or its rest
    kAnswering,  // The handler has it, or its answer is being written
    kLingering,  // Sent the last answer; discarding further input
    kClosed
  };

  bool answering(uint64_t serial) const {
    return phase_ == Phase::kAnswering && serial == serial_ && !answer_ended_;
  }

  // Takes a step; where there is no memory for it, the connection is reset.
  template <class Step>
  void attempt(Step step) {
    try {
      step();
    } catch (const std::exception&) {
      reset();
    }
  }

  void wait_readable();
  void on_readable();
  void on_bytes(std::string_view bytes);
  void on_peer_end(bool orderly);
  void advance(RequestParser::State state);
  std::optional<HttpResponse> read_head();
  RequestParser::State limit_body();
  void count_for(std::shared_ptr<PeerUse> peer);
  bool count_client();
  std::optional<ApiError> count_key(uint64_t key);
  std::optional<ApiError> refuse_body();
  ApiError bodies_full(size_t bytes) const;
  void begin_body();
  void account_body();
  void expect_more(bool first_bytes);
  void dispatch();
  void feed_sink(RequestParser::State state);
  void on_sink_fed(const std::optional<ApiError>& error);
  void begin_answer(std::string request_id);
  void refuse(HttpResponse response);
  void refuse(const ApiError& error) { refuse(error_response(error)); }

  void enqueue(std::string bytes);
  void write_next();
  void pull_source();
  void on_piece(uint64_t serial, Result<std::string> piece);
  void on_written(size_t bytes);
  void on_answer_written();
  void next_request();
  void resume();
  void end_answer();
  std::shared_ptr<RequestRecord> new_record(const HttpRequest* head);
  void end_record(bool whole) {
    if (record_ != nullptr) std::exchange(record_, nullptr)->ended(whole);
  }

  void arm(double seconds, void (Connection::*expired)());
  void disarm();
  void on_request_deadline();
  void on_idle_deadline();
  void on_body_deadline();
  void on_stalled_write() { reset(); }
  void begin_body_window();
  void arm_body_deadline();
  void schedule_tick();
  void linger();
  void end();
  void close();

  struct Net;  // The socket and its timers

  const std::shared_ptr<HttpCore> core_;
  const std::unique_ptr<Net> net_;
  uint64_t deadlines_armed_ = 0;            // Tells the present deadline from earlier ones
  const std::optional<IpAddress> address_;  // None: over a Unix socket
  std::string forwarded_for_;  // Address of the present request's client; empty: address_
  const std::shared_ptr<PeerUse> own_peer_;  // Of the address
  std::shared_ptr<PeerUse> peer_;  // For which it is counted: its own, or a trusted proxy's client
  uint64_t key_ = 0;               // The API key for which it is counted; 0: none
  bool turned_away_ = false;

  Phase phase_ = Phase::kReading;
  RequestParser parser_;
  std::shared_ptr<void> answer_lease_;     // Lease of the answer being written
  bool head_read_ = false;                 // The head of the present request was read and accepted
  std::shared_ptr<const Router> router_;   // Owner of *route_
  const Route* route_ = nullptr;           // Its route
  std::shared_ptr<BodyLease> body_lease_;  // Lease of the body being read
  std::chrono::steady_clock::time_point body_deadline_, window_end_;
  size_t leased_bytes_ = 0;
  std::shared_ptr<BodySink> sink_;  // Where the body being read goes, if it is not held
  bool feeding_sink_ = false;       // Nothing is read meanwhile
  std::chrono::steady_clock::time_point sink_fed_;  // Since then it has its bytes
  bool waiting_ = false;                            // For bytes of the client
  size_t window_bytes_ = 0;                         // Body bytes in the present window
  std::string ahead_;                               // Bytes that arrived while an answer was due
  bool resuming_ = false;  // resume() will parse them; nothing is read meanwhile
  int64_t requests_ = 0;
  bool reading_body_ = false;

  uint64_t serial_ = 0;
  std::string request_id_;
  // Of the request being read, from its head on, or answered; null between requests.
  std::shared_ptr<RequestRecord> record_;
  bool keep_alive_ = true;
  bool head_only_ = false;  // HEAD
  bool half_closed_ = false;
  HttpFields cors_;
  bool chunked_ = true;
  bool streaming_ = false;
  bool answer_ended_ = true;
  std::function<void()> gone_;
  std::function<void()> tick_;
  double tick_seconds_ = 0;

  std::shared_ptr<BodySource> source_;  // Of the rest of the answer being written
  std::deque<std::string> out_;
  size_t out_offset_ = 0;  // Sent bytes of out_.front()
  size_t out_bytes_ = 0;
  size_t out_bytes_allowed_ = 0;  // Limit for a stream
  bool writing_ = false;
};

}  // namespace spillway
