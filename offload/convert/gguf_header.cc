#include "offload/convert/gguf_header.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "kernels/base/checked_math.h"
#include "kernels/base/quote.h"
#include "offload/convert/gguf_cursor.h"

namespace spillway {

namespace {

constexpr uint64_t kGgufTensorsMax = 1'000'000;
constexpr uint64_t kKeysMax = 100'000;
constexpr uint64_t kNameBytesMax = 1024;
constexpr uint64_t kStringBytesMax = uint64_t{64} << 20;
constexpr uint64_t kListItemsMax = uint64_t{1} << 22;
constexpr uint64_t kAllItemsMax = uint64_t{1} << 24;  // Of all lists together.
constexpr uint32_t kDimensionsMax = 4;
constexpr int64_t kSizeMax = int64_t{1} << 40;
constexpr uint64_t kAlignmentDefault = 32;
constexpr uint64_t kAlignmentMax = uint64_t{1} << 20;

// Types of metadata values.
enum class ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kList,
  kU64,
  kI64,
  kF64
};

uint64_t least_bytes(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool:
      return 1;
    case ValueType::kU16:
    case ValueType::kI16:
      return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32:
      return 4;
    default:
      return 8;
  }
}

class HeaderReader {
 public:
  explicit HeaderReader(const ByteSource& source) : cursor_(source), file_bytes_(source.size()) {}

  Result<GgufHeader> read() {
    SPILLWAY_RETURN_IF_ERROR(read_start());
    SPILLWAY_RETURN_IF_ERROR(read_metadata());
    for (uint64_t i = 0; i < tensor_count_; ++i) {
      const uint64_t at = cursor_.offset();
      const Status status = read_tensor();
      if (!status.ok()) {
        return status.at("tensor " + std::to_string(i) + " of " + std::to_string(tensor_count_) +
                         " at byte " + std::to_string(at));
      }
    }
    SPILLWAY_RETURN_IF_ERROR(place_data());
    return std::move(header_);
  }

 private:
  Status read_start() {
    SPILLWAY_ASSIGN_OR_RETURN(const uint32_t magic, cursor_.number<uint32_t>());
    if (magic != 0x46554747) {
      return corruption("does not start with \"GGUF\": it is no GGUF file");
    }
    SPILLWAY_ASSIGN_OR_RETURN(header_.version, cursor_.number<uint32_t>());
    if (header_.version != 0 && (header_.version & 0xffff) == 0) {
      return invalid_argument(
          "is a big-endian GGUF file; only little-endian ones are read, convert it anew");
    }
    if (header_.version != 2 && header_.version != 3) {
      return invalid_argument("is of GGUF version " + std::to_string(header_.version) +
                              "; versions 2 and 3 are read" +
                              (header_.version == 1 ? ", convert the model anew" : ""));
    }
    SPILLWAY_ASSIGN_OR_RETURN(tensor_count_, cursor_.number<uint64_t>());
    SPILLWAY_ASSIGN_OR_RETURN(key_count_, cursor_.number<uint64_t>());
    // A tensor's description takes 24 bytes and more, a key with its value 13.
    SPILLWAY_RETURN_IF_ERROR(check_count("tensors", tensor_count_, kGgufTensorsMax, 24));
    return check_count("keys", key_count_, kKeysMax, 13);
  }

  Status check_count(const char* what, uint64_t count, uint64_t most, uint64_t bytes_each) const {
    if (count > most) {
      return invalid_argument("claims " + std::to_string(count) + " " + what + ", the limit is " +
                              std::to_string(most));
    }
    if (count * bytes_each <= cursor_.left()) return {};
    return corruption("claims " + std::to_string(count) + " " + what + ", more than the " +
                      std::to_string(cursor_.left()) + " bytes behind byte " +
                      std::to_string(cursor_.offset()) + " hold");
  }

  Status read_metadata() {
    for (uint64_t i = 0; i < key_count_; ++i) {
      const uint64_t at = cursor_.offset();
      Result<std::string> key = cursor_.string(kNameBytesMax);
      const std::string number = "key " + std::to_string(i) + " of " + std::to_string(key_count_) +
                                 " at byte " + std::to_string(at);
      if (!key.ok()) return key.status().at(number);
      GgufValue value;
      value.offset = at;
      if (Status status = read_value(value); !status.ok()) {
        return status.at("key " + in_quotes(key.value()) + " at byte " + std::to_string(at));
      }
      const auto [entry, fresh] = header_.metadata.emplace(key.value(), std::move(value));
      if (!fresh) {
        return invalid_argument("key " + in_quotes(key.value()) + " at byte " + std::to_string(at) +
                                " was there already at byte " +
                                std::to_string(entry->second.offset));
      }
    }
    return {};
  }

