#include "server/api/chunk_writer.h"

#include <nlohmann/json.hpp>

#include "kernels/base/check.h"

namespace spillway {
namespace {

// Whether the chunk says nothing of its piece but the text.
bool is_plain(const CompletionCall& call, const ChoiceText& piece) {
  return !piece.first && !piece.finished && !piece.text.empty() && piece.scores.empty() &&
         piece.prompt_scores.empty() && call.logprobs < 0 && call.prompt_logprobs < 0 &&
         !call.return_token_ids && !call.continuous_usage && !call.timings;
}

}  // namespace

std::string ChunkWriter::write(const CompletionHead& head, const CompletionCall& call,
                               const ApiContext& context, const ChoiceText& piece) {
  if (!is_plain(call, piece)) return answer_chunk(head, call, context, piece);
  if (choices_.empty()) choices_.resize(call.requests.size());
  Around& around = choices_[static_cast<size_t>(piece.index)];
  if (around.before.empty()) {
    constexpr std::string_view kPlace = "\"@\"";
    ChoiceText empty;
    empty.index = piece.index;
    empty.text = "@";
    const std::string whole = answer_chunk(head, call, context, empty);
    const size_t place = whole.rfind(kPlace);  // Names of models stand before it.
    SPILLWAY_CHECK(place != std::string::npos);
    Around made = {whole.substr(0, place), whole.substr(place + kPlace.size())};
    around = std::move(made);
  }
  const std::string text =
      nlohmann::json(piece.text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string chunk;
  chunk.reserve(around.before.size() + text.size() + around.after.size());
  return chunk.append(around.before).append(text).append(around.after);
}

}  // namespace spillway
