// A full disk, for all files of the process.
#pragma once

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <csignal>

namespace spillway::test {

// No file of this process may grow beyond `bytes` while this lives: what a full disk looks like.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit small = {bytes, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace spillway::test
