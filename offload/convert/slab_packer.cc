#include "offload/convert/slab_packer.h"

#include <algorithm>
#include <cstring>

#include "offload/convert/gguf_blocks.h"

namespace spillway {

bool keeps_no_blocks(Format format) {
  return format_traits(format).group != kGgufGroup;
}

namespace {

size_t row_bytes(const MappedWeight& weight) {
  return static_cast<size_t>(weight.row_elements) * dtype_bytes(weight.format);
}

// Whether a weight packed in `format` has the codes of these blocks.
bool keeps_codes(Format format, const GgufBlockFormat* blocks) {
  return blocks != nullptr && blocks->split != nullptr && !keeps_no_blocks(format) &&
         blocks->code_bits <= format_traits(format).bits;
}

bool finite(uint16_t f16) {
  return (f16 & 0x7c00) != 0x7c00;
}

}  // namespace

SlabPacker::SlabPacker(const Checkpoint& checkpoint, const WeightMap& map,
                       const ModelFileTable& table, std::span<const WeightFactors> factors)
    : checkpoint_(checkpoint),
      map_(map),
      table_(table),
      factors_(factors),
      pieces_(table.slabs.size()),
      quantization_(table.slabs.size()) {
  SPILLWAY_CHECK(map.weights.size() == table.tensors.size());
  for (size_t i = 0; i < table.tensors.size(); ++i) {
    const TensorInfo& tensor = table.tensors[i];
    if (tensor.spec.kind == WeightKind::kVector) {
      pieces_[tensor.first_slab].push_back({i, 0, tensor.spec.elements(), tensor.offset_in_slab});
      continue;
    }
    for (uint32_t s = 0; s < tensor.slab_count; ++s) {
      pieces_[tensor.first_slab + s].push_back(
          {i, static_cast<int64_t>(s) * tensor.slab_rows, tensor.rows_in_slab(s), 0});
    }
  }
}

uint64_t SlabPacker::source_bytes(uint32_t slab) const {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces_[slab]) {
    bytes += static_cast<uint64_t>(piece.rows) * row_bytes(map_.weights[piece.weight]);
  }
  return bytes;
}

std::vector<uint32_t> SlabPacker::source_tensors(uint32_t slab) const {
  std::vector<uint32_t> tensors;
  for (const Piece& piece : pieces_[slab]) {
    for (const MappedPart& part : map_.weights[piece.weight].parts) tensors.push_back(part.tensor);
  }
  return tensors;
}

Status SlabPacker::pack(uint32_t slab, std::vector<std::byte>& scratch,
                        std::span<std::byte> target) {
  SPILLWAY_CHECK(target.size() == table_.slabs[slab].bytes);
  // Rows of plain numbers fill their place, padding included; the rest of a slab is zero.
  size_t whole = 0;
  if (pieces_[slab].size() == 1) {
    const Piece& piece = pieces_[slab].front();
    const TensorInfo& tensor = table_.tensors[piece.weight];
    if (tensor.spec.kind != WeightKind::kVector && !is_quantized(tensor.format)) {
      whole = packed_bytes(tensor.layout, tensor.format, piece.rows, tensor.spec.columns);
    }
  }
  std::memset(target.data() + whole, 0, target.size() - whole);
  for (const Piece& piece : pieces_[slab]) {
    SPILLWAY_RETURN_IF_ERROR(
        pack_piece(piece, scratch, target.subspan(piece.offset), &quantization_[slab]));
  }
  return {};
}

Status SlabPacker::pack_piece(const Piece& piece, std::vector<std::byte>& scratch,
                              std::span<std::byte> target, QuantError* quantization) {
  const MappedWeight& weight = map_.weights[piece.weight];
  const TensorInfo& tensor = table_.tensors[piece.weight];
  if (!factors_.empty() && !factors_[piece.weight].none()) {
    return pack_smoothed(piece, scratch, target, quantization);
  }
  const bool some_keep =
      std::any_of(weight.parts.begin(), weight.parts.end(), [&](const MappedPart& part) {
        return keeps_codes(tensor.format, checkpoint_.tensors()[part.tensor].stored.blocks);
      });
  // A tied head is the embedding again, where its damage is counted.
  const bool again = tensor.spec.role == WeightRole::kHead && table_.shape.tied_head;
  if (some_keep && tensor.spec.kind != WeightKind::kVector) {
    return pack_blocks(piece, !again, scratch, target, quantization);
  }
  const size_t bytes = static_cast<size_t>(piece.rows) * row_bytes(weight);
  if (scratch.size() < bytes) scratch.resize(bytes);
  const auto source = std::span(scratch).first(bytes);
  SPILLWAY_RETURN_IF_ERROR(read_rows(weight, piece.first_row, source));
  ConversionCounts counts;
  pack_rows(tensor.layout, tensor.format, weight.format, source.data(), piece.rows,
            weight.row_elements, target.data(), quantization, &counts, tensor.hadamard);
  if (again) return {};
  // Plain numbers were counted on the way; which of the parts they are in, a look at each says.
  const bool quantized = is_quantized(tensor.format);
  if (quantized || counts.source.total() != 0) count_stored(weight, piece.first_row, source);
  // A narrower format can overflow. The count goes to the first tensor of a fused weight.
  const uint64_t overflow = quantized ? quantization->saturated : counts.overflow;
  if (overflow != 0) note_damage(weight.parts.front().tensor, {}, overflow);
  return {};
}

