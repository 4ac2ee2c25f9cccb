#include "offload/model_file/model_file_table.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/checked_math.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/quote.h"
#include "kernels/base/strict_json.h"
#include "kernels/input_hadamard.h"
#include "offload/model_file/model_shape_json.h"

namespace spillway {

using nlohmann::json;

namespace {

constexpr size_t kTensorsMax = 1 << 16;
constexpr size_t kSlabsMax = size_t{1} << 24;
constexpr size_t kOriginBytesMax = 3 * 4096;  // A path, each byte replaced by U+FFFD
constexpr int64_t kBytesMax = int64_t{1} << 62;

json encode_quantization(const QuantError& error) {
  return {{"error_squares", error.error_squares},
          {"value_squares", error.value_squares},
          {"error_max", error.error_max},
          {"saturated", error.saturated}};
}

Result<QuantError> decode_quantization(const json& object) {
  JsonReader reader(object, "quantization");
  QuantError error;
  constexpr double kNone = -1;
  error.error_squares = reader.number_or("error_squares", kNone);
  error.value_squares = reader.number_or("value_squares", kNone);
  error.error_max = reader.number_or("error_max", kNone);
  error.saturated = reader.unsigned_integer("saturated");
  const bool good = error.error_squares >= 0 && error.value_squares >= 0 && error.error_max >= 0;
  if (!good) reader.fail("an error that is missing or negative");
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return error;
}

json encode_tensor(const TensorInfo& tensor) {
  json object = {{"role", role_name(tensor.spec.role)},
                 {"layer", tensor.spec.layer},
                 {"rows", tensor.spec.rows},
                 {"columns", tensor.spec.columns},
                 {"format", format_name(tensor.format)},
                 {"layout", layout_name(tensor.layout)},
                 {"first_slab", tensor.first_slab},
                 {"slab_count", tensor.slab_count},
                 {"slab_rows", tensor.slab_rows},
                 {"offset_in_slab", tensor.offset_in_slab},
                 {"nan", tensor.nan_count},
                 {"inf", tensor.inf_count}};
  if (tensor.hadamard) object["hadamard"] = true;
  if (is_quantized(tensor.format)) {
    object["quantization"] = encode_quantization(tensor.quantization);
  }
  return object;
}

// The format that a table of this version means.
Format read_format(JsonReader& reader, int64_t version) {
  const std::string name = reader.string("format", 8);
  std::optional<Format> format = format_of_name(name);
  if (format == Format::kQ8 && version < kTableVersionRowScale) format = Format::kQ8_1;
  if (!format) reader.fail("format " + in_quotes(name) + " is not " + format_names(", ", " or "));
  return format.value_or(Format::kF32);
}

// Reads one tensor, which must match `spec` from the shape.
Result<TensorInfo> decode_tensor(const json& object, const WeightSpec& spec, int64_t version) {
  const std::string where = "tensor " + std::string(role_name(spec.role)) +
                            (spec.layer < 0 ? "" : " of layer " + std::to_string(spec.layer));
  JsonReader reader(object, where);
  TensorInfo tensor;
  tensor.spec = spec;
  if (reader.string("role", 64) != role_name(spec.role)) reader.fail("the role is another");
  reader.integer("layer", spec.layer, spec.layer);
  reader.integer("rows", spec.rows, spec.rows);
  reader.integer("columns", spec.columns, spec.columns);
  tensor.format = read_format(reader, version);
  const std::string layout = reader.string("layout", 32);
  if (const auto known = layout_of_name(layout)) {
    tensor.layout = *known;
  } else {
    reader.fail("layout " + in_quotes(layout) + " is unknown");
  }
  tensor.hadamard = reader.boolean_or("hadamard", false);
  if (tensor.hadamard && (version < kTableVersionHadamard || spec.kind != WeightKind::kMatrix ||
                          !takes_hadamard(tensor.format))) {
    reader.fail("hadamard is true, which such a tensor cannot be");
  }
  tensor.first_slab = static_cast<uint32_t>(reader.integer("first_slab", 0, kSlabsMax));
  tensor.slab_count = static_cast<uint32_t>(reader.integer("slab_count", 1, kSlabsMax));
  tensor.slab_rows = reader.integer("slab_rows", 1, int64_t{1} << 40);
  tensor.offset_in_slab = static_cast<uint64_t>(reader.integer("offset_in_slab", 0, kBytesMax));
  tensor.nan_count = reader.unsigned_integer("nan");
  tensor.inf_count = reader.unsigned_integer("inf");
  if (is_quantized(tensor.format)) {
    const json& quantization = reader.object("quantization");
    SPILLWAY_RETURN_IF_ERROR(reader.status());
    SPILLWAY_ASSIGN_OR_RETURN(tensor.quantization, decode_quantization(quantization));
  }
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return tensor;
}

Result<SlabInfo> decode_slab(const json& item, size_t index) {
  const bool good = item.is_array() && item.size() == 4 && item[0].is_number_unsigned() &&
                    item[1].is_number_unsigned() && item[2].is_number_unsigned() &&
                    item[3].is_number_integer();
  if (!good) return corruption("slab " + std::to_string(index) + " is malformed");
  SlabInfo slab;
  slab.offset = item[0].get<uint64_t>();
  slab.bytes = item[1].get<uint64_t>();
  slab.checksum = item[2].get<uint64_t>();
  slab.layer = item[3].get<int64_t>();
  return slab;
}

// Checks that the slabs lie back to back in [kFirstSlabOffset, slabs_end).
Status check_tiling(const ModelFileTable& table, uint64_t slabs_end) {
  uint64_t end = kFirstSlabOffset;
  for (size_t i = 0; i < table.slabs.size(); ++i) {
    const SlabInfo& slab = table.slabs[i];
    const bool good = slab.offset == end && slab.bytes != 0 && slab.bytes % kFileAlignment == 0 &&
                      slab.bytes <= slabs_end - end;
    if (!good) return corruption("slab " + std::to_string(i) + " is out of place");
    end += slab.bytes;
  }
  if (end != slabs_end) return corruption("the slabs do not fill the file");
  return {};
}

// Checks the slabs of one matrix or table: whole panels, every row once, large enough.
Status check_rows(const ModelFileTable& table, const TensorInfo& tensor) {
  // The weight store and the kernels rely on it: tables are looked up row by row.
  const bool odd_table =
      tensor.spec.kind == WeightKind::kTable && tensor.layout != MatrixLayout::kRows;
  const bool together = tensor.format == table.format || goes_beside(tensor.format, table.format);
  if (!together || !layout_holds(tensor.layout, tensor.format) || odd_table) {
    return corruption("format " + std::string(format_name(tensor.format)) + " in layout " +
                      std::string(layout_name(tensor.layout)) + " does not go together here");
  }
  const auto rows = static_cast<uint64_t>(tensor.spec.rows);
  const auto slab_rows = static_cast<uint64_t>(tensor.slab_rows);
  const bool good = tensor.slab_rows % kPanelRowMultiple == 0 && tensor.offset_in_slab == 0 &&
                    divide_up(rows, slab_rows) == tensor.slab_count;
  if (!good) return corruption("the slabs do not match the rows");
  for (uint32_t i = 0; i < tensor.slab_count; ++i) {
    const SlabInfo& slab = table.slabs[tensor.first_slab + i];
    const size_t need =
        packed_bytes(tensor.layout, tensor.format, tensor.rows_in_slab(i), tensor.spec.columns);
    if (slab.bytes != round_up(need, kFileAlignment) || slab.layer != tensor.spec.layer) {
      return corruption("slab " + std::to_string(tensor.first_slab + i) + " does not fit");
    }
  }
  return {};
}

Status check_vector(const ModelFileTable& table, const TensorInfo& tensor) {
  const uint64_t bytes = static_cast<uint64_t>(tensor.spec.elements()) * sizeof(float);
  const SlabInfo& slab = table.slabs[tensor.first_slab];
  const bool good = tensor.slab_count == 1 && tensor.slab_rows == tensor.spec.rows &&
                    tensor.format == Format::kF32 && tensor.layout == MatrixLayout::kRows &&
                    tensor.offset_in_slab % sizeof(float) == 0 && slab.layer == tensor.spec.layer &&
                    tensor.offset_in_slab <= slab.bytes &&
                    bytes <= slab.bytes - tensor.offset_in_slab;
  if (!good) return corruption("the vector does not fit its slab");
  return {};
}

// Checks that every slab has one owner: one matrix or table, or the vectors of one group.
Status check_tensors(const ModelFileTable& table) {
  enum class Owner : uint8_t { kNone, kVectors, kRows };
  std::vector<Owner> owners(table.slabs.size(), Owner::kNone);
  for (const TensorInfo& tensor : table.tensors) {
    const std::string where = "tensor " + std::string(role_name(tensor.spec.role)) + ", layer " +
                              std::to_string(tensor.spec.layer);
    if (uint64_t{tensor.first_slab} + tensor.slab_count > table.slabs.size()) {
      return corruption("a slab that does not exist").at(where);
    }
    const bool vector = tensor.spec.kind == WeightKind::kVector;
    const Owner owner = vector ? Owner::kVectors : Owner::kRows;
    SPILLWAY_RETURN_IF_ERROR(
        (vector ? check_vector(table, tensor) : check_rows(table, tensor)).at(where));
    for (uint32_t i = 0; i < tensor.slab_count; ++i) {
      Owner& current = owners[tensor.first_slab + i];
      const bool free = current == Owner::kNone || (vector && current == Owner::kVectors);
      if (!free) return corruption("a slab that belongs to another tensor").at(where);
      current = owner;
    }
  }
  if (std::count(owners.begin(), owners.end(), Owner::kNone) != 0) {
    return corruption("a slab belongs to no tensor");
  }
  return {};
}

Status decode_files(const json& list, std::string_view contents, ModelFileTable& table) {
  for (const json& item : list) {
    JsonReader reader(item, "embedded file");
    const std::string name = reader.string("name", 255);
    const auto bytes =
        static_cast<size_t>(reader.integer("bytes", 0, int64_t{kEmbeddedFileBytesMax}));
    SPILLWAY_RETURN_IF_ERROR(reader.status());
    if (bytes > contents.size())
      return corruption("embedded file " + in_quotes(name) + " is cut off");
    table.files.emplace_back(name, contents.substr(0, bytes));
    contents.remove_prefix(bytes);
  }
  if (!contents.empty()) return corruption("bytes behind the embedded files");
  return {};
}

uint32_t table_version(const ModelFileTable& table) {
  const auto hadamard = [](const TensorInfo& tensor) { return tensor.hadamard; };
  if (std::any_of(table.tensors.begin(), table.tensors.end(), hadamard)) {
    return kTableVersionHadamard;
  }
  const auto row_scaled = [](const TensorInfo& tensor) { return tensor.format == Format::kQ8; };
  if (table.format == Format::kQ8 ||
      std::any_of(table.tensors.begin(), table.tensors.end(), row_scaled)) {
    return kTableVersionRowScale;
  }
  return table.shape.sliding_window > 0 ? kTableVersionWindow : kModelFileVersion;
}

Result<ModelFileTable> decode_json(const json& root) {
  JsonReader reader(root, "table");
  const int64_t version = reader.integer("version", kModelFileVersion, kTableVersionHadamard);
  ModelFileTable table;
  table.format = read_format(reader, version);
  table.source = reader.string("source", 4096);
  table.origin = reader.string_or("origin", kOriginBytesMax, "");
  const json& tensors = reader.array("tensors", kTensorsMax);
  const json& slabs = reader.array("slabs", kSlabsMax);
  const json& shape = reader.object("shape");
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  SPILLWAY_ASSIGN_OR_RETURN(table.shape, shape_of_json(shape));
  const std::vector<WeightSpec> specs = weight_specs(table.shape);
  if (specs.size() != tensors.size()) return corruption("the tensors are not those of the shape");
  for (size_t i = 0; i < specs.size(); ++i) {
    SPILLWAY_ASSIGN_OR_RETURN(TensorInfo tensor, decode_tensor(tensors[i], specs[i], version));
    table.tensors.push_back(tensor);
  }
  for (size_t i = 0; i < slabs.size(); ++i) {
    SPILLWAY_ASSIGN_OR_RETURN(SlabInfo slab, decode_slab(slabs[i], i));
    table.slabs.push_back(slab);
  }
  return table;
}

}  // namespace

std::string encode_table(const ModelFileTable& table, size_t* json_bytes) {
  json tensors = json::array();
  for (const TensorInfo& tensor : table.tensors) tensors.push_back(encode_tensor(tensor));
  json slabs = json::array();
  for (const SlabInfo& slab : table.slabs) {
    slabs.push_back(json::array({slab.offset, slab.bytes, slab.checksum, slab.layer}));
  }
  json files = json::array();
  for (const auto& [name, contents] : table.files) {
    files.push_back({{"name", name}, {"bytes", contents.size()}});
  }
  json root = {{"version", table_version(table)},
               {"shape", json_of_shape(table.shape)},
               {"format", format_name(table.format)},
               {"source", table.source},
               {"tensors", std::move(tensors)},
               {"slabs", std::move(slabs)},
               {"files", std::move(files)}};
  if (!table.origin.empty()) root["origin"] = table.origin;
  // A directory's name may be any bytes: invalid UTF-8 is replaced instead of throwing.
  std::string text = root.dump(-1, ' ', false, json::error_handler_t::replace);
  *json_bytes = text.size();
  for (const auto& [name, contents] : table.files) text += contents;
  return text;
}

Result<ModelFileTable> decode_table(std::string_view text, size_t json_bytes, uint64_t slabs_end) {
  if (json_bytes > text.size()) return corruption("the table is shorter than its JSON");
  SPILLWAY_ASSIGN_OR_RETURN(const json root,
                            parse_json_object(text.substr(0, json_bytes), "table"));
  SPILLWAY_ASSIGN_OR_RETURN(ModelFileTable table, decode_json(root));
  SPILLWAY_RETURN_IF_ERROR(check_tiling(table, slabs_end));
  SPILLWAY_RETURN_IF_ERROR(check_tensors(table));
  JsonReader reader(root, "table");
  const json& files = reader.array("files", kEmbeddedFilesMax);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  SPILLWAY_RETURN_IF_ERROR(decode_files(files, text.substr(json_bytes), table));
  return table;
}

}  // namespace spillway
