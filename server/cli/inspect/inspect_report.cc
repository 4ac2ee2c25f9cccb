#include "server/cli/inspect/inspect_report.h"

#include <algorithm>
#include <filesystem>

#include "kernels/base/quote.h"
#include "kernels/base/weights.h"
#include "offload/config_files.h"
#include "offload/convert/checkpoint.h"
#include "offload/convert/converter.h"
#include "offload/convert/family.h"
#include "offload/convert/gguf_model.h"
#include "offload/convert/hf_config.h"
#include "offload/convert/scan.h"
#include "offload/convert/tokenizer_files.h"
#include "offload/convert/weight_map.h"
#include "offload/model_file/model_file.h"
#include "offload/model_source.h"
#include "server/chat/chat_template.h"

namespace spillway {

namespace {

std::string chat_of(const ModelFileTable& table) {
  if (table.files.empty()) return "none: a chat needs a tokenizer";
  const ChatTemplate chat = ChatTemplate::load(table.files);
  if (!chat.status().ok()) return "cannot be used: " + std::string(chat.status().message());
  if (chat.is_own()) return "in " + chat.file();
  return "none of its own; a chat is plain text: \"User: ...\", \"Assistant: ...\"";
}

void add_table(const ModelFileTable& table, InspectReport& report) {
  report.shape = table.shape;
  report.format = table.format;
  report.formats = table.formats_text();
  report.source = table.source;
  report.parameters = parameter_count(table.shape);
  report.tensors = static_cast<int64_t>(table.tensors.size());
  const uint32_t first_layer_slab = [&] {
    for (uint32_t i = 0; i < table.slabs.size(); ++i) {
      if (table.slabs[i].layer == 0) return i;
    }
    return uint32_t{0};
  }();
  for (uint32_t i = 0; i < table.slabs.size(); ++i) {
    const SlabInfo& slab = table.slabs[i];
    report.total_bytes += slab.bytes;
    if (slab.layer == 0) report.layer_bytes += slab.bytes;
    if (slab.layer < 0) {
      (i < first_layer_slab ? report.embedding_bytes : report.head_bytes) += slab.bytes;
    }
  }
  for (const auto& [name, contents] : table.files) {
    report.tokenizer_files.emplace_back(name, contents.size());
  }
  report.chat_template = chat_of(table);
}

void add_quantization(const ModelFileTable& table, InspectReport& report) {
  report.quantization = table.quantization();
  report.hadamard = std::any_of(table.tensors.begin(), table.tensors.end(),
                                [](const TensorInfo& tensor) { return tensor.hadamard; });
  for (const TensorInfo& tensor : table.tensors) {
    if (tensor.quantization.relative_rms() <= report.quantization_worst_rms) continue;
    report.quantization_worst = tensor.name();
    report.quantization_worst_rms = tensor.quantization.relative_rms();
  }
}

Result<InspectReport> inspect_packed(const std::string& path, const InspectOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(const ModelFile file, open_packed(path));
  InspectReport report;
  report.kind = "packed";
  add_table(file.table(), report);
  for (const size_t i : file.table().non_finite()) {
    const TensorInfo& tensor = file.table().tensors[i];
    report.damage.push_back({tensor.name(), {tensor.nan_count, tensor.inf_count}, 0});
  }
  add_quantization(file.table(), report);
  if (options.verify) {
    ScanOptions scan;
    scan.progress = options.progress;
    SPILLWAY_RETURN_IF_ERROR(scan_model_file(file, scan));
    report.weights_read = report.verified = true;
  }
  return report;
}

// `directory` may be a GGUF file, too.
Result<InspectReport> inspect_directory(const std::string& directory,
                                        const InspectOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(const HfConfig config, read_hf_config(directory));
  SPILLWAY_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                            Checkpoint::open(directory, {options.lenient_header}));
  const Family* family = family_of(config.shape.family);
  SPILLWAY_CHECK(family != nullptr);
  Result<WeightMap> map = map_weights(*family, config.shape, checkpoint);
  if (!map.ok()) return map.status().at(directory);
  const NaturalFormats formats = natural_formats(config.shape, map.value());
  ModelFileTable table =
      plan_model_file(config.shape, formats.main, MatrixLayout::kPanels16, formats.of_weights);
  SPILLWAY_ASSIGN_OR_RETURN(table.files, read_tokenizer_files(directory));
  InspectReport report;
  report.kind = "checkpoint";
  add_table(table, report);
  report.tensors = static_cast<int64_t>(checkpoint.tensors().size());
  report.notes = checkpoint.notes();
  if (!checkpoint.block_formats().empty()) {
    report.notes.push_back(checkpoint.block_formats() + " blocks are packed as " +
                           table.formats_text());
  }
  ScanOptions scan;
  scan.verify = options.verify;
  scan.progress = options.progress;
  SPILLWAY_ASSIGN_OR_RETURN(report.damage, scan_checkpoint(checkpoint, scan));
  report.weights_read = true;
  report.verified = options.verify && !checkpoint.records().empty();
  if (options.verify && checkpoint.records().empty()) {
    report.notes.push_back("safetensors and GGUF files carry no checksums to verify");
  }
  return report;
}

}  // namespace

Result<InspectReport> inspect_model(const std::string& model, const InspectOptions& options) {
  std::error_code error;
  const auto status = std::filesystem::status(model, error);
  Result<InspectReport> report = InspectReport();
  const bool gguf = std::filesystem::exists(status) && is_gguf_path(model);
  if (std::filesystem::is_directory(status) || gguf) {
    report = inspect_directory(model, options);
  } else if (std::filesystem::exists(status)) {
    report = inspect_packed(model, options);
  } else {
    const Result<ModelShape> shape = find_model_shape(model);
    if (!shape.ok()) {
      return not_found(in_quotes(model) +
                       " is neither a model directory nor a .gguf or .spill file; " +
                       std::string(shape.status().message()));
    }
    report->kind = "shape";
    add_table(plan_model_file(shape.value(), Format::kBF16, MatrixLayout::kPanels16),
              report.value());
  }
  if (report.ok()) report->model = model;
  return report;
}

}  // namespace spillway
