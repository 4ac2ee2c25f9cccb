// What the program finds of matrix units, against what Linux says of the CPU.
#include "kernels/cpu/amx.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>
#include <string>

namespace spillway::amx_test {
namespace {

bool has_flag(const std::string& wanted) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("flags")) continue;
    std::istringstream flags(line);
    for (std::string flag; flags >> flag;) {
      if (flag == wanted) return true;
    }
    return false;
  }
  return false;
}

TEST_CASE("matrix units are found where Linux knows them") {
  CHECK(cpu::has_amx_bf16() == has_flag("amx_bf16"));
  CHECK(cpu::has_amx_int8() == has_flag("amx_int8"));
}

TEST_CASE("a configuration has rows for every tile that is used") {
  const cpu::TileConfig& config = cpu::kTilesByRows<1u << 6 | 1u << 7>[4];
  CHECK(config.palette == 1);
  for (int tile = 0; tile < 16; ++tile) {
    INFO("tile " << tile);
    CHECK(config.row_bytes[tile] == (tile < 8 ? 64 : 0));
    CHECK(config.rows[tile] == (tile < 6 ? 5 : tile < 8 ? 16 : 0));
  }
}

}  // namespace
}  // namespace spillway::amx_test
