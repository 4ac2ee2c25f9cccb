// SPILLWAY_CHECK: programmer errors end the process, in every build type. No input may reach one;
// errors that the outside world can cause are a Status (status.h).
#pragma once

namespace spillway {
[[noreturn]] void check_failed(const char* expression, const char* file, int line);
}

#define SPILLWAY_CHECK(condition)                      \
  (static_cast<bool>(condition) ? static_cast<void>(0) \
                                : ::spillway::check_failed(#condition, __FILE__, __LINE__))
