// Status and Result: the outcome of operations that the outside world can make fail. A Status is
// one pointer; OK is null. Both types must be checked. Values, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "kernels/base/check.h"

namespace spillway {

enum class Code : uint8_t {
  kOk,
  kInvalidArgument,  // The caller's input is wrong.
  kNotFound,
  kCapacity,    // A fixed limit is reached; trying later may work.
  kInfeasible,  // No plan fits, or not supported; trying later will not help.
  kCorruption,  // Bytes came back different from how they were written.
  kIoError,     // A system call failed.
  kDeviceLost,  // Sticky accelerator error; the process must drain and exit.
  kCancelled,
};

std::string_view code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : error_(std::make_shared<const Error>(Error{code, std::move(message)})) {}

  bool ok() const { return error_ == nullptr; }
  Code code() const { return ok() ? Code::kOk : error_->code; }
  std::string_view message() const { return ok() ? std::string_view() : error_->message; }

  // This error with "`where`: " in front of its message; OK stays OK.
  Status at(std::string_view where) const;

 private:
  struct Error {
    Code code;
    std::string message;
  };
  std::shared_ptr<const Error> error_;
};

inline Status invalid_argument(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}
inline Status corruption(std::string message) {
  return {Code::kCorruption, std::move(message)};
}
inline Status not_found(std::string message) {
  return {Code::kNotFound, std::move(message)};
}

// The system call's errno as a Status: "open /a/b: No such file or directory".
Status io_error(std::string_view what, int errno_value);

// A value, or the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Status status) : state_(std::move(status)) {
    SPILLWAY_CHECK(!std::get<Status>(state_).ok());
  }

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

  // REQUIRES: ok().
  T& value() & {
    SPILLWAY_CHECK(ok());
    return std::get<T>(state_);
  }
  const T& value() const& {
    SPILLWAY_CHECK(ok());
    return std::get<T>(state_);
  }
  T&& value() && {
    SPILLWAY_CHECK(ok());
    return std::get<T>(std::move(state_));
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace spillway

// Leaves the function with the error of a Status expression.
#define SPILLWAY_RETURN_IF_ERROR(expression) \
  SPILLWAY_RETURN_IF_ERROR_(SPILLWAY_CONCAT_(spillway_status_, __LINE__), expression)
#define SPILLWAY_RETURN_IF_ERROR_(status, expression)                          \
  do {                                                                         \
    if (::spillway::Status status = (expression); !status.ok()) return status; \
  } while (false)

// `declaration` = the value of a Result expression, or leaves the function with its error.
#define SPILLWAY_ASSIGN_OR_RETURN(declaration, expression) \
  SPILLWAY_ASSIGN_OR_RETURN_(SPILLWAY_CONCAT_(spillway_result_, __LINE__), declaration, expression)
#define SPILLWAY_ASSIGN_OR_RETURN_(result, declaration, expression) \
  auto result = (expression);                                       \
  if (!result.ok()) return result.status();                         \
  declaration = std::move(result).value()
#define SPILLWAY_CONCAT_(a, b) SPILLWAY_CONCAT_INNER_(a, b)
#define SPILLWAY_CONCAT_INNER_(a, b) a##b
