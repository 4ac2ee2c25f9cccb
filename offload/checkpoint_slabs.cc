#include "offload/checkpoint_slabs.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "kernels/base/checked_math.h"
#include "kernels/base/rank_shape.h"
#include "kernels/weight_panels.h"
#include "offload/convert/family.h"
#include "offload/convert/fingerprint.h"
#include "offload/convert/gguf_model.h"
#include "offload/convert/hf_config.h"
#include "offload/convert/tokenizer_files.h"

namespace spillway {

namespace {

constexpr uint64_t kSector = kFileAlignment;

uint64_t down(uint64_t offset) {
  return offset / kSector * kSector;
}

size_t row_bytes(const MappedWeight& weight) {
  return static_cast<size_t>(weight.row_elements) * dtype_bytes(weight.format);
}

Status refuse(const std::string& what) {
  return invalid_argument(what +
                          "; leave --weights-from checkpoint out, and the model is packed once");
}

Status check_is_directory(const std::string& model) {
  std::error_code error;
  if (std::filesystem::is_directory(model, error)) return {};
  if (!std::filesystem::exists(model, error)) {
    return not_found(model + ": there is no such model directory");
  }
  if (is_gguf_path(model)) {
    return refuse(model + " is a GGUF file; --weights-from checkpoint streams safetensors");
  }
  return invalid_argument(
      model +
      " is no model directory; --weights-from checkpoint streams the safetensors files of "
      "one, so name that, or leave the flag out");
}

// Whether the files hold every matrix in the table's format. `rounded`: nobody asked for that one.
Status check_files(const std::string& directory, const Checkpoint& checkpoint, const WeightMap& map,
                   const ModelFileTable& table, bool rounded) {
  for (uint32_t i = 0; i < checkpoint.file_count(); ++i) {
    if (checkpoint.file_name(i).ends_with(".safetensors")) continue;
    return refuse(checkpoint.file_name(i) +
                  " is no safetensors file, which --weights-from checkpoint streams");
  }
  const std::string wanted(format_name(table.format));
  if (table.format != Format::kBF16 && table.format != Format::kF16) {
    return refuse("--weights-from checkpoint streams bf16 and f16, and the weights of " +
                  directory + " are to be " + wanted);
  }
  for (size_t i = 0; i < map.weights.size(); ++i) {
    const TensorInfo& tensor = table.tensors[i];
    if (tensor.spec.kind == WeightKind::kVector) continue;
    const DType stored = map.weights[i].format;
    if (stored == element_of(table.format)) continue;
    if (stored == DType::kF16 && rounded) {
      return invalid_argument("f16 weights are computed with in bf16 here, so that " + directory +
                              " cannot be streamed as it lies; add --format f16, or leave "
                              "--weights-from checkpoint out");
    }
    return refuse(directory + " has its " + tensor.name() + " as " +
                  std::string(dtype_name(stored)) + ", not as " + wanted +
                  ", so that it cannot be streamed as it lies");
  }
  if (!map.head_copy) return {};
  return refuse(directory + " has its tied head as a tensor of its own, which must be compared");
}

}  // namespace

Result<std::shared_ptr<const CheckpointSlabs>> CheckpointSlabs::open(
    const std::string& directory, const CheckpointSlabsOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(check_is_directory(directory));
  SPILLWAY_ASSIGN_OR_RETURN(const HfConfig config, read_hf_config(directory));
  if (options.accepts) SPILLWAY_RETURN_IF_ERROR(options.accepts(config.shape));
  SPILLWAY_ASSIGN_OR_RETURN(const std::string fingerprint, checkpoint_fingerprint(directory));
  const std::string source = source_of(config.shape.name, fingerprint);
  if (options.accepts_source) SPILLWAY_RETURN_IF_ERROR(options.accepts_source(source));
  SPILLWAY_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(directory));
  const Family* family = family_of(config.shape.family);
  SPILLWAY_CHECK(family != nullptr);
  Result<WeightMap> map = map_weights(*family, config.shape, checkpoint);
  if (!map.ok()) return map.status().at(directory);
  Format format = options.format.value_or(natural_formats(config.shape, map.value()).main);
  const bool rounded = !options.format && options.bf16_for_f16 && format == Format::kF16;
  if (rounded) format = Format::kBF16;
  ModelFileTable table = plan_model_file(config.shape, format, options.layout(format));
  SPILLWAY_RETURN_IF_ERROR(check_files(directory, checkpoint, map.value(), table, rounded));
  if (options.ranks > 1) {
    SPILLWAY_ASSIGN_OR_RETURN(const ModelShape own,
                              rank_shape(config.shape, options.rank, options.ranks));
    for (size_t i = 0; i < map->weights.size(); ++i) {
      map->weights[i] = take_rows(map->weights[i], rank_rows(config.shape, table.tensors[i].spec,
                                                             options.rank, options.ranks));
    }
    table = plan_model_file(own, format, options.layout(format));
  }
  table.source = source;
  SPILLWAY_ASSIGN_OR_RETURN(table.files, read_tokenizer_files(directory));
  std::shared_ptr<CheckpointSlabs> slabs(
      new CheckpointSlabs(std::move(checkpoint), std::move(map).value(), std::move(table)));
  SPILLWAY_RETURN_IF_ERROR(slabs->open_shards());
  slabs->list_runs();
  return std::shared_ptr<const CheckpointSlabs>(std::move(slabs));
}

