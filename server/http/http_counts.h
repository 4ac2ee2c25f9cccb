// How many requests a server has answered, by route and status, and why it refused some: for the
// metrics. Any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "server/http/request_record.h"

namespace spillway {

// What status stands for a connection that ended before anything was sent (nginx's number).
constexpr int kClientClosedRequest = 499;

// The status of a request's answer in log and metrics.
inline int reported_status(const RequestReport& report) {
  return report.status == 0 ? kClientClosedRequest : report.status;
}

class HttpCounts {
 public:
  // Few in number: handlers and methods are those of the server's routes, other methods of none.
  struct Kind {
    std::string handler;  // A route's pattern; "none" where none was chosen
    std::string method;
    int status = 0;
    auto operator<=>(const Kind&) const = default;
  };
  struct Totals {
    std::map<Kind, uint64_t> requests;
    // Answers that were errors before any work was done, by the error's code.
    std::map<std::string, uint64_t> refusals;
  };

  void count(const RequestReport& report);

  Totals totals() const;

 private:
  mutable std::mutex mutex_;
  Totals totals_;
};

}  // namespace spillway
