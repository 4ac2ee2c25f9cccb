#include "server/cli/common/text_line.h"

#include <cstdarg>
#include <cstdio>

namespace spillway {

std::string text_line(const char* text, ...) {
  char line[1536];
  va_list arguments;
  va_start(arguments, text);
  std::vsnprintf(line, sizeof(line), text, arguments);
  va_end(arguments);
  return std::string(line) + '\n';
}

}  // namespace spillway