  Status read_value(GgufValue& value) {
    SPILLWAY_ASSIGN_OR_RETURN(const uint32_t type, cursor_.number<uint32_t>());
    if (type > static_cast<uint32_t>(ValueType::kF64)) {
      return invalid_argument("has the unknown type " + std::to_string(type));
    }
    if (static_cast<ValueType>(type) == ValueType::kList) return read_list(value);
    return read_scalar(static_cast<ValueType>(type), value);
  }

  Status read_scalar(ValueType type, GgufValue& value) {
    switch (type) {
      case ValueType::kString: {
        SPILLWAY_ASSIGN_OR_RETURN(value.data, cursor_.string(kStringBytesMax));
        return {};
      }
      case ValueType::kF32:
      case ValueType::kF64: {
        value.float32 = type == ValueType::kF32;
        SPILLWAY_ASSIGN_OR_RETURN(value.data, read_real(type));
        return {};
      }
      case ValueType::kBool: {
        SPILLWAY_ASSIGN_OR_RETURN(const int64_t number, read_integer(type));
        value.data = number != 0;
        return {};
      }
      default: {
        SPILLWAY_ASSIGN_OR_RETURN(value.data, read_integer(type));
        return {};
      }
    }
  }

  Result<double> read_real(ValueType type) {
    if (type == ValueType::kF64) return cursor_.number<double>();
    SPILLWAY_ASSIGN_OR_RETURN(const float number, cursor_.number<float>());
    return static_cast<double>(number);
  }

  template <class T>
  Result<int64_t> widened() {
    SPILLWAY_ASSIGN_OR_RETURN(const T number, cursor_.number<T>());
    return static_cast<int64_t>(number);
  }

  Result<int64_t> read_integer(ValueType type) {
    switch (type) {
      case ValueType::kU8:
        return widened<uint8_t>();
      case ValueType::kI8:
        return widened<int8_t>();
      case ValueType::kU16:
        return widened<uint16_t>();
      case ValueType::kI16:
        return widened<int16_t>();
      case ValueType::kU32:
        return widened<uint32_t>();
      case ValueType::kI32:
        return widened<int32_t>();
      case ValueType::kI64:
        return widened<int64_t>();
      case ValueType::kBool: {
        SPILLWAY_ASSIGN_OR_RETURN(const uint8_t number, cursor_.number<uint8_t>());
        if (number > 1) {
          return invalid_argument("is " + std::to_string(number) + ", neither true nor false");
        }
        return static_cast<int64_t>(number);
      }
      default: {
        SPILLWAY_ASSIGN_OR_RETURN(const uint64_t number, cursor_.number<uint64_t>());
        if (number > INT64_MAX) return invalid_argument("is above 2^63 - 1");
        return static_cast<int64_t>(number);
      }
    }
  }

  Status read_list(GgufValue& value) {
    SPILLWAY_ASSIGN_OR_RETURN(const uint32_t raw_type, cursor_.number<uint32_t>());
    SPILLWAY_ASSIGN_OR_RETURN(const uint64_t count, cursor_.number<uint64_t>());
    const auto type = static_cast<ValueType>(raw_type);
    if (raw_type > static_cast<uint32_t>(ValueType::kF64)) {
      return invalid_argument("is a list of the unknown type " + std::to_string(raw_type));
    }
    if (type == ValueType::kList) return invalid_argument("is a list of lists, which is not read");
    SPILLWAY_RETURN_IF_ERROR(check_count("elements", count, kListItemsMax, least_bytes(type)));
    items_ += count;
    if (items_ > kAllItemsMax) {
      return invalid_argument("brings the elements of all lists above " +
                              std::to_string(kAllItemsMax));
    }
    if (type == ValueType::kString) return read_strings(count, value);
    if (type == ValueType::kF32 || type == ValueType::kF64) {
      value.float32 = type == ValueType::kF32;
      std::vector<double> numbers(count);
      for (double& number : numbers) {
        SPILLWAY_ASSIGN_OR_RETURN(number, read_real(type));
      }
      value.data = std::move(numbers);
      return {};
    }
    std::vector<int64_t> numbers(count);
    for (int64_t& number : numbers) {
      SPILLWAY_ASSIGN_OR_RETURN(number, read_integer(type));
    }
    value.data = std::move(numbers);
    return {};
  }

