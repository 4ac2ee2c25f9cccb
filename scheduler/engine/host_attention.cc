#include "scheduler/engine/host_attention.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/clock.h"
#include "scheduler/engine/sweep.h"

namespace spillway {

namespace {

uint64_t matrix_bytes(int64_t rows, int64_t columns, DType dtype) {
  return round_up(static_cast<uint64_t>(rows * columns) * dtype_bytes(dtype), 64);
}

uint64_t slot_bytes(const ModelShape& shape, DType activation, int64_t rows_max) {
  return matrix_bytes(rows_max, shape.qkv_width(), DType::kF32) +
         matrix_bytes(rows_max, shape.query_width(), activation);
}

size_t run_bytes(const MatrixView& matrix, int64_t rows) {
  return static_cast<size_t>(rows * matrix.columns) * dtype_bytes(matrix.dtype);
}

}  // namespace

uint64_t HostAttention::bytes(const ModelShape& shape, DType activation, int64_t rows_max) {
  return 2 * slot_bytes(shape, activation, rows_max);
}

HostAttention::HostAttention(Device& device, Stream& compute, Device& host, const ModelShape& shape,
                             Trace* trace)
    : compute_(compute),
      down_(device.new_stream("host attention, device -> host")),
      up_(device.new_stream("host attention, host -> device")),
      host_(host.new_stream("host attention")),
      heads_(shape.heads),
      scale_(shape.attention_scale),
      trace_(trace) {
  SPILLWAY_CHECK(device.discrete() && !host.discrete());
  if (trace_ != nullptr) track_ = trace_->track("wait");
}

Result<std::unique_ptr<HostAttention>> HostAttention::open(Device& device, Stream& compute,
                                                           Device& host, const ModelShape& shape,
                                                           DType activation, int64_t rows_max,
                                                           Trace* trace) {
  std::unique_ptr<HostAttention> opened(new HostAttention(device, compute, host, shape, trace));
  SPILLWAY_ASSIGN_OR_RETURN(opened->memory_,
                            device.allocate(Memory::kPinned, bytes(shape, activation, rows_max)));
  std::byte* memory = opened->memory_.data();
  for (Slot& slot : opened->slots_) {
    slot.qkv = dense_matrix(memory, DType::kF32, rows_max, shape.qkv_width());
    slot.attended = dense_matrix(memory + matrix_bytes(rows_max, shape.qkv_width(), DType::kF32),
                                 activation, rows_max, shape.query_width());
    slot.items.reserve(static_cast<size_t>(rows_max));
    slot.runs.reserve(static_cast<size_t>(rows_max));
    memory += slot_bytes(shape, activation, rows_max);
  }
  return opened;
}

void HostAttention::begin(std::span<const AttentionItem> items, const MatrixView& qkv) {
  SPILLWAY_CHECK(under_way_ < slots_.size());
  Slot& slot = slots_[(first_ + under_way_++) % slots_.size()];
  SPILLWAY_CHECK(qkv.columns == slot.qkv.columns && qkv.stride == qkv.columns);
  slot.items.assign(items.begin(), items.end());
  slot.runs.clear();
  slot.rows = 0;
  for (AttentionItem& item : slot.items) {
    SPILLWAY_CHECK(item.is_step());
    const bool next =
        !slot.runs.empty() && slot.runs.back().row + slot.runs.back().count == item.first_row;
    if (!next) slot.runs.push_back({item.first_row, slot.rows, 0});
    slot.runs.back().count += item.tokens;
    item.first_row = slot.rows;
    slot.rows += item.tokens;
  }
  SPILLWAY_CHECK(slot.rows <= slot.qkv.rows);
  down_->wait(compute_.record());
  for (const Run& run : slot.runs) {
    const size_t bytes = run_bytes(qkv, run.count);
    down_->copy(slot.qkv.row(run.slot_row), qkv.row(run.row), bytes);
    bytes_down_ += bytes;
  }
  slot.down = down_->record();
}

Status HostAttention::wait(const Slot& slot) {
  const double start = steady_seconds();
  const Status status = slot.down.wait();
  const double end = steady_seconds();
  if (trace_ != nullptr && end - start > kWaitShownSeconds) {
    trace_->span(track_, "wait for queries", start, end);
  }
  return status;
}

Status HostAttention::finish(const KvLayout& kv, const MatrixView& attended) {
  SPILLWAY_CHECK(under_way_ > 0);
  Slot& slot = slots_[first_];
  first_ = (first_ + 1) % slots_.size();
  --under_way_;
  // The slot's last upload was queued before the work that made these rows.
  SPILLWAY_RETURN_IF_ERROR(wait(slot));
  attention(*host_, {.qkv = slot.qkv.slice_rows(0, slot.rows),
                     .items = slot.items,
                     .heads = heads_,
                     .kv = kv,
                     .out = slot.attended.slice_rows(0, slot.rows),
                     .scale = scale_});
  for (const AttentionItem& item : slot.items) {
    const int64_t rows = item.budget.attended(item.position + item.tokens - 1);
    bytes_attended_ += static_cast<uint64_t>(rows * 2 * kv.heads) * kv.row_bytes();
  }
  for (const Run& run : slot.runs) {
    const size_t bytes = run_bytes(attended, run.count);
    up_->copy(attended.row(run.row), slot.attended.row(run.slot_row), bytes);
    bytes_up_ += bytes;
  }
  compute_.wait(up_->record());
  return {};
}

void HostAttention::abandon() {
  first_ = under_way_ = 0;
  // The compute stream reports errors of these copies, too.
  (void)down_->record().wait().ok();
  (void)up_->record().wait().ok();
}

}  // namespace spillway
