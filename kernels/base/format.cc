#include "kernels/base/format.h"

#include <vector>

namespace spillway {

namespace {

// A format's place in the tables is its number.
constexpr bool in_order() {
  for (size_t i = 0; i < kFormatCount; ++i) {
    if (static_cast<size_t>(kFormats[i]) != i) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

std::string format_names(std::string_view separator, std::string_view last, bool kv_cache) {
  std::vector<std::string_view> names;
  for (const FormatTraits& traits : kFormatTraits) {
    if (traits.kv_cache || !kv_cache) names.push_back(traits.name);
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() && !last.empty() ? last : separator;
    text += names[i];
  }
  return text;
}

}  // namespace spillway
