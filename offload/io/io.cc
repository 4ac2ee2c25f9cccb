#include "offload/io/io.h"

namespace spillway {

Result<std::unique_ptr<Io>> open_io(const IoOptions& options) {
  Result<std::unique_ptr<Io>> uring = open_uring_io(options);
  if (uring.ok() || uring.status().code() != Code::kNotFound) return uring;
  return open_threads_io(options);
}

}  // namespace spillway
