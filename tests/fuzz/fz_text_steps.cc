// Any text through any steps around a model: pieces in order, of whole characters, and with steps
// that only cut, the text itself. Input: a count of bytes, so many bytes of JSON {"normalizer":
// ..., "pre_tokenizer": ...}, then the text.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/strict_json.h"
#include "server/tokenizer/normalizer.h"
#include "server/tokenizer/pretokenizer.h"
#include "server/tokenizer/tokenizer_steps_json.h"
#include "server/tokenizer/utf8.h"

namespace spillway {
namespace {

bool only_cuts(const std::vector<PreTokenizerStep>& steps) {
  for (const PreTokenizerStep& step : steps) {
    const bool cuts =
        step.kind == PreTokenizerStep::Kind::kDigits ||
        (step.kind == PreTokenizerStep::Kind::kSplit && step.behavior != SplitBehavior::kRemoved);
    if (!cuts) return false;
  }
  return true;
}

void check_steps(const nlohmann::json& file, std::string text) {
  const auto normalizer_steps = read_normalizer(file.value("normalizer", nlohmann::json()));
  const auto steps = read_pre_tokenizer(file.value("pre_tokenizer", nlohmann::json()));
  if (!normalizer_steps.ok() || !steps.ok()) return;
  const auto normalizer = Normalizer::create(normalizer_steps.value());
  const auto pre_tokenizer = PreTokenizer::create(steps.value());
  if (!normalizer.ok() || !pre_tokenizer.ok()) return;
  auto normal = normalizer.value().normalize(std::move(text));
  if (!normal.ok()) return;
  SPILLWAY_CHECK(is_valid_utf8(normal.value()));
  PieceList pieces(normal.value(), true);
  const Status status = pre_tokenizer.value().cut(&pieces);
  if (!status.ok()) {
    SPILLWAY_CHECK(status.code() == Code::kCapacity && is_valid_utf8(status.message()));
    return;
  }
  std::string all;
  size_t done = 0;
  for (const auto& span : pieces.spans) {
    SPILLWAY_CHECK(span.begin >= done && span.begin < span.end && span.end <= pieces.text.size());
    SPILLWAY_CHECK(is_valid_utf8(pieces.piece(span)));
    all += pieces.piece(span);
    done = span.end;
  }
  SPILLWAY_CHECK(!only_cuts(steps.value()) || all == normal.value());
}

}  // namespace
}  // namespace spillway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  if (size < 2 || size > 4096) return 0;
  const size_t bytes = std::min<size_t>(data[0] + 256u * data[1], size - 2);
  const std::string_view input(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto json = parse_strict_json(input.substr(0, bytes));
  const auto* file = std::get_if<nlohmann::json>(&json);
  if (file == nullptr || !file->is_object()) return 0;
  check_steps(*file, to_utf8(input.substr(bytes)));
  return 0;
}
