#include "server/tokenizer/detokenizer.h"

#include <string_view>
#include <utility>

#include "server/tokenizer/utf8.h"

namespace spillway {

std::string Detokenizer::push(int32_t id) {
  tokenizer_->append_bytes(id, skip_special_, &start_, &pending_);
  const size_t complete = complete_prefix_bytes(pending_);
  std::string text = to_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string Detokenizer::finish() {
  start_ = tokenizer_->start_of_text(position_);
  return to_utf8(std::exchange(pending_, {}));
}

}  // namespace spillway
