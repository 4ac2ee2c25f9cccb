// One request being answered. A handler answers it once: respond(), or begin_stream(), send()...,
// end_stream(); or abort().
//
// Thread rule: every method from any thread; the work happens on the network thread, where the
// callbacks run too: at once if that is the caller's, else later, in call order. Calls after the
// answer's end, or after the client has gone, do nothing. Callbacks are dropped with the answer's
// end, so they may own the exchange.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/http/message.h"
#include "server/http/request_record.h"

namespace spillway {

class Connection;

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  // `serial` tells this request from later ones of the connection. `record`: not null.
  Exchange(std::shared_ptr<Connection> connection, uint64_t serial,
           std::shared_ptr<RequestRecord> record);
  ~Exchange();

  void respond(HttpResponse response);

  // Sends the head of an event stream.
  void begin_stream(HttpFields fields);
  // Sends one event, already framed (sse.h), in one write. A client with more than
  // HttpLimits::output_bytes_max unread is cut off; events that repeat the request's content
  // (`echo`) do not count, since they are sent all at once.
  void send(std::string event, bool echo = false);
  void end_stream();

  // Resets the connection: the only end that no client mistakes for a complete answer.
  void abort();

  // `gone` runs once if the client leaves before the answer's end (at once if it already has).
  void on_gone(std::function<void()> gone);

  // Calls `tick` about every `seconds` until the answer's end.
  void every(double seconds, std::function<void()> tick);

  // What the log and the metrics say of the request's work, also of one whose client has gone.
  void report(RequestWork work);

  // Runs on the network thread.
  void post(std::function<void()> task);
  // Runs on the server's worker thread; for tasks longer than a millisecond. A task that throws
  // (out of memory) answers 500. Bulk work waits for bulk work only.
  void post_work(std::function<void()> task);
  void post_bulk_work(std::function<void()> task);

 private:
  // Calls `task` with the connection, on the network thread.
  template <class Task>
  void run(Task task);
  std::function<void()> guarded(std::function<void()> task);

  std::shared_ptr<Connection> connection_;
  uint64_t serial_;
  std::shared_ptr<RequestRecord> record_;
};

using ExchangePtr = std::shared_ptr<Exchange>;

}  // namespace spillway
