// Parsing of bytes and ages, and formatting of bytes, seconds and rates, for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace spillway {

// "16GiB", "500 MB", "4096": binary (KiB..TiB) and decimal (kB..TB) units, case-insensitive;
// a bare number is bytes; one decimal fraction is fine ("1.5GiB").
Result<uint64_t> parse_bytes(std::string_view text);

// "30d", "12h", "45min", "2w" or "90s" in seconds; a bare number is days; one decimal fraction is
// fine.
Result<double> parse_age(std::string_view text);

// Three significant digits in binary units: "13.3 GiB", "512 B".
std::string format_bytes(uint64_t bytes);

// "0.42 s", "3 min 20 s", "1 h 05 min".
std::string format_seconds(double seconds);

// As format_seconds(), but whole seconds, and days from two days on: "31 days".
std::string format_age(double seconds);

// Three significant digits: "12.3", "0.0451", "1420", "14200".
std::string format_rate(double per_second);

}  // namespace spillway
