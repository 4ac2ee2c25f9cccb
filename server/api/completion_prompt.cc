#include "server/api/completion_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/api/text.h"

namespace spillway {
namespace {

using Prompts = std::vector<std::vector<int32_t>>;

struct PromptOptions {
  bool add_special_tokens = true, parse_special = true;
  std::optional<int64_t> keep_tokens;  // truncate_prompt_tokens
  bool keep_left = false;              // truncation_side "right": the first tokens stay
};

PromptOptions read_options(FieldReader& fields, const ApiContext& context, int64_t max_tokens) {
  PromptOptions options;
  options.add_special_tokens = fields.flag("add_special_tokens", true);
  options.parse_special = fields.flag("parse_special", true);
  options.keep_tokens = fields.integer("truncate_prompt_tokens", -1, context.shape->positions);
  if (options.keep_tokens == 0) {
    fields.fail(invalid_value("truncate_prompt_tokens", "must be -1 or at least 1"));
  }
  if (options.keep_tokens == -1) {
    options.keep_tokens = std::max<int64_t>(1, context.shape->positions - max_tokens);
  }
  const auto side = fields.string("truncation_side");
  if (side && *side != "left" && *side != "right") {
    fields.fail(invalid_value("truncation_side", "must be left or right"));
  }
  options.keep_left = side == "right";
  return options;
}

ApiResult<std::vector<int32_t>> encode_text(const std::string& text, const ApiContext& context,
                                            const PromptOptions& options,
                                            const std::string& param) {
  if (context.tokenizer == nullptr) {
    return invalid_value(param, "must be token ids: " + why_no_tokenizer(context));
  }
  if (static_cast<int64_t>(text.size()) > prompt_bytes_max(context)) {
    return prompt_too_long(param, "has " + std::to_string(text.size()) + " bytes", context);
  }
  auto encoded =
      encode_prompt(*context.tokenizer, text, options.add_special_tokens, options.parse_special);
  if (!encoded.ok()) {
    return invalid_value(param, "cannot be read: " + std::string(encoded.status().message()));
  }
  std::vector<int32_t> ids = std::move(encoded).value();
  if (ids.empty()) return invalid_value(param, "must not be empty");
  // A tokenizer with more entries than the model has rows must not reach the engine.
  for (const int32_t id : ids) {
    if (id < 0 || id >= context.shape->vocabulary) {
      return invalid_value(param, "has a token that this model has no embedding for");
    }
  }
  return ids;
}

void truncate(std::vector<int32_t>& ids, const PromptOptions& options, const ApiContext& context) {
  if (!options.keep_tokens) return;
  const auto keep = static_cast<size_t>(*options.keep_tokens);
  if (ids.size() <= keep) return;
  if (options.keep_left) {
    ids.resize(keep);
    return;
  }
  // The start-of-text token stays in front: the model has never seen a text without it.
  const bool has_bos = ids.front() == context.shape->bos_token;
  ids.erase(ids.begin() + (has_bos ? 1 : 0),
            ids.end() - static_cast<std::ptrdiff_t>(has_bos ? keep - 1 : keep));
}

ApiResult<std::vector<int32_t>> read_one(const nlohmann::json& value, const ApiContext& context,
                                         const PromptOptions& options, const std::string& param) {
  if (value.is_string()) {
    return encode_text(value.get_ref<const std::string&>(), context, options, param);
  }
  return read_token_ids(value, context.shape->vocabulary, param);
}

ApiResult<Prompts> read_list(const nlohmann::json& list, const ApiContext& context,
                             const PromptOptions& options) {
  if (list.empty()) return invalid_value("prompt", "must not be empty");
  if (static_cast<int64_t>(list.size()) > context.limits.sequences_max) {
    ApiError error =
        invalid_value("prompt", "must not list more than " +
                                    std::to_string(context.limits.sequences_max) + " prompts");
    error.numbers = {{"max_allowed", context.limits.sequences_max}};
    return error;
  }
  const auto type = list.front().type();
  Prompts prompts;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string param = "prompt[" + std::to_string(i) + "]";
    if (list[i].type() != type) {
      return invalid_type("prompt", "a list of strings or a list of token lists, not a mixture");
    }
    auto ids = read_one(list[i], context, options, param);
    if (auto* error = std::get_if<ApiError>(&ids)) return std::move(*error);
    prompts.push_back(std::get<std::vector<int32_t>>(std::move(ids)));
  }
  return prompts;
}

ApiResult<Prompts> read_shapes(const nlohmann::json& prompt, const ApiContext& context,
                               const PromptOptions& options) {
  constexpr const char* kShapes =
      "a string, a list of strings, a list of token ids or a list of "
      "token-id lists";
  const bool is_list = prompt.is_array();
  if (!is_list && !prompt.is_string()) return invalid_type("prompt", kShapes);
  if (is_list && !prompt.empty() && (prompt.front().is_string() || prompt.front().is_array())) {
    return read_list(prompt, context, options);
  }
  if (is_list && !prompt.empty() && !prompt.front().is_number()) {
    return invalid_type("prompt", kShapes);
  }
  auto ids = read_one(prompt, context, options, "prompt");
  if (auto* error = std::get_if<ApiError>(&ids)) return std::move(*error);
  Prompts prompts;
  prompts.push_back(std::get<std::vector<int32_t>>(std::move(ids)));
  return prompts;
}

}  // namespace

std::string why_no_tokenizer(const ApiContext& context) {
  if (context.tokenizer_error.empty()) return "this model has no tokenizer files";
  return "this model's tokenizer cannot be used: " + context.tokenizer_error;
}

int64_t prompt_bytes_max(const ApiContext& context) {
  return 8 * context.shape->positions + (int64_t{64} << 10);
}

ApiError prompt_too_long(const std::string& param, const std::string& length,
                         const ApiContext& context) {
  ApiError error = invalid_value(
      param, length + ", which cannot fit this model's maximum context length of " +
                 std::to_string(context.shape->positions) + " tokens; the most that is read is " +
                 std::to_string(prompt_bytes_max(context)) + " bytes");
  error.code = "context_length_exceeded";
  error.numbers = {{"n_ctx", context.shape->positions}};
  return error;
}

ApiResult<std::vector<int32_t>> read_token_ids(const nlohmann::json& array, int64_t vocabulary,
                                               const std::string& param) {
  if (!array.is_array()) return invalid_type(param, "a list of token ids");
  if (array.empty()) return invalid_value(param, "must not be empty");
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    const auto where = [&] { return param + "[" + std::to_string(i) + "]"; };
    if (!array[i].is_number()) return invalid_type(where(), "a token id");
    const std::optional<int64_t> id = whole_number(array[i]);
    if (!id || *id < 0 || *id >= vocabulary) {
      return invalid_value(where(),
                           "must be a token id from 0 to " + std::to_string(vocabulary - 1));
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

Prompts read_prompts(FieldReader& fields, const ApiContext& context, int64_t max_tokens) {
  const PromptOptions options = read_options(fields, context, max_tokens);
  const nlohmann::json* prompt = fields.find("prompt");
  if (fields.failed()) return {};
  if (prompt == nullptr) {
    fields.fail(missing_parameter("prompt"));
    return {};
  }
  auto prompts = read_shapes(*prompt, context, options);
  if (auto* error = std::get_if<ApiError>(&prompts)) {
    fields.fail(std::move(*error));
    return {};
  }
  for (auto& ids : std::get<Prompts>(prompts)) truncate(ids, options, context);
  return std::get<Prompts>(std::move(prompts));
}

}  // namespace spillway
