#include "server/cli/flags/json_settings.h"

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

namespace spillway {

namespace {

constexpr size_t kBytesMax = 1 << 20;

// Empty for what no flag could carry.
std::string flag_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.is_boolean()) return value.dump();
  if (!value.is_array()) return "";
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i].is_structured()) return "";
    text += (i == 0 ? "" : ",") + flag_text(value[i]);
  }
  return text;
}

}  // namespace

Result<std::string> read_json_text(const std::string& path, const std::string& place) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return io_error(place, errno);
  std::string text(kBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kBytesMax) return invalid_argument(place + ": longer than 1 MiB");
  return text;
}

Result<std::string> setting_text(const nlohmann::json& value, const std::string& place) {
  std::string text = flag_text(value);
  if (text.empty() && !value.is_string()) {
    return invalid_argument(place + ": must be a string, a number, true or false, or a " +
                            "list of numbers");
  }
  return text;
}

}  // namespace spillway
