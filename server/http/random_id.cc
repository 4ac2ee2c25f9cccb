#include "server/http/random_id.h"

#include <random>

namespace spillway {

std::string random_hex(int digits) {
  std::random_device random;
  std::string text;
  for (int i = 0; i < digits; ++i) text += "0123456789abcdef"[random() & 15u];
  return text;
}

}  // namespace spillway
