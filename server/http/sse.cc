#include "server/http/sse.h"

#include "kernels/base/check.h"

namespace spillway {

std::string sse_event(std::string_view json) {
  SPILLWAY_CHECK(json.find_first_of("\r\n") == std::string_view::npos);
  return std::string("data: ").append(json).append("\n\n");
}

}  // namespace spillway
