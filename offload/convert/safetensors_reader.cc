#include "offload/convert/safetensors_reader.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>

#include "kernels/base/quote.h"

namespace spillway {

using nlohmann::json;

namespace {

constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr size_t kTensorsMax = 1'000'000;
constexpr size_t kNameBytesMax = 1024;
constexpr uint64_t kPrefixBytes = 8;

// Handles the parse events of a header. Each callback returns false to stop the parser; error()
// then has the reason.
class HeaderHandler final : public nlohmann::json_sax<json> {
 public:
  std::vector<StoredTensor> take_tensors() { return std::move(tensors_); }
  const std::string& error() const { return error_; }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("true or false"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override {
    return fail("the number " + in_quotes(text) + " is not a whole number below 2^63");
  }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (value > INT64_MAX) return fail("a number above 2^63 - 1");
    if (state_ == State::kShape) {
      if (tensor_.shape.size() == kRankMax) return fail("more than 8 dimensions");
      tensor_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ == State::kOffsets) {
      if (offset_count_ == 2) return fail("data_offsets has more than two numbers");
      offsets_[offset_count_++] = value;
      return true;
    }
    return refuse("a number");
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kTensor || field_ != kDtype) return refuse("a string");
    tensor_.format = stored_format_of_name(value);
    return tensor_.format != nullptr || fail("dtype " + in_quotes(value) + " is unknown");
  }

