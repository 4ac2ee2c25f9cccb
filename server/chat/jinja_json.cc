#include "server/chat/jinja_json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "server/chat/jinja_compare.h"
#include "server/chat/jinja_text.h"

namespace spillway::jinja {
namespace {

using Form = Sequence::Form;

void append_code(unsigned code, std::string* out) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), "\\u%04x", code);
  *out += buffer;
}

std::string json_string(std::string_view text, bool ascii) {
  std::string out = "\"";
  constexpr std::string_view kPlain = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, &at);
    const size_t found = c < 0x80 ? kPlain.find(static_cast<char>(c)) : kPlain.npos;
    if (found != kPlain.npos) {
      out += '\\';
      out += kLetters[found];
    } else if (c < 0x20 || (ascii && c > 0x7e && c < 0x10000)) {
      append_code(static_cast<unsigned>(c), &out);
    } else if (ascii && c >= 0x10000) {
      append_code(0xd800 + static_cast<unsigned>((c - 0x10000) >> 10), &out);
      append_code(0xdc00 + static_cast<unsigned>((c - 0x10000) & 0x3ff), &out);
    } else {
      append_character(c, &out);
    }
  }
  return out + '"';
}

std::string json_real(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return format_real(value);
}

class Writer {
 public:
  Writer(Run& run, const Arguments& arguments) : run_(run) {
    const auto bound = bind_arguments(run, "the filter tojson", arguments,
                                      {"ensure_ascii", "indent", "separators", "sort_keys"});
    if (run.failed()) return;
    ascii_ = bound[0] != nullptr && truth(*bound[0]);
    sort_ = bound[3] != nullptr && truth(*bound[3]);
    if (bound[1] != nullptr) read_indent(*bound[1]);
    if (bound[2] != nullptr) read_separators(*bound[2]);
  }

  std::string write(const Value& value) {
    put(value, 0);
    return std::move(out_);
  }

 private:
  void read_indent(const Value& value) {
    if (value.is(Kind::kNone)) return;
    if (value.is_string()) {
      indent_ = value.as_string();
    } else if (value.is_integral() && value.as_int() <= 100) {
      indent_.assign(static_cast<size_t>(std::max<int64_t>(0, value.as_int())), ' ');
    } else {
      run_.fail("the indent of the filter tojson is a string or at most 100");
    }
    lines_ = true;
    item_ = ",";
  }

  void read_separators(const Value& value) {
    if (value.is(Kind::kNone)) return;
    const bool pair = value.is(Kind::kSequence) && value.as_sequence().subscripts() &&
                      value.as_sequence().items.size() == 2;
    if (!pair || !value.as_sequence().items[0].is_string() ||
        !value.as_sequence().items[1].is_string()) {
      return run_.fail("the separators of the filter tojson are two strings");
    }
    item_ = value.as_sequence().items[0].as_string();
    key_ = value.as_sequence().items[1].as_string();
  }

  void add(std::string_view text) {
    if (run_.take(text.size())) out_ += text;
  }

  void line(int level) {
    if (!lines_) return;
    add("\n");
    for (int i = 0; i < level && !run_.failed(); ++i) add(indent_);
  }

  void put_string(std::string_view text) {
    if (run_.read(text.size())) add(json_string(text, ascii_));
  }

  void put(const Value& value, int level) {
    if (!run_.step()) return;
    switch (value.kind()) {
      case Kind::kNone:
        return add("null");
      case Kind::kBool:
        return add(value.as_bool() ? "true" : "false");
      case Kind::kInt:
        return add(std::to_string(value.as_int()));
      case Kind::kFloat:
        return add(json_real(value.as_real()));
      case Kind::kString:
        return put_string(value.as_string());
      case Kind::kDict:
        return put_dict(value.as_dict(), level);
      default:
        break;
    }
    if (!value.is(Kind::kSequence) || !value.as_sequence().subscripts() ||
        value.as_sequence().form == Form::kRange) {
      return run_.fail("a " + std::string(type_name(value)) + " cannot be written as JSON");
    }
    const std::vector<Value>& items = value.as_sequence().items;
    if (items.empty()) return add("[]");
    add("[");
    for (size_t i = 0; i < items.size() && !run_.failed(); ++i) {
      if (i > 0) add(item_);
      line(level + 1);
      put(items[i], level + 1);
    }
    line(level);
    add("]");
  }

  void put_key(const Value& key) {
    if (key.is_string()) return put_string(key.as_string());
    if (key.is(Kind::kSequence) || key.is_undefined() || key.kind() > Kind::kString) {
      return run_.fail("a key of JSON cannot be a " + std::string(type_name(key)));
    }
    add("\"");
    put(key, 0);
    add("\"");
  }

  void put_dict(const Dict& dict, int level) {
    std::vector<std::pair<Value, Value>> entries = dict.entries;
    if (!run_.take(entries.size() * 96)) return;
    if (entries.empty()) return add("{}");
    if (sort_) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto& a, const auto& b) { return less(run_, a.first, b.first); });
    }
    add("{");
    bool first = true;
    for (const auto& [key, value] : entries) {
      if (run_.failed()) return;
      if (!first) add(item_);
      first = false;
      line(level + 1);
      put_key(key);
      add(key_);
      put(value, level + 1);
    }
    line(level);
    add("}");
  }

  Run& run_;
  std::string out_;
  bool ascii_ = false;
  bool sort_ = false;
  bool lines_ = false;
  std::string indent_;
  std::string item_ = ", ";
  std::string key_ = ": ";
};

Value value_at_level(Run& run, const nlohmann::ordered_json& json, int level) {
  using Type = nlohmann::ordered_json::value_t;
  if (level > kValueDepthMax) run.fail("lists and dicts nest too deeply");
  if (!run.step()) return {};
  switch (json.type()) {
    case Type::null:
      return Value::none();
    case Type::boolean:
      return Value::boolean(json.get<bool>());
    case Type::number_float:
      return Value::real(json.get<double>());
    case Type::string:
      return run.string(json.get_ref<const std::string&>());
    case Type::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) run.fail("a number beyond 64 bits is not supported");
      [[fallthrough]];
    case Type::number_integer:
      return run.failed() ? Value() : Value::integer(json.get<int64_t>());
    case Type::array: {
      std::vector<Value> items;
      for (const auto& each : json) {
        if (run.failed()) return {};
        items.push_back(value_at_level(run, each, level + 1));
      }
      return run.list(std::move(items));
    }
    case Type::object: {
      std::vector<std::pair<Value, Value>> entries;
      for (const auto& [key, value] : json.items()) {
        if (run.failed()) return {};
        entries.emplace_back(run.string(key), value_at_level(run, value, level + 1));
      }
      return run.failed() ? Value() : run.dict(std::move(entries));
    }
    default:
      run.fail("a value of that type is not supported");
      return {};
  }
}

}  // namespace

Value value_of(Run& run, const nlohmann::ordered_json& json) {
  return value_at_level(run, json, 0);
}

Value tojson_filter(Run& run, const Value& input, const Arguments& arguments) {
  Writer writer(run, arguments);
  std::string text = writer.write(input);
  return run.failed() ? Value() : Value::string(std::move(text));
}

}  // namespace spillway::jinja
