#include "offload/convert/weight_map.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "kernels/base/quote.h"
#include "offload/convert/gguf_blocks.h"

namespace spillway {

namespace {

constexpr size_t kProblemsShown = 6;

class Mapper {
 public:
  Mapper(const Family& family, const ModelShape& shape, const Checkpoint& checkpoint)
      : family_(family), shape_(shape), checkpoint_(checkpoint) {}

  Result<WeightMap> map() {
    name_tensors();
    for (const WeightSpec& spec : weight_specs(shape_)) map_weight(spec);
    map_head_copy();
    report_extras();
    if (!problems_.empty()) return summary();
    return std::move(map_);
  }

 private:
  void name_tensors() {
    const auto& tensors = checkpoint_.tensors();
    used_.resize(tensors.size());
    for (uint32_t i = 0; i < tensors.size(); ++i) {
      const std::string& name = tensors[i].stored.name;
      const auto [found, fresh] = by_name_.emplace(family_.canonical_name(name), i);
      if (fresh) continue;
      problem("tensors " + in_quotes(tensors[found->second].stored.name) + " and " +
              in_quotes(name) + " are the same weight");
      used_[i] = true;
    }
  }

  void map_weight(const WeightSpec& spec) {
    MappedWeight weight;
    weight.row_elements = spec.kind == WeightKind::kVector ? 1 : spec.columns;
    for (const WeightPart& part : parts_of(family_, shape_, spec)) {
      const auto found = by_name_.find(part.tensor);
      if (found == by_name_.end()) {
        problem("missing tensor " + in_quotes(part.tensor));
        continue;
      }
      used_[found->second] = true;
      const StoredTensor& stored = checkpoint_.tensors()[found->second].stored;
      if (!check_part(stored, part.shape)) continue;
      if (!weight.parts.empty() && weight.format != *stored.format->dtype) {
        problem("tensor " + in_quotes(stored.name) + " is " + std::string(stored.format->name) +
                ", its neighbours in " + std::string(role_name(spec.role)) + " are not");
      }
      weight.format = *stored.format->dtype;
      add_blocks(stored, weight);
      weight.parts.push_back({found->second, part.first_row, part.rows});
    }
    map_.weights.push_back(std::move(weight));
  }

  // The format that keeps the codes of one part more.
  static void add_blocks(const StoredTensor& stored, MappedWeight& weight) {
    const bool first = weight.parts.empty();
    if (stored.blocks == nullptr || stored.blocks->plain) {
      if (weight.of_blocks) weight.of_blocks = Format::kQ8_1;
      return;
    }
    const Format format = format_of_blocks(*stored.blocks);
    weight.of_blocks = first || weight.of_blocks == format ? format : Format::kQ8_1;
  }

  bool check_part(const StoredTensor& stored, const std::vector<int64_t>& shape) {
    if (stored.shape != shape) {
      problem("tensor " + in_quotes(stored.name) + " is " + shape_text(stored.shape) +
              ", config.json says " + shape_text(shape));
      return false;
    }
    if (!stored.format->dtype) {
      problem("tensor " + in_quotes(stored.name) + " is " + std::string(stored.format->name) +
              "; weights must be F32, BF16 or F16");
      return false;
    }
    return true;
  }

  // With tied weights the head's own tensor may exist as a copy of the embedding.
  void map_head_copy() {
    const auto head = by_name_.find(tensor_of(family_, WeightRole::kHead));
    if (!shape_.tied_head || head == by_name_.end()) return;
    used_[head->second] = true;
    const auto embedding = by_name_.find(tensor_of(family_, WeightRole::kTokenEmbedding));
    if (embedding == by_name_.end()) return;  // Reported as missing.
    const StoredTensor& a = checkpoint_.tensors()[head->second].stored;
    const StoredTensor& b = checkpoint_.tensors()[embedding->second].stored;
    if (a.shape != b.shape || a.format != b.format) {
      problem("tied weights differ: " + in_quotes(a.name) + " is " + std::string(a.format->name) +
              " " + shape_text(a.shape) + ", " + in_quotes(b.name) + " is " +
              std::string(b.format->name) + " " + shape_text(b.shape));
      return;
    }
    map_.head_copy = {head->second, embedding->second};
  }

  void report_extras() {
    for (const auto& [name, index] : by_name_) {
      if (used_[index] || family_.is_leftover(name)) continue;
      problem("unexpected tensor " + in_quotes(checkpoint_.tensors()[index].stored.name));
    }
  }

  void problem(std::string text) {
    ++problem_count_;
    if (problems_.size() < kProblemsShown) problems_.push_back(std::move(text));
  }

  Status summary() const {
    std::string text = "the tensors are not those of config.json: ";
    for (size_t i = 0; i < problems_.size(); ++i) text += (i == 0 ? "" : "; ") + problems_[i];
    const size_t hidden = problem_count_ - problems_.size();
    if (hidden != 0) text += "; and " + std::to_string(hidden) + " more";
    return invalid_argument(std::move(text));
  }

  const Family& family_;
  const ModelShape& shape_;
  const Checkpoint& checkpoint_;
  std::unordered_map<std::string, uint32_t> by_name_;  // By canonical name.
  std::vector<bool> used_;
  std::vector<std::string> problems_;
  size_t problem_count_ = 0;
  WeightMap map_;
};

}  // namespace

Result<WeightMap> map_weights(const Family& family, const ModelShape& shape,
                              const Checkpoint& checkpoint) {
  return Mapper(family, shape, checkpoint).map();
}

MappedWeight take_rows(const MappedWeight& weight, std::span<const RowSpan> rows) {
  MappedWeight taken = weight;
  taken.parts.clear();
  for (const RowSpan& span : rows) {
    int64_t skip = span.first, left = span.count;
    for (const MappedPart& part : weight.parts) {
      if (skip >= part.rows) {
        skip -= part.rows;
        continue;
      }
      const int64_t some = std::min(left, part.rows - skip);
      if (some > 0) taken.parts.push_back({part.tensor, part.first_row + skip, some});
      left -= some;
      skip = 0;
    }
    SPILLWAY_CHECK(left == 0);
  }
  return taken;
}

NaturalFormats natural_formats(const ModelShape& shape, const WeightMap& map) {
  const std::vector<WeightSpec> specs = weight_specs(shape);
  const auto blocks = [&](size_t i) {
    return specs[i].kind != WeightKind::kVector && map.weights[i].of_blocks;
  };
  bool any = false;
  for (size_t i = 0; i < specs.size(); ++i) any |= blocks(i);
  NaturalFormats found;
  if (any) {
    int64_t few_bits = 0, all = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      found.of_weights.push_back(map.weights[i].of_blocks.value_or(Format::kQ8_1));
      if (specs[i].kind == WeightKind::kVector) continue;
      all += specs[i].elements();
      if (found.of_weights.back() == Format::kQ4_1) few_bits += specs[i].elements();
    }
    found.main = 2 * few_bits >= all ? Format::kQ4_1 : Format::kQ8_1;
    return found;
  }
  std::optional<DType> format;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].kind == WeightKind::kVector) continue;
    if (format && *format != map.weights[i].format) return found;
    format = map.weights[i].format;
  }
  found.main = plain_format(format.value_or(DType::kF32));
  return found;
}

}  // namespace spillway
