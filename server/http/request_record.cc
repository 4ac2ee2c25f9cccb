#include "server/http/request_record.h"

#include <exception>
#include <utility>

#include "kernels/base/clock.h"
#include "server/http/socket.h"

namespace spillway {

RequestRecord::RequestRecord(std::shared_ptr<const RequestObserver> observer, int socket,
                             const HttpRequest* head)
    : observer_(std::move(observer)) {
  if (observer_ == nullptr) return;
  report_.began = steady_seconds();
  report_.client = peer_address(socket);
  if (head == nullptr) return;
  report_.id = head->request_id;
  report_.method = head->method;
  report_.path = head->path;
}

RequestRecord::~RequestRecord() {
  if (observer_ == nullptr) return;
  try {
    (*observer_)(report_);
  } catch (const std::exception&) {
    // Out of memory: this request is not reported.
  }
}

void RequestRecord::forwarded_for(std::string client) {
  report_.client = std::move(client);
}

void RequestRecord::routed(std::string_view route, std::string key_name) {
  report_.route = route;
  report_.key = std::move(key_name);
}

void RequestRecord::answered(int status, std::string_view error, std::string_view id) {
  report_.status = status;
  report_.error = error;
  report_.id = id;
}

void RequestRecord::worked(RequestWork work) {
  if (!work.error.empty()) report_.error = work.error;
  report_.work = std::move(work);
}

void RequestRecord::ended(bool whole) {
  report_.whole = whole;
  report_.seconds = steady_seconds() - report_.began;
}

}  // namespace spillway
