// Lines of the tables that commands print.
#pragma once

#include <string>

namespace spillway {

// printf's text and a newline; what is longer than 1.5 KB is cut.
[[gnu::format(printf, 1, 2)]] std::string text_line(const char* text, ...);

}  // namespace spillway
