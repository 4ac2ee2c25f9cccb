// Lays out every weight of a shape in a packed file.
#include <algorithm>

#include "kernels/base/checked_math.h"
#include "kernels/input_hadamard.h"
#include "offload/model_file/model_file.h"

namespace spillway {

namespace {

class Planner {
 public:
  Planner(const ModelShape& shape, Format format, MatrixLayout layout,
          std::span<const Format> of_weights) {
    table_.shape = shape;
    table_.format = format;
    for (const WeightSpec& spec : weight_specs(shape)) {
      table_.tensors.push_back({.spec = spec});
      TensorInfo& tensor = table_.tensors.back();
      if (spec.kind == WeightKind::kVector) continue;
      tensor.format = of_weights.empty() ? named_format(spec.role, format)
                                         : of_weights[table_.tensors.size() - 1];
      SPILLWAY_CHECK(tensor.format == format || goes_beside(tensor.format, format));
      if (spec.kind == WeightKind::kTable) continue;
      tensor.layout = layout;
      tensor.hadamard = takes_hadamard(tensor.format);
    }
  }

  ModelFileTable plan() {
    auto& tensors = table_.tensors;
    for (size_t first = 0; first < tensors.size();) {
      size_t last = first;
      while (last < tensors.size() && same_group(tensors[first], tensors[last])) ++last;
      plan_group(std::span(tensors).subspan(first, last - first));
      first = last;
    }
    return std::move(table_);
  }

 private:
  // Groups are runs of equal `layer`: the embeddings, each layer, and the tensors after the layers.
  static bool same_group(const TensorInfo& a, const TensorInfo& b) {
    return a.spec.layer == b.spec.layer;
  }

  void plan_group(std::span<TensorInfo> group) {
    plan_vectors(group);
    for (TensorInfo& tensor : group) {
      if (tensor.spec.kind != WeightKind::kVector) plan_rows(tensor);
    }
  }

  void plan_vectors(std::span<TensorInfo> group) {
    uint64_t bytes = 0;
    for (TensorInfo& tensor : group) {
      if (tensor.spec.kind != WeightKind::kVector) continue;
      tensor.first_slab = static_cast<uint32_t>(table_.slabs.size());
      tensor.slab_count = 1;
      tensor.slab_rows = tensor.spec.rows;
      tensor.offset_in_slab = bytes;
      // Vectors have cache lines of their own: they may be read by instructions that want 64-byte
      // alignment.
      bytes += round_up(static_cast<uint64_t>(tensor.spec.elements()) * sizeof(float), 64);
    }
    if (bytes != 0) add_slab(bytes, group.front().spec.layer);
  }

  void plan_rows(TensorInfo& tensor) {
    const WeightSpec& spec = tensor.spec;
    const size_t panel =
        packed_bytes(tensor.layout, tensor.format, kPanelRowMultiple, spec.columns);
    const auto panels = static_cast<int64_t>(std::max<size_t>(1, kSlabBytesMax / panel));
    tensor.slab_rows =
        std::min(panels * kPanelRowMultiple,
                 static_cast<int64_t>(round_up(static_cast<uint64_t>(spec.rows),
                                               static_cast<uint64_t>(kPanelRowMultiple))));
    tensor.first_slab = static_cast<uint32_t>(table_.slabs.size());
    tensor.slab_count = static_cast<uint32_t>(
        divide_up(static_cast<uint64_t>(spec.rows), static_cast<uint64_t>(tensor.slab_rows)));
    for (uint32_t i = 0; i < tensor.slab_count; ++i) {
      add_slab(packed_bytes(tensor.layout, tensor.format, tensor.rows_in_slab(i), spec.columns),
               spec.layer);
    }
  }

  void add_slab(uint64_t bytes, int64_t layer) {
    SlabInfo slab;
    slab.offset = end_;
    slab.bytes = round_up(bytes, kFileAlignment);
    slab.layer = layer;
    end_ += slab.bytes;
    table_.slabs.push_back(slab);
  }

  ModelFileTable table_;
  uint64_t end_ = 0;
};

}  // namespace

std::string TensorInfo::name() const {
  const std::string role(role_name(spec.role));
  return spec.layer < 0 ? role : "layer " + std::to_string(spec.layer) + " " + role;
}

int64_t TensorInfo::rows_in_slab(uint32_t index) const {
  SPILLWAY_CHECK(index < slab_count);
  return std::min(slab_rows, spec.rows - static_cast<int64_t>(index) * slab_rows);
}

bool ModelFileTable::mixed() const {
  return std::any_of(tensors.begin(), tensors.end(), [&](const TensorInfo& tensor) {
    return tensor.spec.kind != WeightKind::kVector && tensor.format != format;
  });
}

bool ModelFileTable::in_named_format() const {
  return std::all_of(tensors.begin(), tensors.end(), [&](const TensorInfo& tensor) {
    return tensor.spec.kind == WeightKind::kVector ||
           tensor.format == named_format(tensor.spec.role, format);
  });
}

bool ModelFileTable::takes_int8() const {
  return std::any_of(tensors.begin(), tensors.end(), [](const TensorInfo& tensor) {
    return tensor.spec.kind == WeightKind::kMatrix && spillway::takes_int8(tensor.format);
  });
}

std::string ModelFileTable::formats_text() const {
  std::string text(format_name(format));
  for (const Format other : kFormats) {
    const bool has = std::any_of(tensors.begin(), tensors.end(), [&](const TensorInfo& tensor) {
      return tensor.spec.kind != WeightKind::kVector && tensor.format == other;
    });
    if (has && other != format) text += " and " + std::string(format_name(other));
  }
  return text;
}

ModelFileTable plan_model_file(const ModelShape& shape, Format format, MatrixLayout layout,
                               std::span<const Format> of_weights) {
  return Planner(shape, format, layout, of_weights).plan();
}

}  // namespace spillway
