// Chat templates of any content: refused, or rendered to text within the limits. A zero byte
// separates the template from the user's message.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kernels/base/check.h"
#include "server/chat/jinja_template.h"
#include "server/tokenizer/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view text = all.substr(0, all.find('\0'));
  const std::string_view message = text.size() == size ? "hi" : all.substr(text.size() + 1);
  const auto parsed = JinjaTemplate::parse(text);
  if (!parsed.ok()) {
    SPILLWAY_CHECK(is_valid_utf8(parsed.status().message()));
    return 0;
  }
  const nlohmann::ordered_json variables = {{"messages",
                                             {{{"role", "system"}, {"content", "Be brief."}},
                                              {{"role", "user"}, {"content", to_utf8(message)}},
                                              {{"role", "assistant"},
                                               {"content", "a\nb"},
                                               {"n", 1.5},
                                               {"list", {1, "x", nullptr, true}}}}},
                                            {"tools", nullptr},
                                            {"add_generation_prompt", true},
                                            {"bos_token", "<s>"},
                                            {"eos_token", "</s>"}};
  JinjaLimits limits;
  limits.steps = 100'000;
  limits.bytes = size_t{8} << 20;
  limits.output_bytes = size_t{1} << 20;
  const auto rendered = parsed.value().render(variables, limits, std::tm{});
  if (!rendered.ok()) {
    SPILLWAY_CHECK(is_valid_utf8(rendered.status().message()));
    return 0;
  }
  SPILLWAY_CHECK(rendered.value().size() <= limits.output_bytes && is_valid_utf8(rendered.value()));
  SPILLWAY_CHECK(parsed.value().render(variables, limits, std::tm{}).value() == rendered.value());
  return 0;
}
