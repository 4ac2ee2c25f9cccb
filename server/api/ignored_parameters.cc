#include "server/api/ignored_parameters.h"

#include "kernels/base/quote.h"

namespace spillway {
namespace {

constexpr size_t kIgnoredListed = 32;

}  // namespace

IgnoredParameters read_ignored(FieldReader& fields, bool strict) {
  IgnoredParameters ignored;
  if (strict) {
    fields.refuse_unknown();
    return ignored;
  }
  // Our own names are never another server's: "kv_rules" is a misspelling, and ignoring it would
  // give another cache than asked for.
  for (const std::string_view name : fields.unknown_names()) {
    const bool safe = is_safe_name(name);
    const bool is_null = fields.find(std::string(name).c_str()) == nullptr;
    if (!is_null && (name.starts_with("kv_") || name.starts_with("kv-"))) {
      fields.fail(unknown_parameter(safe ? name : ""));
      break;
    }
    if (safe && ignored.names.size() < kIgnoredListed) {
      ignored.names.emplace_back(name);
    } else {
      ++ignored.more;
    }
  }
  return ignored;
}

HttpFields ignored_fields(const IgnoredParameters& ignored) {
  std::string text;
  for (const std::string& name : ignored.names) text += (text.empty() ? "" : ", ") + name;
  if (ignored.more > 0) {
    text += (text.empty() ? "+" : ", +") + std::to_string(ignored.more);
  }
  if (text.empty()) return {};
  return {{"x-ignored-parameters", text}};
}

}  // namespace spillway
