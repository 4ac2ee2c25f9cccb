#include "offload/convert/stored_tensor.h"

#include "kernels/base/checked_math.h"

namespace spillway {

namespace {

constexpr StoredFormat kStoredFormats[] = {
    {"F16", 16, DType::kF16},         {"BF16", 16, DType::kBF16},
    {"F32", 32, DType::kF32},         {"F64", 64, std::nullopt},
    {"BOOL", 8, std::nullopt},        {"U8", 8, std::nullopt},
    {"I8", 8, std::nullopt},          {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},        {"I32", 32, std::nullopt},
    {"U32", 32, std::nullopt},        {"I64", 64, std::nullopt},
    {"U64", 64, std::nullopt},        {"C64", 64, std::nullopt},
    {"F4", 4, std::nullopt},          {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},     {"F8_E5M2", 8, std::nullopt},
    {"F8_E4M3", 8, std::nullopt},     {"F8_E8M0", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt}, {"F8_E5M2FNUZ", 8, std::nullopt},
};

}  // namespace

const StoredFormat* stored_format_of_name(std::string_view name) {
  for (const StoredFormat& format : kStoredFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

std::optional<uint64_t> stored_bytes(const StoredFormat& format,
                                     const std::vector<int64_t>& shape) {
  std::optional<uint64_t> bits = format.bits;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    // An overflow is refused even if a later size is zero, as in the reference reader.
    bits = checked_multiply(*bits, static_cast<uint64_t>(size));
    if (!bits) return std::nullopt;
  }
  if (*bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

}  // namespace spillway
