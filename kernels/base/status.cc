#include "kernels/base/status.h"

#include <system_error>

namespace spillway {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kNotFound:
      return "not found";
    case Code::kCapacity:
      return "capacity";
    case Code::kInfeasible:
      return "infeasible";
    case Code::kCorruption:
      return "corruption";
    case Code::kIoError:
      return "I/O error";
    case Code::kDeviceLost:
      return "device lost";
    case Code::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

Status Status::at(std::string_view where) const {
  if (ok()) return {};
  return {error_->code, std::string(where) + ": " + error_->message};
}

Status io_error(std::string_view what, int errno_value) {
  const Code code = errno_value == ENOENT ? Code::kNotFound : Code::kIoError;
  return {code, std::string(what) + ": " + std::generic_category().message(errno_value)};
}

}  // namespace spillway
