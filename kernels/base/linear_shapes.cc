#include "kernels/base/linear_shapes.h"

namespace spillway {

namespace {

void add_matrices(const std::vector<WeightSpec>& specs, LinearShape common,
                  std::vector<LinearShape>* shapes) {
  for (const WeightSpec& spec : specs) {
    if (spec.kind != WeightKind::kMatrix) continue;
    common.role = spec.role;
    common.outputs = spec.rows;
    common.inputs = spec.columns;
    shapes->push_back(common);
  }
}

}  // namespace

std::vector<LinearShape> linear_shapes(const ModelShape& shape) {
  std::vector<LinearShape> shapes;
  add_matrices(layer_specs(shape), {.count = shape.layers, .in_layer = true}, &shapes);
  add_matrices(embedding_specs(shape), {.count = 1}, &shapes);
  add_matrices(head_specs(shape), {.count = 1, .head = true}, &shapes);
  for (LinearShape& linear : shapes) {
    // The keys and values of the last layer are cached; its queries are not.
    if (linear.role == WeightRole::kQkvWeight) linear.last_outputs = 2 * shape.kv_width();
    if (linear.role == WeightRole::kProjectIn) linear.last_outputs = linear.outputs;
  }
  return shapes;
}

}  // namespace spillway
