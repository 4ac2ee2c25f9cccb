// Calls a server again while that may help: it cannot be reached, is overloaded (429), is starting
// or ending (502, 503, 504). One thread; calls block.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "kernels/base/status.h"
#include "server/client/http_caller.h"

namespace spillway {

class PatientCaller {
 public:
  struct Options {
    double patience_seconds = 600;   // Of one outage, from its first failure; 0: one try
    double first_pause_seconds = 1;  // Doubles with every try
    double pause_seconds_max = 30;   // Unless the server asks for more (Retry-After)
    // Told of the first failure of an outage and of its end, a sentence each. May be empty.
    std::function<void(const std::string&)> say = {};
  };

  PatientCaller(HttpCaller caller, Options options)
      : caller_(std::move(caller)), options_(std::move(options)) {}

  // Calls until an answer comes that another try would not change, whatever its status. `make`
  // makes the call anew for each try. With `once` a call that may have arrived is not repeated, and
  // comes back as it ended (may_have_arrived()). When the patience is at its end, the last answer
  // comes back, or kIoError where there is none; a server that has never answered is not waited
  // for, kIoError. Other errors are those of HttpCaller::call() and `make`.
  Result<HttpReply> call(const std::function<Result<HttpCall>()>& make, bool once = false);
  Result<HttpReply> call(const HttpCall& call, bool once = false);

  // Whether the server may have carried out a call that ended so: the connection was lost, or a
  // proxy's was, or it waited no longer.
  static bool may_have_arrived(const HttpReply& reply);

  // Waits. kCancelled: it was interrupted.
  Status pause(double seconds) const;

  const ServerAddress& address() const { return caller_.address(); }
  const Options& options() const { return options_; }
  bool interrupted() const { return caller_.interrupted(); }

 private:
  using Clock = std::chrono::steady_clock;

  const HttpCaller caller_;
  const Options options_;
  bool has_answered_ = false;
};

}  // namespace spillway
