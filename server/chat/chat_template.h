// The chat template of a model: turns the messages of a conversation into the text that the model
// goes on with.
//
// The model's own is chat_template.jinja, else chat_template in tokenizer_config.json (a text, or a
// list whose "default" counts), rendered as transformers' apply_chat_template does. A model without
// one was hardly trained on turns with special tokens, so it gets plain words, which any text model
// can go on with (kPlainChatTemplate): "User: ...", "Assistant: ...", an empty line between them.
//
// A plain value, const after load(): any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "server/chat/jinja_template.h"

namespace spillway {

// For a model without a template of its own. A system message stands in front without a name.
constexpr std::string_view kPlainChatTemplate =
    "{% for message in messages %}"
    "{{ '' if message.role == 'system' else message.role | capitalize ~ ': ' }}"
    "{{ message.content | trim }}{{ '\\n\\n' }}"
    "{% endfor %}{{ 'Assistant:' if add_generation_prompt }}";
// Ends an answer that goes on with the user's next turn; added to a request's stop strings.
constexpr std::string_view kPlainChatStop = "\nUser:";

struct ChatMessage {
  std::string role;
  std::string content;  // Valid UTF-8
};

class ChatTemplate {
 public:
  // From the names and contents of a model's tokenizer files, of which it reads
  // chat_template.jinja, tokenizer_config.json and special_tokens_map.json. A template that is
  // wrong or not supported does not stop the model from completing text: status() says why it
  // cannot be used.
  static ChatTemplate load(std::span<const std::pair<std::string, std::string>> files);

  // Whether the model has one of its own. Its text is encoded without a start-of-text token in
  // front, as transformers does: a template that wants one writes it.
  bool is_own() const { return !file_.empty(); }
  // The file that it is from; empty: the plain one.
  const std::string& file() const { return file_; }
  const Status& status() const { return status_; }
  // The Jinja2 text of the template in use; empty when it could not be read.
  const std::string& source() const { return source_; }

  // The text of a conversation. `add_generation_prompt`: up to where the assistant's answer begins.
  // kInvalidArgument: status(), or what the template refuses, with its line.
  Result<std::string> render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                             const JinjaLimits& limits = {}) const;

 private:
  ChatTemplate() = default;
  Status read(std::span<const std::pair<std::string, std::string>> files);

  std::string file_;
  std::string source_;
  Status status_;
  std::optional<JinjaTemplate> template_;  // Set when status_ is OK
  std::vector<std::pair<std::string, std::string>>
      token_texts_;  // {"bos_token", "<s>"} and the like
};

}  // namespace spillway
