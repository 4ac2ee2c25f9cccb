#include "server/http/exchange.h"

#include <exception>

#include "server/http/connection.h"

namespace spillway {

Exchange::Exchange(std::shared_ptr<Connection> connection, uint64_t serial,
                   std::shared_ptr<RequestRecord> record)
    : connection_(std::move(connection)), serial_(serial), record_(std::move(record)) {}

// The last holder may be the engine's thread, which must not write a log.
Exchange::~Exchange() {
  try {
    connection_->core().post([record = std::move(record_)] {});
  } catch (const std::exception&) {
    // Out of memory: the report is made here.
  }
}

template <class Task>
void Exchange::run(Task task) {
  if (connection_->core().on_network_thread()) return task(*connection_);
  post([c = connection_, t = std::move(task)] { t(*c); });
}

void Exchange::respond(HttpResponse response) {
  run([s = serial_, r = std::move(response)](Connection& c) { c.respond(s, r); });
}

void Exchange::begin_stream(HttpFields fields) {
  run([s = serial_, f = std::move(fields)](Connection& c) { c.begin_stream(s, f); });
}

void Exchange::send(std::string event, bool echo) {
  run([s = serial_, e = std::move(event), echo](Connection& c) { c.send(s, e, echo); });
}

void Exchange::end_stream() {
  run([s = serial_](Connection& c) { c.end_stream(s); });
}

void Exchange::abort() {
  run([s = serial_](Connection& c) { c.abort(s); });
}

void Exchange::on_gone(std::function<void()> gone) {
  run([s = serial_, g = std::move(gone)](Connection& c) { c.set_gone(s, g); });
}

void Exchange::every(double seconds, std::function<void()> tick) {
  run([s = serial_, seconds, t = std::move(tick)](Connection& c) { c.set_tick(s, seconds, t); });
}

void Exchange::report(RequestWork work) {
  post([record = record_, w = std::move(work)] { record->worked(w); });
}

void Exchange::post(std::function<void()> task) {
  connection_->core().post(std::move(task));
}

void Exchange::post_work(std::function<void()> task) {
  connection_->core().post_work(guarded(std::move(task)));
}

void Exchange::post_bulk_work(std::function<void()> task) {
  connection_->core().post_bulk_work(guarded(std::move(task)));
}

std::function<void()> Exchange::guarded(std::function<void()> task) {
  return [self = shared_from_this(), t = std::move(task)] {
    try {
      t();
    } catch (const std::exception& exception) {
      ApiError error = engine_error();
      error.message = "The server could not handle this request.";
      error.log_detail = exception.what();
      self->respond(error_response(logged(error, "a request ended in an exception")));
    }
  };
}

}  // namespace spillway
