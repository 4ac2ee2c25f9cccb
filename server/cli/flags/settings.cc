#include "server/cli/flags/settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "kernels/base/quote.h"
#include "kernels/base/units.h"

namespace spillway {

namespace {

template <class Integer>
std::optional<Integer> whole(const std::string& text) {
  Integer number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

Result<int64_t> integer_within(const std::string& text, int64_t least, int64_t most) {
  const auto number = whole<int64_t>(text);
  if (number && *number >= least && *number <= most) return *number;
  return invalid_argument(in_quotes(text) + " is not a whole number from " + std::to_string(least) +
                          " to " + std::to_string(most));
}

Result<uint64_t> seed_of(const std::string& text) {
  if (const auto number = whole<uint64_t>(text)) return *number;
  return invalid_argument(in_quotes(text) + " is not a whole number from 0 to 2^64 - 1");
}

Result<bool> switch_of(const std::string& text) {
  std::string lower;
  for (char c : text) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* on : {"true", "on", "yes", "1"}) {
    if (lower == on) return true;
  }
  for (const char* off : {"false", "off", "no", "0"}) {
    if (lower == off) return false;
  }
  return invalid_argument(in_quotes(text) + " is neither true nor false");
}

std::string text_of(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", number);
  return text;
}

template <class T, class Parse>
std::function<Status(const std::string&)> assigner(T* field, Parse parse) {
  return [field, parse](const std::string& text) -> Status {
    SPILLWAY_ASSIGN_OR_RETURN(*field, parse(text));
    return {};
  };
}

std::string shown_value(const Setting& setting) {
  if (setting.value.empty()) return "-";
  return setting.secret ? "(hidden)" : setting.value;
}

}  // namespace

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (start <= text.size()) {
    const size_t end = std::min(text.find(',', start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

std::string Setting::environment_name() const {
  std::string variable = "SPILLWAY_";
  for (char c : name) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

void Settings::add(Setting setting) {
  SPILLWAY_CHECK(find(setting.name) == nullptr);
  setting.group = group_;
  settings_.push_back(std::move(setting));
}

void Settings::add_text(std::string name, std::string* field, std::string meaning,
                        std::string help) {
  const auto keep = [](const std::string& text) -> Result<std::string> { return text; };
  add({std::move(name), std::move(meaning), std::move(help), "", *field, assigner(field, keep)});
}

void Settings::add_texts(std::string name, std::vector<std::string>* field, std::string meaning,
                         std::string help) {
  const auto split = [](const std::string& text) -> Result<std::vector<std::string>> {
    return split_list(text);
  };
  add({std::move(name), std::move(meaning), std::move(help), "", "", assigner(field, split),
       SettingSource::kDefault, true});
}

void Settings::add_switch(std::string name, bool* field, std::string help) {
  add({std::move(name), "", std::move(help), "", *field ? "true" : "false",
       assigner(field, switch_of)});
}

void Settings::add_integer(std::string name, int64_t* field, int64_t least, int64_t most,
                           std::string help) {
  const auto parse = [=](const std::string& text) { return integer_within(text, least, most); };
  add({std::move(name), "N", std::move(help), "", std::to_string(*field), assigner(field, parse)});
}

void Settings::add_integer(std::string name, std::optional<int64_t>* field, int64_t least,
                           int64_t most, std::string help) {
  const auto parse = [=](const std::string& text) { return integer_within(text, least, most); };
  add({std::move(name), "N", std::move(help), "", "", assigner(field, parse)});
}

void Settings::add_count(std::string name, size_t* field, int64_t least, int64_t most,
                         std::string help) {
  const auto parse = [=](const std::string& text) -> Result<size_t> {
    SPILLWAY_ASSIGN_OR_RETURN(const int64_t number, integer_within(text, least, most));
    return static_cast<size_t>(number);
  };
  add({std::move(name), "N", std::move(help), "", std::to_string(*field), assigner(field, parse)});
}

void Settings::add_seed(std::string name, uint64_t* field, std::string help) {
  add({std::move(name), "N", std::move(help), "", std::to_string(*field),
       assigner(field, seed_of)});
}

void Settings::add_seed(std::string name, std::optional<uint64_t>* field, std::string help) {
  add({std::move(name), "N", std::move(help), "", "", assigner(field, seed_of)});
}

void Settings::add_real(std::string name, double* field, double least, double most,
                        std::string help) {
  const auto parse = [=](const std::string& text) -> Result<double> {
    double number = 0;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc() && rest == end && number >= least && number <= most) return number;
    return invalid_argument(in_quotes(text) + " is not a number from " + text_of(least) + " to " +
                            text_of(most));
  };
  add({std::move(name), "X", std::move(help), "", text_of(*field), assigner(field, parse)});
}

void Settings::add_size(std::string name, std::optional<uint64_t>* field_bytes, std::string help) {
  const auto parse = [](const std::string& text) { return parse_bytes(text); };
  add({std::move(name), "SIZE", std::move(help), "", "", assigner(field_bytes, parse)});
}

void Settings::add_choice(std::string name, std::string* field, std::vector<std::string> choices,
                          std::string help) {
  std::string meaning;
  for (const std::string& choice : choices) meaning += (meaning.empty() ? "" : "|") + choice;
  const auto parse = [choices, meaning](const std::string& text) -> Result<std::string> {
    if (std::find(choices.begin(), choices.end(), text) != choices.end()) return text;
    return invalid_argument(in_quotes(text) + " is not one of " + meaning);
  };
  add({std::move(name), meaning, std::move(help), "", *field, assigner(field, parse)});
}

const Setting* Settings::find(std::string_view name) const {
  const auto found = std::find_if(settings_.begin(), settings_.end(),
                                  [&](const Setting& setting) { return setting.name == name; });
  return found == settings_.end() ? nullptr : &*found;
}

void Settings::qualify(std::string_view owner, const std::vector<std::string_view>& names) {
  SPILLWAY_CHECK(find(owner) != nullptr);
  for (const std::string_view name : names) {
    auto* setting = const_cast<Setting*>(find(name));
    SPILLWAY_CHECK(setting != nullptr);
    setting->of = owner;
  }
}

void Settings::same(std::string_view one, std::string_view other) {
  auto* a = const_cast<Setting*>(find(one));
  auto* b = const_cast<Setting*>(find(other));
  SPILLWAY_CHECK(a != nullptr && b != nullptr);
  a->twin = other;
  b->twin = one;
}

Status Settings::set(std::string_view name, const std::string& value, SettingSource source,
                     const std::string& place) {
  auto* setting = const_cast<Setting*>(find(name));
  SPILLWAY_CHECK(setting != nullptr);
  if (Status status = setting->assign(value); !status.ok()) return status.at(place);
  setting->value = value;
  setting->source = source;
  return {};
}

std::string describe(const Settings& settings) {
  size_t name_width = 0;
  size_t value_width = 0;
  for (const Setting& setting : settings.all()) {
    name_width = std::max(name_width, setting.name.size());
    value_width = std::max(value_width, std::min<size_t>(shown_value(setting).size(), 40));
  }
  std::string text;
  for (const Setting& setting : settings.all()) {
    std::string line = setting.name + std::string(name_width + 2 - setting.name.size(), ' ');
    const std::string value = shown_value(setting);
    line += value;
    line += std::string(value.size() < value_width ? value_width - value.size() + 2 : 2, ' ');
    switch (setting.source) {
      case SettingSource::kDefault:
        line += "default";
        break;
      case SettingSource::kPlan:
        line += "--plan file";
        break;
      case SettingSource::kFile:
        line += "--config file";
        break;
      case SettingSource::kEnvironment:
        line += setting.environment_name();
        break;
      case SettingSource::kFlag:
        line += "--" + setting.name;
        break;
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace spillway
