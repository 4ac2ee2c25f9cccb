#include "server/client/patient_caller.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "kernels/base/units.h"

namespace spillway {
namespace {

constexpr int kRetryAfterMax = 3600;

// Whether the same call may have another answer later.
bool passes(const HttpReply& reply) {
  if (reply.retry_is_useless) return false;
  return reply.status == 0 || reply.status == 429 || reply.status == 502 || reply.status == 503 ||
         reply.status == 504;
}

std::string reason(const HttpReply& reply, const ServerAddress& address) {
  if (reply.status == 0) return reply.trouble;
  return address.text + " answers " + std::to_string(reply.status) +
         (reply.status == 429 ? " (it has enough to do)" : " (it is not ready)");
}

}  // namespace

bool PatientCaller::may_have_arrived(const HttpReply& reply) {
  return reply.status == 0 ? reply.sent : reply.status == 502 || reply.status == 504;
}

Status PatientCaller::pause(double seconds) const {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!interrupted()) {
    const std::chrono::duration<double> left = end - Clock::now();
    if (left.count() <= 0) return {};
    std::this_thread::sleep_for(std::min(left, std::chrono::duration<double>(0.1)));
  }
  return {Code::kCancelled, "interrupted"};
}

Result<HttpReply> PatientCaller::call(const HttpCall& call, bool once) {
  return this->call([&call]() -> Result<HttpCall> { return call; }, once);
}

Result<HttpReply> PatientCaller::call(const std::function<Result<HttpCall>()>& make, bool once) {
  std::optional<Clock::time_point> outage;
  double pause_seconds = options_.first_pause_seconds;
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(const HttpCall call, make());
    SPILLWAY_ASSIGN_OR_RETURN(HttpReply reply, caller_.call(call));
    if (!passes(reply)) {
      has_answered_ = true;
      if (outage && options_.say) options_.say(address().text + " answers again.");
      return reply;
    }
    const std::string why = reason(reply, address());
    // Most likely the address is wrong, and nobody is to wait for that.
    if (reply.status == 0 && !has_answered_) {
      return Status(Code::kIoError, why + "; is the server running, and is this its address?");
    }
    if (reply.status != 0) has_answered_ = true;
    if (once && may_have_arrived(reply)) return reply;
    const Clock::time_point now = Clock::now();
    if (!outage) {
      outage = now;
      if (options_.say && options_.patience_seconds > 0) {
        options_.say(why + "; trying again for up to " + format_seconds(options_.patience_seconds) +
                     " (--retry-seconds).");
      }
    }
    const std::chrono::duration<double> waited = now - *outage;
    if (waited.count() >= options_.patience_seconds) {
      if (reply.status != 0) return reply;  // Its body says why.
      return Status(Code::kIoError, why);
    }
    const int asked = std::min(reply.retry_after_seconds.value_or(0), kRetryAfterMax);
    const double wanted = std::max(pause_seconds, static_cast<double>(asked));
    SPILLWAY_RETURN_IF_ERROR(pause(std::min(wanted, options_.patience_seconds - waited.count())));
    pause_seconds = std::min(2 * pause_seconds, options_.pause_seconds_max);
  }
}

}  // namespace spillway
