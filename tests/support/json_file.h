// What a program under test wrote.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace spillway::test {

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

}  // namespace spillway::test
