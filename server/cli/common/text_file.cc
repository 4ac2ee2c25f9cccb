#include "server/cli/common/text_file.h"

#include <fstream>
#include <iterator>

#include "kernels/base/units.h"

namespace spillway {

Result<std::string> read_text_file(const std::string& flag, const std::string& path,
                                   uint64_t bytes_max) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found("cannot open " + flag + " " + path);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (text.empty()) return invalid_argument(flag + " " + path + " is empty");
  if (text.size() > bytes_max) {
    return invalid_argument(flag + " " + path + " has " + format_bytes(text.size()) + "; at most " +
                            format_bytes(bytes_max) + " can be read at once: give a part of it");
  }
  return text;
}

}  // namespace spillway
