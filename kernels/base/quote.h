// Quoting of untrusted text in our messages: names and values from files, requests and command
// lines. Pure, any thread.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

// `text` in quotes for an error message: at most 80 bytes of it, control and non-ASCII bytes
// escaped, so that a file cannot control the terminal.
std::string in_quotes(std::string_view text);

// Letters, digits, '_', '-' and '.', at most 64: may be repeated in a message or a header as it is.
bool is_safe_name(std::string_view name);

}  // namespace spillway
