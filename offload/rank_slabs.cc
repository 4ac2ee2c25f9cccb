#include "offload/rank_slabs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/rank_shape.h"
#include "kernels/weight_panels.h"
#include "offload/io/aligned_bytes.h"
#include "offload/io/checksum.h"
#include "offload/model_file/slab_loader.h"

namespace spillway {

namespace {

constexpr uint64_t kSector = kFileAlignment;

uint64_t sectors_of(uint64_t offset, uint64_t bytes) {
  return round_up(offset + bytes, kSector) - offset / kSector * kSector;
}

// Rows that lie together, and their bytes.
struct Panels {
  int64_t rows = 1;
  uint64_t bytes = 0;
};

Panels panels_of(const TensorInfo& tensor) {
  const int64_t columns = tensor.spec.columns;
  if (tensor.layout == MatrixLayout::kRows) {
    return {1, packed_bytes(tensor.layout, tensor.format, 1, columns)};
  }
  const int64_t rows = panel_rows(tensor.layout);
  const size_t bytes = packed_bytes(tensor.layout, tensor.format, kPanelRowMultiple, columns);
  return {rows, bytes / static_cast<size_t>(kPanelRowMultiple / rows)};
}

// The formats of a file's weights, as plan_model_file() takes them.
std::vector<Format> formats_of(const ModelFileTable& table) {
  std::vector<Format> formats;
  if (!is_quantized(table.format)) return formats;
  for (const TensorInfo& tensor : table.tensors) formats.push_back(tensor.format);
  return formats;
}

bool is_vector(const TensorInfo& tensor) {
  return tensor.spec.kind == WeightKind::kVector;
}

}  // namespace

Result<std::shared_ptr<const RankSlabs>> RankSlabs::open(std::shared_ptr<const ModelFile> file,
                                                         const ModelShape& shape, int64_t rank,
                                                         int64_t ranks, MatrixLayout layout) {
  SPILLWAY_ASSIGN_OR_RETURN(const ModelShape own, rank_shape(shape, rank, ranks));
  const ModelFileTable& of_file = file->table();
  ModelFileTable table = plan_model_file(own, of_file.format, layout, formats_of(of_file));
  SPILLWAY_CHECK(table.tensors.size() == of_file.tensors.size());
  for (size_t i = 0; i < table.tensors.size(); ++i) {
    TensorInfo& tensor = table.tensors[i];
    SPILLWAY_CHECK(tensor.spec.role == of_file.tensors[i].spec.role);
    tensor.hadamard = of_file.tensors[i].hadamard;
    tensor.nan_count = of_file.tensors[i].nan_count;
    tensor.inf_count = of_file.tensors[i].inf_count;
    tensor.quantization = of_file.tensors[i].quantization;
  }
  table.file_id = of_file.file_id;
  table.source = of_file.source;
  table.origin = of_file.origin;
  table.files = of_file.files;
  std::shared_ptr<RankSlabs> slabs(new RankSlabs(std::move(file), std::move(table), shape));
  SPILLWAY_RETURN_IF_ERROR(slabs->open_files());
  slabs->list_runs();
  return std::shared_ptr<const RankSlabs>(std::move(slabs));
}

Status RankSlabs::open_files() {
  SPILLWAY_ASSIGN_OR_RETURN(buffered_, File::open_to_read(file_->path()));
  direct_ = open_direct(*file_);
  if (direct_.fd() < 0) {
    SPILLWAY_ASSIGN_OR_RETURN(direct_, File::open_to_read(file_->path()));
  }
  return {};
}

void RankSlabs::list_runs() {
  slabs_.resize(table_.slabs.size());
  sums_ = std::make_unique<std::atomic<uint64_t>[]>(slabs_.size());
  for (size_t i = 0; i < table_.tensors.size(); ++i) {
    if (!is_vector(table_.tensors[i])) {
      list_rows(i);
    } else if (slabs_[table_.tensors[i].first_slab].runs.empty()) {
      list_vectors(i);
    }
  }
  uint64_t end = 0;
  for (size_t i = 0; i < slabs_.size(); ++i) {
    place(slabs_[i], table_.slabs[i]);
    table_.slabs[i].offset = end;
    end += table_.slabs[i].bytes;
  }
}

void RankSlabs::list_vectors(size_t tensor) {
  const uint32_t from = file_->table().tensors[tensor].first_slab;
  Slab& slab = slabs_[table_.tensors[tensor].first_slab];
  slab.tensor = tensor;
  slab.vectors = true;
  slab.runs.push_back({from, 0, file_->table().slabs[from].bytes, 0, 0, 0});
}

void RankSlabs::list_rows(size_t tensor) {
  const TensorInfo& own = table_.tensors[tensor];
  const TensorInfo& of_file = file_->table().tensors[tensor];
  const std::vector<RowSpan> spans =
      rank_rows(whole_, of_file.spec, table_.shape.rank, table_.shape.ranks);
  for (uint32_t s = 0; s < own.slab_count; ++s) {
    Slab& slab = slabs_[own.first_slab + s];
    slab.tensor = tensor;
    slab.moves = own.layout == of_file.layout;
    int64_t skip = static_cast<int64_t>(s) * own.slab_rows, left = own.rows_in_slab(s);
    for (const RowSpan& span : spans) {
      if (skip >= span.count) {
        skip -= span.count;
        continue;
      }
      const int64_t rows = std::min(left, span.count - skip);
      add_run(of_file, span.first + skip, rows, slab);
      left -= rows;
      skip = 0;
      if (left == 0) break;
    }
    SPILLWAY_CHECK(left == 0);
  }
}

// Adds `rows` rows of the file's tensor from `first` on, slab by slab of the file.
void RankSlabs::add_run(const TensorInfo& of_file, int64_t first, int64_t rows, Slab& slab) const {
  const Panels panels = panels_of(of_file);
  while (rows > 0) {
    const int64_t index = first / of_file.slab_rows, begin = first % of_file.slab_rows;
    const int64_t some = std::min(rows, of_file.slab_rows - begin), end = begin + some;
    const int64_t panel = begin / panels.rows, after = (end + panels.rows - 1) / panels.rows;
    // Behind the last row of a matrix its panels are padded.
    const bool last = first + some == of_file.spec.rows;
    slab.moves = slab.moves && begin % panels.rows == 0 && (end % panels.rows == 0 || last);
    slab.runs.push_back({of_file.first_slab + static_cast<uint32_t>(index),
                         static_cast<uint64_t>(panel) * panels.bytes,
                         static_cast<uint64_t>(after - panel) * panels.bytes, 0,
                         begin - panel * panels.rows, some});
    first += some;
    rows -= some;
  }
}

// Gives the runs their places at the end of the slab's memory, and the memory its size. What is
// moved to the front passes nothing that has not been moved: before a run there are at least as
// many bytes as all before it have been moved to.
void RankSlabs::place(Slab& slab, SlabInfo& info) const {
  const auto of_file = [&](const Run& run) { return file_->table().slabs[run.slab].offset; };
  uint64_t sectors = 0;
  for (const Run& run : slab.runs) sectors += sectors_of(of_file(run) + run.offset, run.bytes);
  info.bytes = std::max(info.bytes, sectors);
  uint64_t at = info.bytes - sectors;
  for (Run& run : slab.runs) {
    run.at = at + (of_file(run) + run.offset) % kSector;
    at += sectors_of(of_file(run) + run.offset, run.bytes);
  }
}

std::vector<SlabRead> RankSlabs::reads(uint32_t slab) const {
  std::vector<SlabRead> list;
  for (const Run& run : slabs_[slab].runs) {
    const uint64_t from = file_->table().slabs[run.slab].offset + run.offset;
    const uint64_t before = from % kSector;
    list.push_back(
        {&direct_, &buffered_, from - before, sectors_of(from, run.bytes), run.at - before});
  }
  return list;
}

Status RankSlabs::load(uint32_t slab, std::span<std::byte> memory) const {
  AlignedBytes buffer;
  for (const Run& run : slabs_[slab].runs) {
    const std::span<std::byte> whole = buffer.reserve(file_->table().slabs[run.slab].bytes)
                                           .first(file_->table().slabs[run.slab].bytes);
    SPILLWAY_RETURN_IF_ERROR(read_verified(*file_, direct_, run.slab, whole));
    std::memcpy(memory.data() + run.at, whole.data() + run.offset, run.bytes);
  }
  make(slab, memory);
  sums_[slab] = seeded_checksum(memory, slab);
  return {};
}

Status RankSlabs::arrange(uint32_t slab, std::span<std::byte> memory, bool compare) const {
  make(slab, memory);
  if (!compare) return {};
  SPILLWAY_CHECK(sums_[slab] != 0);
  if (seeded_checksum(memory, slab) == sums_[slab]) return {};
  // What was read is not in its place any more, so that all of it is read again.
  return load(slab, memory);
}

void RankSlabs::make(uint32_t slab, std::span<std::byte> memory) const {
  const Slab& about = slabs_[slab];
  if (about.vectors) {
    make_vectors(about, memory);
  } else if (!about.moves) {
    pack_anew(about, slab, memory);
  } else {
    size_t done = 0;
    for (const Run& run : about.runs) {
      std::memmove(memory.data() + done, memory.data() + run.at, run.bytes);
      done += run.bytes;
    }
    std::memset(memory.data() + done, 0, memory.size() - done);
  }
}

void RankSlabs::make_vectors(const Slab& slab, std::span<std::byte> memory) const {
  const Run& run = slab.runs[0];
  const std::vector<std::byte> whole(memory.begin() + static_cast<ptrdiff_t>(run.at),
                                     memory.begin() + static_cast<ptrdiff_t>(run.at + run.bytes));
  std::memset(memory.data(), 0, memory.size());
  const uint32_t number = table_.tensors[slab.tensor].first_slab;
  for (size_t i = slab.tensor; i < table_.tensors.size(); ++i) {
    const TensorInfo& own = table_.tensors[i];
    const TensorInfo& of_file = file_->table().tensors[i];
    if (!is_vector(own) || own.first_slab != number) continue;
    std::byte* to = memory.data() + own.offset_in_slab;
    for (const RowSpan& span :
         rank_rows(whole_, of_file.spec, table_.shape.rank, table_.shape.ranks)) {
      const auto bytes = static_cast<size_t>(span.count) * sizeof(float);
      std::memcpy(
          to,
          whole.data() + of_file.offset_in_slab + static_cast<size_t>(span.first) * sizeof(float),
          bytes);
      to += bytes;
    }
  }
}

// By way of rows, as a checkpoint has them.
void RankSlabs::pack_anew(const Slab& slab, uint32_t number, std::span<std::byte> memory) const {
  const TensorInfo& own = table_.tensors[slab.tensor];
  const MatrixLayout from = file_->table().tensors[slab.tensor].layout;
  const int64_t columns = own.spec.columns, rows = own.rows_in_slab(number - own.first_slab);
  const bool quantized = is_quantized(own.format);
  const size_t row = quantized
                         ? format_row_bytes(own.format, columns)
                         : static_cast<size_t>(columns) * dtype_bytes(unpacked_type(own.format));
  std::vector<std::byte> all(static_cast<size_t>(rows) * row), some;
  size_t done = 0;
  for (const Run& run : slab.runs) {
    const int64_t covered = run.skipped + run.rows;
    some.resize(static_cast<size_t>(covered) * row);
    const std::byte* const source = memory.data() + run.at;
    if (quantized) {
      move_codes(own.format, covered, columns, from, source, MatrixLayout::kRows, some.data());
    } else {
      unpack_rows(from, own.format, source, covered, columns, some.data());
    }
    const size_t bytes = static_cast<size_t>(run.rows) * row;
    std::memcpy(all.data() + done, some.data() + static_cast<size_t>(run.skipped) * row, bytes);
    done += bytes;
  }
  std::memset(memory.data(), 0, memory.size());
  if (quantized) {
    move_codes(own.format, rows, columns, MatrixLayout::kRows, all.data(), own.layout,
               memory.data());
  } else {
    pack_rows(own.layout, own.format, unpacked_type(own.format), all.data(), rows, columns,
              memory.data());
  }
}

}  // namespace spillway