Status CheckpointSlabs::open_shards() {
  for (uint32_t i = 0; i < checkpoint_.file_count(); ++i) {
    Shard shard;
    const std::string& path = checkpoint_.file_name(i);
    SPILLWAY_ASSIGN_OR_RETURN(shard.buffered, File::open_to_read(path));
    SPILLWAY_ASSIGN_OR_RETURN(shard.stamp, shard.buffered.stamp());
    Result<File> direct = File::open(path, O_RDONLY | O_DIRECT);
    if (!direct.ok()) direct = File::open_to_read(path);  // A file system without it
    if (!direct.ok()) return direct.status();
    shard.direct = std::move(direct).value();
    shards_.push_back(std::move(shard));
  }
  return checkpoint_.check_unchanged();
}

void CheckpointSlabs::list_runs() {
  slabs_.resize(table_.slabs.size());
  for (size_t i = 0; i < table_.tensors.size(); ++i) {
    const TensorInfo& tensor = table_.tensors[i];
    const bool vector = tensor.spec.kind == WeightKind::kVector;
    for (uint32_t s = 0; s < tensor.slab_count; ++s) {
      const int64_t rows = vector ? tensor.spec.elements() : tensor.rows_in_slab(s);
      add_runs({i, rows}, static_cast<int64_t>(s) * tensor.slab_rows,
               slabs_[tensor.first_slab + s]);
    }
  }
  uint64_t end = 0;
  for (size_t i = 0; i < slabs_.size(); ++i) {
    place(slabs_[i], table_.slabs[i]);
    table_.slabs[i].offset = end;
    end += table_.slabs[i].bytes;
  }
}

// Appends the runs of a piece that begins at `first_row` of its weight.
void CheckpointSlabs::add_runs(const Piece& piece, int64_t first_row, Slab& slab) const {
  const MappedWeight& weight = map_.weights[piece.weight];
  const size_t row = row_bytes(weight);
  Piece added = piece;
  added.first = slab.runs.size();
  int64_t skip = first_row, left = piece.rows;
  for (const MappedPart& part : weight.parts) {
    if (left == 0) break;
    if (skip >= part.rows) {
      skip -= part.rows;
      continue;
    }
    const int64_t rows = std::min(left, part.rows - skip);
    const CheckpointTensor& tensor = checkpoint_.tensors()[part.tensor];
    const auto from = static_cast<uint64_t>(part.first_row + skip) * row;
    slab.runs.push_back(
        {tensor.file, tensor.stored.offset + from, static_cast<uint64_t>(rows) * row, 0});
    left -= rows;
    skip = 0;
  }
  SPILLWAY_CHECK(left == 0);
  added.last = slab.runs.size();
  slab.pieces.push_back(added);
}

// Gives the runs their places at the end of the slab's memory, and the memory its size.
void CheckpointSlabs::place(Slab& slab, SlabInfo& info) const {
  info.bytes += 2 * kSector * slab.runs.size();
  uint64_t sectors = 0;
  for (const Run& run : slab.runs) {
    sectors += round_up(run.offset + run.bytes, kSector) - down(run.offset);
  }
  SPILLWAY_CHECK(sectors <= info.bytes);
  uint64_t at = info.bytes - sectors;
  for (Run& run : slab.runs) {
    run.at = at + run.offset % kSector;
    at += round_up(run.offset + run.bytes, kSector) - down(run.offset);
  }
}

const std::string& CheckpointSlabs::largest_file() const {
  const auto largest = std::max_element(
      shards_.begin(), shards_.end(),
      [](const Shard& a, const Shard& b) { return a.stamp.bytes < b.stamp.bytes; });
  return largest->buffered.path();
}

