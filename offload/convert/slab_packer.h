// Makes the bytes of one slab of a packed file from the checkpoint's tensors.
// Thread rule: const methods from any thread, each thread with its own scratch buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/checkpoint.h"
#include "offload/convert/smoothing.h"
#include "offload/convert/weight_map.h"
#include "offload/model_file/model_file.h"
#include "offload/model_file/non_finite.h"

namespace spillway {

// Counts of one checkpoint tensor's invalid numbers.
struct TensorDamage {
  std::string tensor;
  NonFinite stored;       // In the checkpoint itself
  uint64_t overflow = 0;  // Finite there, infinite (quantised: clamped) when packed
};

// Whether weights of this format have no codes of GGUF's blocks: they are made of the numbers.
bool keeps_no_blocks(Format format);

class SlabPacker {
 public:
  // All must outlive the packer. `factors`: of each weight, as smoothing.h makes them; empty: none
  // has any. REQUIRES: `map` and `table` are of the same shape; codes of blocks are kept of no
  // weight that has factors.
  SlabPacker(const Checkpoint& checkpoint, const WeightMap& map, const ModelFileTable& table,
             std::span<const WeightFactors> factors = {});

  // Fills `target`, which has the slab's padded size. `scratch` grows as needed and keeps its
  // memory. Blocks on the disk.
  Status pack(uint32_t slab, std::vector<std::byte>& scratch, std::span<std::byte> target);

  // Checkpoint bytes that go into a slab.
  uint64_t source_bytes(uint32_t slab) const;

  // Checkpoint tensors that go into a slab, by index.
  std::vector<uint32_t> source_tensors(uint32_t slab) const;

  // The damage that pack() has found, by tensor name. Thread rule: after all pack() calls.
  std::vector<TensorDamage> damage() const;

  // The quantisation error of tensor `index` of the table against the checkpoint's numbers; zero
  // unless it is quantised, and where codes and scales are the checkpoint's. Independent of the
  // order of pack() calls. Thread rule: as damage().
  QuantError quantization(size_t index) const;

 private:
  // Rows [first_row, first_row + rows) of weight `weight` lie at `offset` in the slab.
  struct Piece {
    size_t weight = 0;
    int64_t first_row = 0;
    int64_t rows = 0;
    uint64_t offset = 0;
  };

  Status pack_piece(const Piece& piece, std::vector<std::byte>& scratch,
                    std::span<std::byte> target, QuantError* quantization);
  // A piece of a weight that has factors: a few rows at a time as float32.
  Status pack_smoothed(const Piece& piece, std::vector<std::byte>& scratch,
                       std::span<std::byte> target, QuantError* quantization);
  // A piece of a quantised weight, part by part: blocks whose codes its format holds keep them.
  Status pack_blocks(const Piece& piece, bool count_damage, std::vector<std::byte>& scratch,
                     std::span<std::byte> target, QuantError* quantization);
  // Rows [first_row, first_row + rows) of tensor `tensor`, to row `at` of the piece on.
  Status keep_codes(const Piece& piece, uint32_t tensor, int64_t first_row, int64_t rows,
                    int64_t at, bool count_damage, std::span<std::byte> target,
                    QuantError* quantization);
  // body(tensor, offset in it, offset in `bytes`, bytes) for each part of rows from `first_row` on.
  template <class Body>
  static Status for_each_part(const MappedWeight& weight, int64_t first_row, size_t bytes,
                              const Body& body);
  Status read_rows(const MappedWeight& weight, int64_t first_row, std::span<std::byte> target);
  // Notes what is not finite among rows that were read.
  void count_stored(const MappedWeight& weight, int64_t first_row, std::span<const std::byte> rows);
  void note_damage(uint32_t tensor, const NonFinite& stored, uint64_t overflow);

  const Checkpoint& checkpoint_;
  const WeightMap& map_;
  const ModelFileTable& table_;
  const std::span<const WeightFactors> factors_;
  std::vector<std::vector<Piece>> pieces_;  // By slab.
  std::vector<QuantError> quantization_;    // By slab.
  std::mutex damage_mutex_;
  std::map<uint32_t, TensorDamage> damage_;
};

}  // namespace spillway
