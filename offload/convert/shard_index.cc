#include "offload/convert/shard_index.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/json_reader.h"
#include "kernels/base/quote.h"
#include "kernels/base/strict_json.h"

namespace spillway {

using nlohmann::json;

namespace {

constexpr size_t kTensorsMax = 1'000'000;
constexpr size_t kFilesMax = 4096;

// Whether the name cannot leave the directory: no separator, not "." or "..".
bool is_plain_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::all_of(name.begin(), name.end(), allowed);
}

}  // namespace

Result<std::map<std::string, std::vector<std::string>>> parse_shard_index(
    std::string_view text, std::string_view path, std::string_view extension) {
  SPILLWAY_ASSIGN_OR_RETURN(const json root, parse_json_object(text, path));
  JsonReader reader(root, std::string(path));
  const json& map = reader.object("weight_map");
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  if (map.empty() || map.size() > kTensorsMax) {
    return invalid_argument(std::string(path) + ": weight_map has " + std::to_string(map.size()) +
                            " tensors, must have 1 to 1,000,000");
  }
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : map.items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : std::string();
    if (!is_plain_name(name) || !name.ends_with(extension)) {
      return invalid_argument(std::string(path) + ": tensor " + in_quotes(tensor) + ": its file " +
                              in_quotes(name) + " is not a plain file name that ends in " +
                              std::string(extension));
    }
    files[name].push_back(tensor);
  }
  if (files.size() > kFilesMax) {
    return invalid_argument(std::string(path) + ": more than 4096 files");
  }
  return files;
}

}  // namespace spillway
