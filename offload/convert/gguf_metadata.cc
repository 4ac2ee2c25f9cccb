#include "offload/convert/gguf_metadata.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kernels/base/quote.h"

namespace spillway {

namespace {

std::string number_text(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

}  // namespace

std::string gguf_kind_of(const GgufValue& value) {
  static constexpr std::string_view kKinds[] = {
      "an integer", "a number", "true or false", "a string", "integers", "numbers", "strings"};
  const size_t kind = value.data.index();
  if (kind < 4) return std::string(kKinds[kind]);
  const size_t size = std::visit(
      [](const auto& data) -> size_t {
        if constexpr (requires { data.size(); }) return data.size();
        return 0;
      },
      value.data);
  return "a list of " + std::to_string(size) + " " + std::string(kKinds[kind]);
}

const GgufValue* GgufKeyReader::find(std::string_view key) {
  if (failed()) return nullptr;
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

template <class T>
const T* GgufKeyReader::find_as(std::string_view key, std::string_view wanted) {
  const GgufValue* value = find(key);
  if (value == nullptr) return nullptr;
  if (const T* data = std::get_if<T>(&value->data)) return data;
  fail(key, "must be " + std::string(wanted) + ", it is " + gguf_kind_of(*value));
  return nullptr;
}

std::optional<int64_t> GgufKeyReader::find_integer(std::string_view key, int64_t least,
                                                   int64_t most) {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const int64_t* number = std::get_if<int64_t>(&value->data);
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value->data); list && !list->empty()) {
    const bool equal = std::all_of(list->begin(), list->end(),
                                   [&](int64_t element) { return element == list->front(); });
    if (!equal) {
      fail(key, "differs by layer, which is not supported");
      return std::nullopt;
    }
    number = &list->front();
  }
  if (number == nullptr) {
    fail(key, "must be an integer, it is " + gguf_kind_of(*value));
    return std::nullopt;
  }
  if (*number < least || *number > most) {
    fail(key, "must be between " + std::to_string(least) + " and " + std::to_string(most) +
                  ", it is " + std::to_string(*number));
    return std::nullopt;
  }
  return *number;
}

std::optional<double> GgufKeyReader::find_number(std::string_view key, double least, double most) {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  double number = 0;
  if (const auto* integer = std::get_if<int64_t>(&value->data)) {
    number = static_cast<double>(*integer);
  } else if (const auto* real = std::get_if<double>(&value->data)) {
    number = value->float32 ? shortest_decimal(*real) : *real;
  } else {
    fail(key, "must be a number, it is " + gguf_kind_of(*value));
    return std::nullopt;
  }
  if (!(number >= least && number <= most)) {
    fail(key, "must be between " + number_text(least) + " and " + number_text(most) + ", it is " +
                  number_text(number));
    return std::nullopt;
  }
  return number;
}

std::optional<bool> GgufKeyReader::find_boolean(std::string_view key) {
  const bool* value = find_as<bool>(key, "true or false");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<std::string> GgufKeyReader::find_string(std::string_view key) {
  const std::string* value = find_as<std::string>(key, "a string");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

const std::vector<std::string>* GgufKeyReader::find_strings(std::string_view key) {
  return find_as<std::vector<std::string>>(key, "a list of strings");
}

const std::vector<int64_t>* GgufKeyReader::find_integers(std::string_view key) {
  return find_as<std::vector<int64_t>>(key, "a list of integers");
}

const std::vector<double>* GgufKeyReader::find_numbers(std::string_view key) {
  return find_as<std::vector<double>>(key, "a list of numbers");
}

int64_t GgufKeyReader::integer(std::string_view key, int64_t least, int64_t most) {
  if (!has(key)) fail(key, "is missing");
  return find_integer(key, least, most).value_or(least);
}

double GgufKeyReader::number(std::string_view key, double least, double most) {
  if (!has(key)) fail(key, "is missing");
  return find_number(key, least, most).value_or(least);
}

std::string GgufKeyReader::string(std::string_view key) {
  if (!has(key)) fail(key, "is missing");
  return find_string(key).value_or("");
}

void GgufKeyReader::fail(std::string_view key, const std::string& reason) {
  if (failed()) return;
  const auto found = metadata_.find(key);
  const std::string at =
      found == metadata_.end() ? "" : " at byte " + std::to_string(found->second.offset);
  status_ = invalid_argument(where_ + ": key " + in_quotes(key) + at + " " + reason);
}

double shortest_decimal(double value) {
  if (!std::isfinite(value)) return value;
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), static_cast<float>(value));
  double number = value;
  std::from_chars(text, end.ptr, number);
  return number;
}

}  // namespace spillway