  bool start_object(size_t) override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
    } else if (state_ == State::kTop) {
      state_ = tensor_.name == "__metadata__" ? State::kMetadata : State::kTensor;
    } else {
      return refuse("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    if (state_ == State::kTensor) return start_field(value);
    if (state_ == State::kMetadata) {
      return metadata_keys_.insert(value).second ||
             fail("key " + in_quotes(value) + " occurs twice");
    }
    return start_tensor(value);
  }

  bool end_object() override {
    if (state_ == State::kTensor) {
      if (fields_ != kDtype + kShape + kOffsets)
        return fail("dtype, shape or data_offsets missing");
      state_ = State::kTop;
      return finish_tensor();
    }
    state_ = state_ == State::kMetadata ? State::kTop : State::kStart;
    return true;
  }

  bool start_array(size_t) override {
    if (state_ != State::kTensor || field_ == kDtype) return refuse("a list");
    state_ = field_ == kShape ? State::kShape : State::kOffsets;
    return true;
  }

  bool end_array() override {
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    return fail(std::string("not valid JSON (") + error.what() + ")");
  }

 private:
  enum class State : uint8_t { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };
  enum Field : uint8_t { kDtype = 1, kShape = 2, kOffsets = 4 };

  bool start_tensor(const std::string& name) {
    if (name.size() > kNameBytesMax) {
      return fail("a tensor name of " + std::to_string(name.size()) + " bytes");
    }
    if (names_.size() == kTensorsMax) return fail("more than 1,000,000 tensors");
    tensor_ = StoredTensor();
    tensor_.name = name;
    fields_ = 0;
    offset_count_ = 0;
    return names_.insert(name).second || fail("the name occurs twice");
  }

  bool start_field(const std::string& name) {
    if (name == "dtype") {
      field_ = kDtype;
    } else if (name == "shape") {
      field_ = kShape;
    } else if (name == "data_offsets") {
      field_ = kOffsets;
    } else {
      return fail("unknown field " + in_quotes(name));
    }
    if ((fields_ & field_) != 0) return fail("the field " + name + " occurs twice");
    fields_ |= field_;
    return true;
  }

  bool finish_tensor() {
    if (offset_count_ != 2 || offsets_[0] > offsets_[1]) return fail("data_offsets are no range");
    tensor_.offset = offsets_[0];
    tensor_.bytes = offsets_[1] - offsets_[0];
    const auto need = stored_bytes(*tensor_.format, tensor_.shape);
    if (!need) return fail("the shape " + shape_text(tensor_.shape) + " overflows");
    if (*need != tensor_.bytes) {
      return fail(std::string(tensor_.format->name) + " " + shape_text(tensor_.shape) + " needs " +
                  std::to_string(*need) + " bytes, data_offsets hold " +
                  std::to_string(tensor_.bytes));
    }
    tensors_.push_back(std::move(tensor_));
    tensor_ = StoredTensor();
    return true;
  }

  bool refuse(const char* what) { return fail(std::string("did not expect ") + what + " here"); }

  bool fail(const std::string& reason) {
    if (!error_.empty()) return false;
    error_ = tensor_.name.empty() ? reason : "tensor " + in_quotes(tensor_.name) + ": " + reason;
    return false;
  }

  State state_ = State::kStart;
  Field field_ = kDtype;
  unsigned fields_ = 0;  // Bits of Field: fields seen in this tensor
  uint64_t offsets_[2] = {0, 0};
  int offset_count_ = 0;
  StoredTensor tensor_;
  std::vector<StoredTensor> tensors_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_keys_;
  std::string error_;
};

Result<std::string> read_header(const ByteSource& source, const SafetensorsOptions& options) {
  if (source.size() < kPrefixBytes) {
    return corruption("too short for a safetensors file (" + std::to_string(source.size()) +
                      " bytes)");
  }
  uint64_t header_bytes = 0;
  SPILLWAY_RETURN_IF_ERROR(source.read(0, std::as_writable_bytes(std::span(&header_bytes, 1))));
  if (header_bytes > kHeaderBytesMax) {
    return corruption("a header of " + std::to_string(header_bytes) +
                      " bytes, the limit is 100,000,000; this is no safetensors file");
  }
  if (header_bytes > source.size() - kPrefixBytes) {
    return corruption("the header of " + std::to_string(header_bytes) +
                      " bytes leaves the file, which has " + std::to_string(source.size()));
  }
  std::string header(header_bytes, '\0');
  SPILLWAY_RETURN_IF_ERROR(source.read(kPrefixBytes, std::as_writable_bytes(std::span(header))));
  const size_t start = header.find_first_not_of(" \t\r\n");
  if (start != 0 && start != std::string::npos && header[start] == '{') {
    if (options.lenient_header) return header;
    return invalid_argument("white space before the header's '{'; --lenient-header accepts it");
  }
  if (start != 0 || header[0] != '{') return corruption("the header does not start with '{'");
  return header;
}

// Sorts the tensors by their data and checks that every byte behind the header belongs to exactly
// one.
Status check_tiling(std::vector<StoredTensor>& tensors, uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  uint64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.offset != end) {
      return corruption("tensor " + in_quotes(tensor.name) + " starts at " +
                        std::to_string(tensor.offset) + ", the one before it ends at " +
                        std::to_string(end) + (tensor.offset < end ? " (overlap)" : " (hole)"));
    }
    end += tensor.bytes;
    if (end > data_bytes) {
      return corruption("tensor " + in_quotes(tensor.name) + " leaves the file: it ends at " +
                        std::to_string(end) + " of " + std::to_string(data_bytes) +
                        " data bytes; the file is cut off");
    }
  }
  if (end == data_bytes) return {};
  return corruption(std::to_string(data_bytes - end) + " bytes behind the last tensor");
}

Result<std::vector<StoredTensor>> read_tensors(const ByteSource& source,
                                               const SafetensorsOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::string header, read_header(source, options));
  // The library takes a NUL byte for the end of its input and would ignore what follows.
  if (header.find('\0') != std::string::npos) return corruption("a NUL byte in the header");
  HeaderHandler handler;
  if (!json::sax_parse(header, &handler)) return corruption(handler.error());
  std::vector<StoredTensor> tensors = handler.take_tensors();
  const uint64_t data_start = kPrefixBytes + header.size();
  SPILLWAY_RETURN_IF_ERROR(check_tiling(tensors, source.size() - data_start));
  for (StoredTensor& tensor : tensors) tensor.offset += data_start;
  return tensors;
}

}  // namespace

Result<std::vector<StoredTensor>> read_safetensors(const ByteSource& source,
                                                   const SafetensorsOptions& options) {
  Result<std::vector<StoredTensor>> tensors = read_tensors(source, options);
  if (!tensors.ok()) return tensors.status().at(source.name());
  return tensors;
}

}  // namespace spillway
