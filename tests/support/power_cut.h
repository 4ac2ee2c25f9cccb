// A disk that loses power, under SQLite: while it lives, databases that are opened keep every write
// in memory until it is synced, and left() says what a power cut at this instant would leave.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace spillway::test {

class PowerCutDisk {
 public:
  using Files = std::map<std::string, std::string>;  // Paths and bytes

  // SQLite's default file system from now on. One at a time. `before_change` is called before a
  // file is written, cut, synced or removed.
  explicit PowerCutDisk(std::function<void()> before_change);
  // REQUIRES: every database on it is closed.
  ~PowerCutDisk();
  PowerCutDisk(const PowerCutDisk&) = delete;
  PowerCutDisk& operator=(const PowerCutDisk&) = delete;

  // What was synced, and of what was not, any sectors in any order: a draw says which. A file that
  // was never synced may be missing.
  Files left(std::mt19937& random) const;

  struct Body;

 private:
  std::unique_ptr<Body> body_;
};

}  // namespace spillway::test
