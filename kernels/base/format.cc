#include "kernels/base/format.h"

#include <vector>

#include "kernels/base/q4.h"

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

void pack_quantized_row(Format format, std::span<const float> values, std::byte* row,
                        QuantError* error) {
  SPILLWAY_CHECK(format == Format::kQ4);
  pack_q4_row(values, row, error);
}

void unpack_quantized_row(Format format, const std::byte* row, std::span<float> values) {
  SPILLWAY_CHECK(format == Format::kQ4);
  unpack_q4_row(row, values);
}

}  // namespace spillway