Status SlabPacker::pack_smoothed(const Piece& piece, std::vector<std::byte>& scratch,
                                 std::span<std::byte> target, QuantError* quantization) {
  const MappedWeight& weight = map_.weights[piece.weight];
  const TensorInfo& tensor = table_.tensors[piece.weight];
  const int64_t columns = weight.row_elements;
  const bool whole = !is_quantized(tensor.format);  // Plain numbers are packed all at once.
  constexpr int64_t kAtOnce = int64_t{1} << 18;  // Numbers that stay in a cache while they are used
  const int64_t step = whole ? piece.rows : std::max<int64_t>(1, kAtOnce / columns);
  std::vector<float> numbers;
  const uint64_t saturated = quantization->saturated;
  ConversionCounts counts;
  for (int64_t row = 0; row < piece.rows; row += step) {
    const int64_t rows = std::min(step, piece.rows - row);
    const size_t bytes = static_cast<size_t>(rows) * row_bytes(weight);
    if (scratch.size() < bytes) scratch.resize(bytes);
    const auto source = std::span(scratch).first(bytes);
    SPILLWAY_RETURN_IF_ERROR(read_rows(weight, piece.first_row + row, source));
    count_stored(weight, piece.first_row + row, source);
    numbers.resize(static_cast<size_t>(rows * columns));
    convert_elements(weight.format, source.data(), DType::kF32,
                     reinterpret_cast<std::byte*>(numbers.data()), numbers.size());
    apply_factors(factors_[piece.weight], piece.first_row + row, rows, columns, numbers.data());
    const auto* const from = reinterpret_cast<const std::byte*>(numbers.data());
    if (whole) {
      pack_rows(tensor.layout, tensor.format, DType::kF32, from, rows, columns, target.data(),
                nullptr, &counts);
    } else {
      quantize_rows(tensor.layout, tensor.format, DType::kF32, from, row, rows, columns,
                    target.data(), quantization, tensor.hadamard);
    }
  }
  const uint64_t overflow = counts.overflow + quantization->saturated - saturated;
  if (overflow != 0) note_damage(weight.parts.front().tensor, {}, overflow);
  return {};
}

Status SlabPacker::pack_blocks(const Piece& piece, bool count_damage,
                               std::vector<std::byte>& scratch, std::span<std::byte> target,
                               QuantError* quantization) {
  const MappedWeight& weight = map_.weights[piece.weight];
  const TensorInfo& tensor = table_.tensors[piece.weight];
  const int64_t columns = weight.row_elements;
  int64_t part_begin = 0;  // In rows of the weight
  for (const MappedPart& part : weight.parts) {
    const int64_t part_end = part_begin + part.rows;
    const int64_t begin = std::max(piece.first_row, part_begin);
    const int64_t end = std::min(piece.first_row + piece.rows, part_end);
    const int64_t in_tensor = part.first_row + begin - part_begin;
    part_begin = part_end;
    if (begin >= end) continue;
    const CheckpointTensor& source = checkpoint_.tensors()[part.tensor];
    const int64_t at = begin - piece.first_row;
    if (keeps_codes(tensor.format, source.stored.blocks)) {
      SPILLWAY_RETURN_IF_ERROR(keep_codes(piece, part.tensor, in_tensor, end - begin, at,
                                          count_damage, target, quantization));
      continue;
    }
    const size_t bytes = static_cast<size_t>(end - begin) * row_bytes(weight);
    if (scratch.size() < bytes) scratch.resize(bytes);
    const auto rows = std::span(scratch).first(bytes);
    SPILLWAY_RETURN_IF_ERROR(
        checkpoint_.read(source, static_cast<uint64_t>(in_tensor) * row_bytes(weight), rows));
    if (count_damage) {
      const NonFinite found = count_non_finite(weight.format, rows);
      if (found.total() != 0) note_damage(part.tensor, found, 0);
    }
    const uint64_t saturated = quantization->saturated;
    quantize_rows(tensor.layout, tensor.format, weight.format, rows.data(), at, end - begin,
                  columns, target.data(), quantization);
    if (count_damage && quantization->saturated != saturated) {
      note_damage(part.tensor, {}, quantization->saturated - saturated);
    }
  }
  return {};
}

