// A template of the subset of Jinja2 that chat templates use, parsed and ready to render.
//
// It renders byte for byte what Jinja2 3.1 renders with the settings of transformers'
// apply_chat_template (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls,
// the tag `generation`, raise_exception(), strftime_now(), a tojson that does not escape for HTML).
// What is not part of the subset is refused by its name and line, when the template is read or, for
// methods of values, when it is rendered. docs/USER_GUIDE.md lists the subset. Not a guest of its
// own: a hostile template ends with an error at one of the limits.
//
// A plain value, const after parse(): any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace spillway {

namespace jinja {
struct Program;
}

constexpr size_t kJinjaTemplateBytesMax = size_t{512} << 10;

// Bounds of one rendering.
struct JinjaLimits {
  uint64_t steps = 4'000'000;        // About one a node that is evaluated, or 16 bytes read
  size_t bytes = size_t{128} << 20;  // Of all values and text made, whether still alive or not
  size_t output_bytes = size_t{16} << 20;  // Of the text rendered
};

class JinjaTemplate {
 public:
  // kInvalidArgument: "line 3: filter 'batch' is not supported", or what is wrong or too large.
  static Result<JinjaTemplate> parse(std::string_view text);

  // `variables`: an object. `now`: local time for strftime_now(); the clock's if it is empty.
  // kInvalidArgument, with the line: an operation that Python would refuse, raise_exception(), a
  // limit, or something that is not supported.
  Result<std::string> render(const nlohmann::ordered_json& variables,
                             const JinjaLimits& limits = {},
                             const std::optional<std::tm>& now = {}) const;

 private:
  explicit JinjaTemplate(std::shared_ptr<const jinja::Program> program)
      : program_(std::move(program)) {}
  std::shared_ptr<const jinja::Program> program_;
};

}  // namespace spillway
