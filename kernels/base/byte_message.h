// Values in a row of bytes, one behind another, and back: messages between processes of one program
// and one machine type. Plain values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace spillway {

class ByteWriter {
 public:
  template <class T>
  void add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof value);
  }
  template <class T>
  void add_all(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    add(static_cast<uint64_t>(values.size()));
    const auto* from = reinterpret_cast<const std::byte*>(values.data());
    bytes_.insert(bytes_.end(), from, from + values.size_bytes());
  }
  void add_text(std::string_view text) { add_all(std::span(text.data(), text.size())); }

  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads what a ByteWriter wrote. After a value that is not there ok() is false, and all others are
// empty.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (const auto bytes = next(sizeof value); !bytes.empty()) {
      std::memcpy(&value, bytes.data(), sizeof value);
    }
    return value;
  }
  template <class T>
  std::vector<T> get_all() {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto count = get<uint64_t>();
    if (count > left_.size() / sizeof(T)) ok_ = false;
    if (!ok_ || count == 0) return {};
    std::vector<T> values(static_cast<size_t>(count));
    const auto bytes = next(values.size() * sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::string get_text() {
    const std::vector<char> text = get_all<char>();
    return {text.begin(), text.end()};
  }

  bool ok() const { return ok_; }
  std::span<const std::byte> left() const { return left_; }

 private:
  std::span<const std::byte> next(size_t bytes) {
    if (bytes > left_.size()) ok_ = false;
    if (!ok_) return {};
    const auto found = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return found;
  }

  std::span<const std::byte> left_;
  bool ok_ = true;
};

}  // namespace spillway
