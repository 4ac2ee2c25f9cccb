#include "server/batches/batch_unavailable.h"

namespace spillway {
namespace {

ApiError batches_unavailable() {
  ApiError error;
  error.status = 503;
  error.type = "unavailable_error";
  error.code = "batches_unavailable";
  error.message =
      "This server has no files and batches, because another server on its machine holds their "
      "folder. Use that one, or start this one again with a --batch-dir of its own.";
  error.retry_is_useless = true;
  return error;
}

}  // namespace

void add_unavailable_batch_routes(Router& router) {
  const Handler refuse = [](const HttpRequest&, const ExchangePtr& exchange) {
    exchange->respond(error_response(batches_unavailable()));
  };
  // An upload is refused by its head: without a sink a long one would be 413.
  const BodySinkFactory refuse_body =
      [](const HttpRequest&) -> std::variant<std::shared_ptr<BodySink>, ApiError> {
    return batches_unavailable();
  };
  for (const char* path : {"/v1/files", "/v1/files/{*}", "/v1/batches", "/v1/batches/{*}"}) {
    router.add({.method = "GET", .path = path, .handler = refuse});
    router.add({.method = "DELETE", .path = path, .handler = refuse});
    router.add({.method = "POST", .path = path, .handler = refuse, .sink = refuse_body});
  }
}

}  // namespace spillway
