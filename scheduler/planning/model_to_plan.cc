#include "scheduler/planning/model_to_plan.h"

#include <filesystem>
#include <utility>

#include "kernels/base/rank_shape.h"
#include "kernels/ops.h"
#include "offload/checkpoint_slabs.h"
#include "offload/config_files.h"
#include "offload/rank_slabs.h"

namespace spillway {

namespace {

// The name that clients use for the model: the last part of its path, without ".spill".
std::string name_of(const std::string& model, const ModelShape& shape) {
  std::filesystem::path path(model);
  if (!path.has_filename()) path = path.parent_path();
  const std::string name =
      path.extension() == ".spill" ? path.stem().string() : path.filename().string();
  return name.empty() || name == "." || name == ".." ? shape.name : name;
}

Result<ModelToPlan> dummy_model(const std::string& model, const EngineFlags& flags,
                                const DeviceTraits& device) {
  SPILLWAY_ASSIGN_OR_RETURN(const ModelShape whole, find_model_shape(model));
  SPILLWAY_ASSIGN_OR_RETURN(const ModelShape shape, rank_shape(whole, flags.rank, flags.ranks));
  const Format format = flags.format.value_or(device.native_bf16 ? Format::kBF16 : Format::kF16);
  ModelToPlan found;
  found.name = shape.name;
  found.source = "dummy " + shape.name + " " + std::to_string(flags.seed);
  found.table = std::make_shared<const ModelFileTable>(
      plan_model_file(shape, format, device.matrix_layout(format)));
  return found;
}

Result<ModelToPlan> packed_model(const std::string& model, const EngineFlags& flags,
                                 const DeviceTraits& device, const ModelToPlanOptions& options) {
  ModelSourceOptions source;
  source.format = flags.format;
  // A CPU computes with f16 weights in float32 only; other devices use them directly.
  source.bf16_for_f16 = !device.discrete() && device.native_bf16;
  source.layout = [&](Format format) { return device.matrix_layout(format); };
  source.accepts = [&](const ModelShape& shape) { return check_shape(device.kind, shape); };
  source.accepts_source = options.accepts_source;
  source.announce = options.say;
  source.progress = options.progress;
  source.damaged = options.damaged;
  SPILLWAY_ASSIGN_OR_RETURN(const ModelSource resolved, resolve_model(model, source));
  for (const std::string& warning : resolved.warnings) {
    if (options.say) options.say("warning: " + warning);
  }
  SPILLWAY_ASSIGN_OR_RETURN(ModelFile file, ModelFile::open(resolved.path));
  ModelToPlan found;
  found.file = std::make_shared<const ModelFile>(std::move(file));
  // The file owns its table.
  found.table = std::shared_ptr<const ModelFileTable>(found.file, &found.file->table());
  found.cached = resolved.cached;
  found.use = resolved.use;
  if (flags.format && *flags.format != found.table->format) {
    return invalid_argument(model + " holds " + std::string(format_name(found.table->format)) +
                            " weights and --format asks for " +
                            std::string(format_name(*flags.format)) +
                            "; convert the checkpoint again with that --format");
  }
  found.name = name_of(model, found.shape());
  found.source = found.table->source;
  if (flags.ranks > 1) {
    const MatrixLayout layout = device.matrix_layout(found.table->format);
    SPILLWAY_ASSIGN_OR_RETURN(
        found.slabs, RankSlabs::open(found.file, found.shape(), flags.rank, flags.ranks, layout));
    found.table = std::shared_ptr<const ModelFileTable>(found.slabs, &found.slabs->table());
  }
  return found;
}

Result<ModelToPlan> checkpoint_model(const std::string& model, const EngineFlags& flags,
                                     const DeviceTraits& device,
                                     const ModelToPlanOptions& options) {
  CheckpointSlabsOptions source;
  source.format = flags.format;
  source.bf16_for_f16 = !device.discrete() && device.native_bf16;
  source.layout = [&](Format format) { return device.matrix_layout(format); };
  source.accepts = [&](const ModelShape& shape) { return check_shape(device.kind, shape); };
  source.accepts_source = options.accepts_source;
  source.rank = flags.rank;
  source.ranks = flags.ranks;
  ModelToPlan found;
  SPILLWAY_ASSIGN_OR_RETURN(found.slabs, CheckpointSlabs::open(model, source));
  found.table = std::shared_ptr<const ModelFileTable>(found.slabs, &found.slabs->table());
  found.name = name_of(model, found.shape());
  found.source = found.table->source;
  return found;
}

Result<ModelToPlan> model_of(const std::string& model, const EngineFlags& flags,
                             const DeviceTraits& device, const ModelToPlanOptions& options) {
  if (flags.dummy_weights) return dummy_model(model, flags, device);
  if (flags.weights_from == "checkpoint") return checkpoint_model(model, flags, device, options);
  return packed_model(model, flags, device, options);
}

}  // namespace

Result<ModelToPlan> open_model_to_plan(const std::string& model, const EngineFlags& flags,
                                       const DeviceTraits& device,
                                       const ModelToPlanOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(ModelToPlan found, model_of(model, flags, device, options));
  if (flags.max_model_len) {
    auto shorter = std::make_shared<ModelFileTable>(*found.table);
    limit_positions(*flags.max_model_len, shorter->shape);
    found.table = std::move(shorter);
  }
  if (flags.quantized_compute == "int8" && !found.table->takes_int8() && options.say) {
    options.say("warning: --quantized-compute int8 is for weights in q8, q4 or q4_1; these are " +
                found.table->formats_text());
  }
  return found;
}

}  // namespace spillway
