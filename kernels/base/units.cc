#include "kernels/base/units.h"
#include "kernels/base/quote.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace spillway {

namespace {

// The multiplier of a unit, 0 when there is no such unit.
double unit_bytes(std::string_view unit) {
  std::string lower;
  for (char c : unit) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.empty() || lower == "b") return 1;
  constexpr std::string_view kPrefixes = "kmgt";
  const size_t power = kPrefixes.find(lower[0]);
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = std::string_view(lower).substr(1);
  if (rest == "ib" || rest == "i") return std::pow(1024.0, static_cast<double>(power + 1));
  if (rest == "b") return std::pow(1000.0, static_cast<double>(power + 1));
  if (rest.empty()) return std::pow(1024.0, static_cast<double>(power + 1));  // As in "16G".
  return 0;
}

// Likewise of an age: a minute is "min", because "m" may be a month.
double unit_seconds(std::string_view unit) {
  if (unit == "s") return 1;
  if (unit == "min") return 60;
  if (unit == "h") return 3600;
  if (unit.empty() || unit == "d") return 86400;
  return unit == "w" ? 7 * 86400 : 0;
}

}  // namespace

Result<uint64_t> parse_bytes(std::string_view text) {
  const auto refuse = [&] {
    return invalid_argument(in_quotes(text) +
                            " is not a size; write for example 16GiB, 500MB or 4096");
  };
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return refuse();
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const double scale = unit_bytes(unit);
  const double bytes = number * scale;
  if (scale == 0 || !(bytes < 9.2e18)) return refuse();
  return static_cast<uint64_t>(bytes);
}

Result<double> parse_age(std::string_view text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const double scale = unit_seconds(unit);
  const bool good = error == std::errc() && number >= 0 && scale > 0 && number * scale < 1e11;
  if (good) return number * scale;
  return invalid_argument(in_quotes(text) +
                          " is not an age; write for example 30d, 12h, 45min or 2w");
}

std::string format_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 999.5 && unit < 6) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text, sizeof(text), "%.*f %s", digits, value, kUnits[unit]);
  return text;
}

std::string format_seconds(double seconds) {
  char text[48];
  if (seconds < 10) {
    std::snprintf(text, sizeof(text), "%.2f s", seconds);
  } else if (seconds < 60) {
    std::snprintf(text, sizeof(text), "%.1f s", seconds);
  } else if (seconds < 3600) {
    const int whole = static_cast<int>(std::lround(seconds));
    std::snprintf(text, sizeof(text), "%d min %02d s", whole / 60, whole % 60);
  } else {
    const int minutes = static_cast<int>(std::lround(seconds / 60));
    std::snprintf(text, sizeof(text), "%d h %02d min", minutes / 60, minutes % 60);
  }
  return text;
}

std::string format_age(double seconds) {
  constexpr double kDay = 86400;
  if (seconds >= 2 * kDay) return std::to_string(std::llround(seconds / kDay)) + " days";
  if (seconds >= 60) return format_seconds(seconds);
  return std::to_string(std::llround(std::max(0.0, seconds))) + " s";
}

std::string format_rate(double per_second) {
  char text[64];
  std::snprintf(text, sizeof(text), per_second < 1000 ? "%.3g" : "%.0f", per_second);
  return text;
}

}  // namespace spillway
