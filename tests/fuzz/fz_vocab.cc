// Tokenizer files of any content: refused, or complete and consistent. The first byte chooses
// between tokenizer.json and vocab.json with merges.txt (and tokenizer_config.json), which zero
// bytes separate.
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "server/tokenizer/detokenizer.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/tokenizer_files.h"
#include "server/tokenizer/utf8.h"

namespace spillway {
namespace {

std::string next_part(std::string_view* rest) {
  const size_t end = std::min(rest->find('\0'), rest->size());
  std::string part(rest->substr(0, end));
  rest->remove_prefix(std::min(end + 1, rest->size()));
  return part;
}

void check_description(const TokenizerDescription& description) {
  const auto size = static_cast<int32_t>(description.pieces.size());
  SPILLWAY_CHECK(size > 0 && description.pieces.size() <= kVocabularyMax);
  std::set<std::string_view> distinct;
  for (const std::string& piece : description.pieces) {
    SPILLWAY_CHECK(!piece.empty() && is_valid_utf8(piece) && distinct.insert(piece).second);
  }
  for (const Merge& merge : description.merges) {
    for (int32_t id : {merge.left, merge.right, merge.merged}) {
      SPILLWAY_CHECK(id >= 0 && id < size);
    }
    SPILLWAY_CHECK(description.pieces[static_cast<size_t>(merge.left)] +
                       description.pieces[static_cast<size_t>(merge.right)] ==
                   description.pieces[static_cast<size_t>(merge.merged)]);
  }
  for (int32_t id : {description.bos, description.eos, description.pad}) {
    SPILLWAY_CHECK(id >= -1 && id < size);
  }
}

}  // namespace
}  // namespace spillway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  if (size == 0) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<NamedFile> files;
  if (data[0] % 2 == 0) {
    files.emplace_back("tokenizer.json", next_part(&rest));
  } else {
    files.emplace_back("vocab.json", next_part(&rest));
    files.emplace_back("merges.txt", next_part(&rest));
  }
  if (!rest.empty()) files.emplace_back("tokenizer_config.json", next_part(&rest));
  const auto description = read_tokenizer_files(files);
  if (!description.ok()) {
    SPILLWAY_CHECK(is_valid_utf8(description.status().message()));
    return 0;
  }
  check_description(description.value());
  const auto tokenizer = Tokenizer::load(files, {});
  if (!tokenizer.ok()) return 0;  // Not all 256 bytes.
  const std::string text = "Hello </s> \xC3\xA9\n" + std::string(rest);
  const auto ids = tokenizer.value().encode(text, {.add_bos = true, .parse_special = true});
  if (!ids.ok()) {
    SPILLWAY_CHECK(ids.status().code() == Code::kCapacity);
    return 0;
  }
  for (int32_t id : ids.value()) {
    SPILLWAY_CHECK(id >= 0 && static_cast<size_t>(id) < tokenizer.value().vocabulary());
  }
  Detokenizer stream(&tokenizer.value(), false);
  std::string streamed;
  for (int32_t id : ids.value()) streamed += stream.push(id);
  streamed += stream.finish();
  SPILLWAY_CHECK(is_valid_utf8(streamed));
  SPILLWAY_CHECK(streamed == tokenizer.value().decode(ids.value(), false));
  return 0;
}