Status SlabPacker::keep_codes(const Piece& piece, uint32_t index, int64_t first_row, int64_t rows,
                              int64_t at, bool count_damage, std::span<std::byte> target,
                              QuantError* quantization) {
  const TensorInfo& tensor = table_.tensors[piece.weight];
  const CheckpointTensor& source = checkpoint_.tensors()[index];
  const GgufBlockFormat& blocks = *source.stored.blocks;
  const auto columns = static_cast<size_t>(tensor.spec.columns);
  const size_t groups = columns / kGgufGroup, blocks_a_row = columns / blocks.elements;
  constexpr size_t kAtOnce = size_t{256} << 10;  // Bytes that stay in a cache while they are used
  const auto step = static_cast<int64_t>(
      std::max<size_t>(1, kAtOnce / (columns * (sizeof(float) + 1) + blocks_a_row * blocks.bytes)));
  const int bits = format_traits(tensor.format).bits;
  std::vector<std::byte> raw;
  std::vector<uint8_t> codes;
  std::vector<GroupScale> scales;
  std::vector<float> numbers;
  NonFinite damage;
  for (int64_t row = 0; row < rows; row += step) {
    const auto many = static_cast<size_t>(std::min(step, rows - row));
    raw.resize(many * blocks_a_row * blocks.bytes);
    codes.resize(many * columns);
    numbers.resize(many * columns);
    scales.resize(many * groups);
    SPILLWAY_RETURN_IF_ERROR(checkpoint_.read_block_rows(source, first_row + row, raw));
    blocks.split(raw.data(), many * blocks_a_row, codes.data(), scales.data());
    blocks.expand(raw.data(), many * blocks_a_row, numbers.data());
    for (size_t g = 0; g < scales.size(); ++g) {
      const std::span<uint8_t> some(codes.data() + g * kGgufGroup, kGgufGroup);
      const std::span<const float> values(numbers.data() + g * kGgufGroup, kGgufGroup);
      // A scale that float16 does not hold, or a damaged one: the group is quantised as any other.
      if (!finite(scales[g].scale) || !finite(scales[g].minimum)) {
        scales[g] = quantize_group(bits, values, some.data());
        damage += count_non_finite(DType::kF32, std::as_bytes(values));
      }
      add_group_error(bits, values, scales[g], some.data(), quantization);
      put_group(tensor.layout, tensor.format, tensor.spec.columns,
                at + row + static_cast<int64_t>(g / groups), static_cast<int64_t>(g % groups), some,
                scales[g], target.data());
    }
  }
  if (count_damage && damage.total() != 0) note_damage(index, damage, 0);
  return {};
}

template <class Body>
Status SlabPacker::for_each_part(const MappedWeight& weight, int64_t first_row, size_t bytes,
                                 const Body& body) {
  const size_t row = row_bytes(weight);
  auto skip = static_cast<uint64_t>(first_row) * row;
  size_t done = 0;
  for (const MappedPart& part : weight.parts) {
    const uint64_t part_bytes = static_cast<uint64_t>(part.rows) * row;
    if (skip >= part_bytes) {
      skip -= part_bytes;
      continue;
    }
    const size_t some = std::min<uint64_t>(bytes - done, part_bytes - skip);
    const uint64_t from = static_cast<uint64_t>(part.first_row) * row + skip;
    SPILLWAY_RETURN_IF_ERROR(body(part.tensor, from, done, some));
    done += some;
    skip = 0;
    if (done == bytes) return {};
  }
  SPILLWAY_CHECK(done == bytes);
  return {};
}

Status SlabPacker::read_rows(const MappedWeight& weight, int64_t first_row,
                             std::span<std::byte> target) {
  return for_each_part(weight, first_row, target.size(),
                       [&](uint32_t tensor, uint64_t from, size_t at, size_t bytes) {
                         return checkpoint_.read(checkpoint_.tensors()[tensor], from,
                                                 target.subspan(at, bytes));
                       });
}

void SlabPacker::count_stored(const MappedWeight& weight, int64_t first_row,
                              std::span<const std::byte> rows) {
  const auto count = [&](uint32_t tensor, uint64_t, size_t at, size_t bytes) -> Status {
    const NonFinite found = count_non_finite(weight.format, rows.subspan(at, bytes));
    if (found.total() != 0) note_damage(tensor, found, 0);
    return {};
  };
  SPILLWAY_CHECK(for_each_part(weight, first_row, rows.size(), count).ok());
}

void SlabPacker::note_damage(uint32_t tensor, const NonFinite& stored, uint64_t overflow) {
  const std::lock_guard lock(damage_mutex_);
  TensorDamage& damage = damage_[tensor];
  damage.stored += stored;
  damage.overflow += overflow;
}

QuantError SlabPacker::quantization(size_t index) const {
  const TensorInfo& tensor = table_.tensors[index];
  QuantError error;
  if (!is_quantized(tensor.format)) return error;
  for (uint32_t i = 0; i < tensor.slab_count; ++i) error.add(quantization_[tensor.first_slab + i]);
  return error;
}

std::vector<TensorDamage> SlabPacker::damage() const {
  std::vector<TensorDamage> list;
  for (const auto& [tensor, damage] : damage_) {
    list.push_back(damage);
    list.back().tensor = checkpoint_.tensors()[tensor].stored.name;
  }
  return list;
}

}  // namespace spillway
