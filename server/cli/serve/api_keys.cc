#include "server/cli/serve/api_keys.h"

#include <algorithm>
#include <cerrno>
#include <fstream>

namespace spillway {

namespace {

constexpr std::streamsize kFileBytesMax = 1 << 20;

// Checks that `key`, called `name` in errors, can be a key. Never repeats the key.
Status check_key(const std::string& key, const std::string& name) {
  if (key.empty()) {
    return invalid_argument(name + " is empty, which would let everyone in; " +
                            "leave the keys out altogether to ask for none");
  }
  const bool visible =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 127; });
  if (visible) return {};
  return invalid_argument(name + " has a blank or a byte that is no visible ASCII character; " +
                          "a header cannot carry it");
}

}  // namespace

Setting api_key_setting(std::vector<std::string>* field) {
  Setting setting;
  setting.name = "api-key";
  setting.meaning = "KEY";
  setting.help = "keys that clients must show one of; in a variable or file they stay out of ps";
  setting.repeats = true;
  setting.secret = true;
  setting.assign = [field](const std::string& text) -> Status {
    std::vector<std::string> keys = split_list(text);
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::string name =
          "key " + std::to_string(i + 1) + " of " + std::to_string(keys.size());
      SPILLWAY_RETURN_IF_ERROR(check_key(keys[i], name));
    }
    *field = std::move(keys);
    return {};
  };
  return setting;
}

Result<std::vector<std::string>> read_api_key_file(const std::string& path) {
  const std::string place = "--api-key-file " + path;
  std::ifstream in(path, std::ios::binary);
  if (!in) return io_error(place, errno);
  std::string text(kFileBytesMax + 1, '\0');
  in.read(text.data(), kFileBytesMax + 1);
  if (in.bad()) return io_error(place, errno);
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > static_cast<size_t>(kFileBytesMax)) {
    return invalid_argument(place + ": longer than 1 MiB");
  }
  std::vector<std::string> keys;
  size_t number = 0;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    SPILLWAY_RETURN_IF_ERROR(check_key(line, place + ": line " + std::to_string(number + 1)));
    keys.push_back(std::move(line));
  }
  if (keys.empty()) {
    return invalid_argument(place + ": has no key; leave the flag out to ask clients for none");
  }
  return keys;
}

}  // namespace spillway
