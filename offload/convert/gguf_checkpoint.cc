#include "offload/convert/gguf_checkpoint.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "offload/convert/gguf_architecture.h"

namespace spillway {

namespace {

constexpr int64_t kHeadsMax = 65536;

// Weights that are stacked in one matrix of the packed file, so that their formats must agree.
std::string group_of(std::string_view name) {
  for (const std::string_view part : {".attn_q.", ".attn_k.", ".attn_v."}) {
    const size_t at = name.find(part);
    if (at != std::string_view::npos) return std::string(name.substr(0, at)) + ".qkv";
  }
  for (const std::string_view part : {".ffn_gate.", ".ffn_up."}) {
    const size_t at = name.find(part);
    if (at != std::string_view::npos) return std::string(name.substr(0, at)) + ".mlp";
  }
  return {};
}

bool is_matrix(const GgufTensor& tensor) {
  return tensor.shape.size() == 2;
}

StoredTensor stored_tensor(const GgufTensor& tensor, std::string name, bool expand) {
  StoredTensor stored;
  stored.name = std::move(name);
  stored.shape = tensor.shape;
  stored.offset = tensor.offset;
  stored.bytes = tensor.bytes;
  if (expand) {
    stored.blocks = tensor.format;
    stored.format = stored_format_of_name("F32");
    stored.bytes = tensor.bytes / tensor.format->bytes * tensor.format->elements * sizeof(float);
  } else {
    stored.format = stored_format_of_name(tensor.format->name);  // F32, F16 and BF16 are both's.
  }
  return stored;
}

// "Q8_0", "Q4_K and Q6_K", "Q4_0, Q5_0 and Q8_0"; the most frequent first.
std::string list_of(const std::map<std::string_view, size_t>& counts) {
  std::vector<std::pair<size_t, std::string_view>> names;
  for (const auto& [name, count] : counts) names.emplace_back(count, name);
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i != 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i].second;
  }
  return text;
}

}  // namespace

Result<GgufTensors> tensors_of(const GgufModel& model) {
  SPILLWAY_ASSIGN_OR_RETURN(const GgufArchitecture* architecture, gguf_architecture_of(model));
  // Groups of which some members are quantised or of another format than the rest.
  std::map<std::string, const GgufBlockFormat*> formats;
  std::map<std::string, bool> mixed;
  for (const GgufModelTensor& tensor : model.tensors()) {
    const std::string group = group_of(tensor.stored.name);
    if (group.empty() || !is_matrix(tensor.stored)) continue;
    const auto [found, fresh] = formats.emplace(group, tensor.stored.format);
    if (!fresh && found->second != tensor.stored.format) mixed[group] = true;
  }
  GgufTensors result;
  std::map<std::string_view, size_t> counts;
  GgufKeyReader reader(model.metadata(), model.name());
  const int64_t heads =
      architecture->neox ? reader.integer("gptneox.attention.head_count", 1, kHeadsMax) : 0;
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  for (const GgufModelTensor& tensor : model.tensors()) {
    const GgufTensor& stored = tensor.stored;
    std::string name = hf_tensor_name(*architecture, stored.name);
    if (name.empty()) continue;
    const bool quantized = !stored.format->plain;
    const bool in_mixed_group = is_matrix(stored) && mixed.contains(group_of(stored.name));
    if (quantized) ++counts[stored.format->name];
    StoredTensor made = stored_tensor(stored, std::move(name), quantized || in_mixed_group);
    // Rows that are no multiple are refused where shapes are compared.
    const bool stacked = heads != 0 && stored.name.find(".attn_qkv.") != std::string::npos;
    if (stacked && stored.shape.front() % (3 * heads) == 0) {
      made.stacked_heads = static_cast<uint32_t>(heads);
    }
    result.tensors.push_back({std::move(made), tensor.file});
  }
  result.block_formats = list_of(counts);
  return result;
}

}  // namespace spillway