  Status read_strings(uint64_t count, GgufValue& value) {
    std::vector<std::string> strings;
    strings.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      Result<std::string> text = cursor_.string(kStringBytesMax);
      if (!text.ok()) return text.status().at("element " + std::to_string(i));
      strings.push_back(std::move(text).value());
    }
    value.data = std::move(strings);
    return {};
  }

  Status read_tensor() {
    GgufTensor tensor;
    SPILLWAY_ASSIGN_OR_RETURN(tensor.name, cursor_.string(kNameBytesMax));
    const Status status = read_shape_and_place(tensor);
    if (!status.ok()) return status.at(in_quotes(tensor.name));
    if (!names_.insert(tensor.name).second) {
      return invalid_argument("the name " + in_quotes(tensor.name) + " occurs twice");
    }
    header_.tensors.push_back(std::move(tensor));
    return {};
  }

  Status read_shape_and_place(GgufTensor& tensor) {
    SPILLWAY_ASSIGN_OR_RETURN(const uint32_t dimensions, cursor_.number<uint32_t>());
    if (dimensions == 0 || dimensions > kDimensionsMax) {
      return invalid_argument("has " + std::to_string(dimensions) + " dimensions, must be 1 to 4");
    }
    std::optional<uint64_t> numbers = 1;
    for (uint32_t i = 0; i < dimensions; ++i) {
      SPILLWAY_ASSIGN_OR_RETURN(const int64_t size, read_integer(ValueType::kU64));
      if (size == 0 || size > kSizeMax) {
        return invalid_argument("has a dimension of " + std::to_string(size));
      }
      numbers = checked_multiply(*numbers, static_cast<uint64_t>(size));
      if (!numbers) return invalid_argument("has more than 2^64 numbers");
      tensor.shape.insert(tensor.shape.begin(), size);
    }
    SPILLWAY_ASSIGN_OR_RETURN(const uint32_t type, cursor_.number<uint32_t>());
    SPILLWAY_ASSIGN_OR_RETURN(tensor.offset, cursor_.number<uint64_t>());
    tensor.format = gguf_block_format(type);
    if (tensor.format == nullptr) {
      return invalid_argument("is " + gguf_type_name(type) + ", which is not supported; " +
                              gguf_block_format_names() + " are");
    }
    if (tensor.shape.back() % tensor.format->elements != 0) {
      return invalid_argument("has rows of " + std::to_string(tensor.shape.back()) +
                              " numbers, no multiple of the " +
                              std::to_string(tensor.format->elements) + " in a block of " +
                              std::string(tensor.format->name));
    }
    const auto bytes =
        checked_multiply(*numbers / tensor.format->elements, uint64_t{tensor.format->bytes});
    if (!bytes || *bytes > file_bytes_) {
      return corruption("has " + std::to_string(*numbers) + " numbers, more than the file's " +
                        std::to_string(file_bytes_) + " bytes hold");
    }
    tensor.bytes = *bytes;
    return {};
  }

  Result<uint64_t> alignment() const {
    const auto found = header_.metadata.find("general.alignment");
    if (found == header_.metadata.end()) return kAlignmentDefault;
    const auto* number = std::get_if<int64_t>(&found->second.data);
    const auto value = number == nullptr ? uint64_t{0} : static_cast<uint64_t>(*number);
    if (number == nullptr || *number < 8 || value > kAlignmentMax || (value & (value - 1)) != 0) {
      return invalid_argument("key 'general.alignment' at byte " +
                              std::to_string(found->second.offset) +
                              " must be a power of two of 8 to 1,048,576");
    }
    return value;
  }

  // Turns the tensors' offsets into places in the file and checks that they tile the data, with
  // nothing but padding between them.
  Status place_data() {
    SPILLWAY_ASSIGN_OR_RETURN(const uint64_t align, alignment());
    const auto padded = [align](uint64_t bytes) { return (bytes + align - 1) / align * align; };
    header_.data_offset = padded(cursor_.offset());
    auto& tensors = header_.tensors;
    if (tensors.empty()) {
      header_.data_offset = std::min(header_.data_offset, file_bytes_);
      return {};
    }
    std::stable_sort(tensors.begin(), tensors.end(),
                     [](const GgufTensor& a, const GgufTensor& b) { return a.offset < b.offset; });
    uint64_t end = 0;
    for (GgufTensor& tensor : tensors) {
      const uint64_t expected = padded(end);
      if (tensor.offset != expected) {
        return corruption("tensor " + in_quotes(tensor.name) + " starts at byte " +
                          std::to_string(tensor.offset) + " of the data, must start at " +
                          std::to_string(expected) + ", behind the one before it (" +
                          (tensor.offset < expected ? "overlap)" : "hole)"));
      }
      end = tensor.offset + tensor.bytes;
      if (header_.data_offset > file_bytes_ || end > file_bytes_ - header_.data_offset) {
        return corruption("tensor " + in_quotes(tensor.name) +
                          " leaves the file: it ends at byte " +
                          std::to_string(header_.data_offset + end) + " of " +
                          std::to_string(file_bytes_) + "; the file is cut off");
      }
      tensor.offset += header_.data_offset;
    }
    const uint64_t behind = file_bytes_ - header_.data_offset - end;
    if (behind < align) return {};
    return corruption(std::to_string(behind) + " bytes behind the last tensor");
  }

  GgufCursor cursor_;
  const uint64_t file_bytes_;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  uint64_t items_ = 0;  // Elements of all lists so far.
  std::unordered_set<std::string> names_;
  GgufHeader header_;
};

}  // namespace

Result<GgufHeader> read_gguf_header(const ByteSource& source) {
  Result<GgufHeader> header = HeaderReader(source).read();
  if (!header.ok()) return header.status().at(source.name());
  return header;
}

}  // namespace spillway
