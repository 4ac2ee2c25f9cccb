#include "server/chat/jinja_template.h"

#include <unicode/utf8.h>
#include <nlohmann/json.hpp>

#include "server/chat/jinja_lexer.h"
#include "server/chat/jinja_parser.h"
#include "server/chat/jinja_render.h"
#include "server/chat/jinja_run.h"

namespace spillway {
namespace {

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    UChar32 character = 0;
    U8_NEXT(text.data(), at, text.size(), character);
    if (character < 0) return false;
  }
  return true;
}

}  // namespace

Result<JinjaTemplate> JinjaTemplate::parse(std::string_view text) {
  if (text.size() > kJinjaTemplateBytesMax) {
    return invalid_argument("the template has " + std::to_string(text.size()) +
                            " bytes, the limit is " + std::to_string(kJinjaTemplateBytesMax));
  }
  if (!is_utf8(text)) return invalid_argument("the template is not UTF-8");
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<jinja::Token> tokens, jinja::tokenize(text));
  SPILLWAY_ASSIGN_OR_RETURN(std::shared_ptr<const jinja::Program> program,
                            jinja::Parser(std::move(tokens)).run());
  return JinjaTemplate(std::move(program));
}

Result<std::string> JinjaTemplate::render(const nlohmann::ordered_json& variables,
                                          const JinjaLimits& limits,
                                          const std::optional<std::tm>& now) const {
  jinja::Run run(limits);
  std::string text = jinja::render(run, *program_, variables, limits.output_bytes, now);
  if (run.failed()) return run.status();
  return text;
}

}  // namespace spillway
