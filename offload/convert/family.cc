#include "offload/convert/family.h"

#include "kernels/base/check.h"

namespace spillway {

namespace {

const TensorNames& names_of(const Family& family, WeightRole role) {
  for (const TensorNames& tensor : family.tensors) {
    if (tensor.role == role) return tensor;
  }
  SPILLWAY_CHECK(false);
}

std::string name_in_layer(std::string_view name, int64_t layer) {
  const size_t star = name.find('*');
  if (star == std::string_view::npos) return std::string(name);
  return std::string(name.substr(0, star)) + std::to_string(layer) +
         std::string(name.substr(star + 1));
}

// The rows of part `index` of `count`: queries, then keys, then values; equal parts for other
// weights.
int64_t part_rows(const ModelShape& shape, const WeightSpec& spec, size_t index, size_t count) {
  const bool vector = spec.kind == WeightKind::kVector;
  const int64_t rows = vector ? spec.elements() : spec.rows;
  const bool qkv = spec.role == WeightRole::kQkvWeight || spec.role == WeightRole::kQkvBias;
  if (qkv && count == 3) return index == 0 ? shape.query_width() : shape.kv_width();
  return rows / static_cast<int64_t>(count);
}

// The rows of all queries, then keys, then values, out of a tensor that has them head by head:
// the query, the key and the value of head 0, of head 1, and so on.
std::vector<WeightPart> parts_by_head(const ModelShape& shape, const WeightPart& whole) {
  std::vector<WeightPart> parts;
  for (int64_t kind = 0; kind < 3; ++kind) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      parts.push_back(
          {whole.tensor, whole.shape, (3 * head + kind) * shape.head_size, shape.head_size});
    }
  }
  return parts;
}

constexpr const Family* kFamilies[] = {&kFamilyOpt,     &kFamilyLlama, &kFamilyMistral,
                                       &kFamilyQwen2,   &kFamilyQwen3, &kFamilySmolLm3,
                                       &kFamilyGranite, &kFamilyPhi3,  &kFamilyGptNeoX};

}  // namespace

std::string tensor_of(const Family& family, WeightRole role) {
  return std::string(names_of(family, role).names[0]);
}

std::vector<WeightPart> parts_of(const Family& family, const ModelShape& shape,
                                 const WeightSpec& spec) {
  const bool tied = spec.role == WeightRole::kHead && shape.tied_head;
  const auto& names = names_of(family, tied ? WeightRole::kTokenEmbedding : spec.role).names;
  size_t count = 0;
  while (count < names.size() && !names[count].empty()) ++count;
  std::vector<WeightPart> parts;
  for (size_t i = 0; i < count; ++i) {
    const int64_t rows = part_rows(shape, spec, i, count);
    std::vector<int64_t> size = {rows};
    if (spec.kind != WeightKind::kVector) size.push_back(spec.columns);
    parts.push_back({name_in_layer(names[i], spec.layer), std::move(size), 0, rows});
  }
  const bool qkv = spec.role == WeightRole::kQkvWeight || spec.role == WeightRole::kQkvBias;
  return qkv && family.qkv_by_head ? parts_by_head(shape, parts.front()) : parts;
}

const Family* family_of(std::string_view model_type) {
  for (const Family* family : kFamilies) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

std::string family_names() {
  std::string names;
  for (const Family* family : kFamilies) {
    names += (names.empty() ? "" : ", ") + std::string(family->model_type);
  }
  return names;
}

}  // namespace spillway
