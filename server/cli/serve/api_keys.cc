#include "server/cli/serve/api_keys.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

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

template <class Number>
std::optional<Number> number_of(std::string_view text, Number least) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least) return {};
  return number;
}

bool read_name(std::string_view text, std::string* name) {
  const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  *name = text;
  return plain && !text.empty() && text.size() <= 64;
}

// "-5..10", "0..", "..5"
bool read_range(std::string_view text, KeyLimits* limits) {
  const size_t dots = text.find("..");
  if (dots == std::string_view::npos || text.size() == 2) return false;
  const auto read = [](std::string_view end, std::optional<int32_t>* number) {
    if (end.empty()) return true;
    *number = number_of<int32_t>(end, INT32_MIN);
    return number->has_value();
  };
  if (!read(text.substr(0, dots), &limits->priority_min)) return false;
  if (!read(text.substr(dots + 2), &limits->priority_max)) return false;
  return limits->priority_min.value_or(INT32_MIN) <= limits->priority_max.value_or(INT32_MAX);
}

bool read_count(std::string_view text, int64_t* count) {
  const auto number = number_of<int64_t>(text, 1);
  *count = number.value_or(0);
  return number.has_value();
}

// One "NAME=VALUE" behind a key.
bool read_limit(std::string_view text, KeyLimits* limits) {
  const size_t mark = text.find('=');
  if (mark == std::string_view::npos) return false;
  const std::string_view name = text.substr(0, mark), value = text.substr(mark + 1);
  if (name == "name") return read_name(value, &limits->name);
  if (name == "priority") return read_range(value, limits);
  if (name == "slots") return read_count(value, &limits->slots);
  if (name == "tokens-per-minute") return read_count(value, &limits->tokens_per_minute);
  if (name == "connections") return read_count(value, &limits->connections);
  return false;
}

// The words between blanks, up to one that begins a comment.
std::vector<std::string> words_of(const std::string& line) {
  constexpr const char* kBlanks = " \t\r";
  std::vector<std::string> words;
  for (size_t at = line.find_first_not_of(kBlanks); at != std::string::npos;) {
    if (line[at] == '#') break;
    const size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlanks, end);
  }
  return words;
}

// `place` names the line.
Result<ApiKey> read_line(const std::vector<std::string>& words, const std::string& place) {
  ApiKey key;
  key.key = words.front();
  SPILLWAY_RETURN_IF_ERROR(check_key(key.key, place));
  for (size_t i = 1; i < words.size(); ++i) {
    if (read_limit(words[i], &key.limits)) continue;
    return invalid_argument(
        place + ": word " + std::to_string(i + 1) +
        " is no limit of a key: name=LETTERS, priority=MIN..MAX, slots=N, tokens-per-minute=N or "
        "connections=N, with N of 1 or more; a key has no blanks");
  }
  return key;
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

Result<std::vector<ApiKey>> read_api_key_file(const std::string& path) {
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
  std::vector<ApiKey> keys;
  size_t number = 0;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string whole = text.substr(at, end - at);
    const std::vector<std::string> words = words_of(whole);
    at = end + 1;
    if (words.empty()) continue;
    const std::string line = place + ": line " + std::to_string(number + 1);
    if (!whole.starts_with(words.front())) {
      return invalid_argument(line + " begins with a blank; a key has none");
    }
    SPILLWAY_ASSIGN_OR_RETURN(ApiKey key, read_line(words, line));
    keys.push_back(std::move(key));
  }
  if (keys.empty()) {
    return invalid_argument(place + ": has no key; leave the flag out to ask clients for none");
  }
  return keys;
}

}  // namespace spillway