std::vector<SlabRead> CheckpointSlabs::reads(uint32_t slab) const {
  std::vector<SlabRead> list;
  for (const Run& run : slabs_[slab].runs) {
    const Shard& shard = shards_[run.file];
    // A file's last sector is rarely whole, and is read through the page cache.
    const uint64_t whole = down(shard.stamp.bytes), end = run.offset + run.bytes;
    const uint64_t first = down(run.offset), last = std::min(round_up(end, kSector), whole);
    if (first < last) {
      list.push_back(
          {&shard.direct, &shard.buffered, first, last - first, run.at - run.offset % kSector});
    }
    if (end > whole) {
      const uint64_t from = std::max(run.offset, whole);
      list.push_back(
          {&shard.buffered, &shard.buffered, from, end - from, run.at + (from - run.offset)});
    }
  }
  return list;
}

Status CheckpointSlabs::check_unchanged(const Slab& slab) const {
  for (const Run& run : slab.runs) {
    const Shard& shard = shards_[run.file];
    SPILLWAY_ASSIGN_OR_RETURN(const FileStamp now, shard.buffered.stamp());
    if (now == shard.stamp) continue;
    return corruption(shard.buffered.path() +
                      " has changed since it was opened; start again with files that stay");
  }
  return {};
}

Status CheckpointSlabs::load(uint32_t slab, std::span<std::byte> memory) const {
  for (const SlabRead& read : reads(slab)) {
    const auto target = memory.subspan(read.at, read.bytes);
    if (read.file->read(read.offset, target).ok()) continue;
    SPILLWAY_RETURN_IF_ERROR(read.buffered->read(read.offset, target));
  }
  return arrange(slab, memory, false);
}

Status CheckpointSlabs::arrange(uint32_t slab, std::span<std::byte> memory, bool) const {
  const Slab& about = slabs_[slab];
  SPILLWAY_RETURN_IF_ERROR(check_unchanged(about));
  const std::lock_guard lock(scratch_mutex_);
  for (const Piece& piece : about.pieces) {
    const TensorInfo& tensor = table_.tensors[piece.weight];
    if (tensor.spec.kind == WeightKind::kVector) {
      arrange_vector(about, piece, memory);
    } else if (tensor.layout == MatrixLayout::kRows) {
      arrange_rows(about, piece, memory);
    } else {
      arrange_panels(about, piece, memory);
    }
  }
  return {};
}

void CheckpointSlabs::arrange_vector(const Slab& slab, const Piece& piece,
                                     std::span<std::byte> memory) const {
  const MappedWeight& weight = map_.weights[piece.weight];
  const auto count = static_cast<size_t>(piece.rows * weight.row_elements);
  std::byte* numbers = scratch_.reserve(count * dtype_bytes(weight.format)).data();
  size_t done = 0;
  for (size_t i = piece.first; i < piece.last; ++i) {
    std::memcpy(numbers + done, memory.data() + slab.runs[i].at, slab.runs[i].bytes);
    done += slab.runs[i].bytes;
  }
  std::byte* target = memory.data() + table_.tensors[piece.weight].offset_in_slab;
  const size_t bytes = count * sizeof(float);
  convert_elements(weight.format, numbers, DType::kF32, target, count);
  std::memset(target + bytes, 0, round_up(bytes, 64) - bytes);
}

void CheckpointSlabs::arrange_rows(const Slab& slab, const Piece& piece,
                                   std::span<std::byte> memory) const {
  size_t done = 0;
  for (size_t i = piece.first; i < piece.last; ++i) {
    std::memmove(memory.data() + done, memory.data() + slab.runs[i].at, slab.runs[i].bytes);
    done += slab.runs[i].bytes;
  }
}

void CheckpointSlabs::arrange_panels(const Slab& slab, const Piece& piece,
                                     std::span<std::byte> memory) const {
  const TensorInfo& tensor = table_.tensors[piece.weight];
  const size_t row = row_bytes(map_.weights[piece.weight]);
  const int64_t columns = tensor.spec.columns;
  const size_t padded =
      format_row_bytes(tensor.format, padded_columns(tensor.layout, tensor.format, columns));
  const auto panel = static_cast<size_t>(panel_rows(tensor.layout));
  const size_t panels =
      packed_bytes(tensor.layout, tensor.format, piece.rows, columns) / (panel * padded);
  std::byte* rows = scratch_.reserve(panel * padded).data();
  size_t run = piece.first;
  uint64_t used = 0;  // Of that run
  for (size_t p = 0; p < panels; ++p) {
    for (size_t r = 0; r < panel; ++r) {
      std::byte* to = rows + r * padded;
      if (run < piece.last && used == slab.runs[run].bytes) {
        ++run;
        used = 0;
      }
      const size_t bytes = run < piece.last ? row : 0;
      if (bytes > 0) std::memcpy(to, memory.data() + slab.runs[run].at + used, bytes);
      std::memset(to + bytes, 0, padded - bytes);
      used += bytes;
    }
    pack_panel(tensor.layout, tensor.format, columns, rows, memory.data() + p * panel * padded);
  }
}

}  // namespace spillway
