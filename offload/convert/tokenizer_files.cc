#include "offload/convert/tokenizer_files.h"

#include "offload/convert/checkpoint.h"
#include "offload/convert/gguf_model.h"
#include "offload/convert/gguf_tokenizer.h"
#include "offload/io/file.h"

namespace spillway {

namespace {

constexpr const char* kNames[] = {
    "tokenizer.json",          "vocab.json",        "merges.txt",         "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"};
constexpr uint64_t kBytesMax = uint64_t{64} << 20;

}  // namespace

Result<std::vector<std::pair<std::string, std::string>>> read_tokenizer_files(
    const std::string& directory) {
  if (is_gguf_path(directory)) {
    SPILLWAY_ASSIGN_OR_RETURN(const GgufModel model, GgufModel::open(directory));
    return gguf_tokenizer_files(model.metadata(), directory);
  }
  std::vector<std::pair<std::string, std::string>> files;
  for (const char* name : kNames) {
    const std::string path = directory + "/" + name;
    Result<std::string> contents = read_small_file(path, kBytesMax);
    if (contents.status().code() == Code::kNotFound) continue;
    if (!contents.ok()) return contents.status();
    SPILLWAY_RETURN_IF_ERROR(refuse_lfs_pointer(contents.value(), path));
    files.emplace_back(name, std::move(contents).value());
  }
  return files;
}

}  // namespace spillway
