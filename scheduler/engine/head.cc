#include "scheduler/engine/head.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/rank_shape.h"
#include "kernels/ops.h"

namespace spillway {

namespace {

constexpr auto kPartRows = static_cast<size_t>(kHeadRows);

uint64_t row_bytes(const ModelShape& shape) {
  return static_cast<uint64_t>(shape.vocabulary) * sizeof(float);
}

}  // namespace

void LogitsSink::on_sampled(size_t, int64_t, int32_t) {
  SPILLWAY_CHECK(false);  // A sink with sample rules overrides it.
}

uint64_t Head::host_bytes(const ModelShape& shape, int64_t selected_rows) {
  return kPartRows * row_bytes(shape) + static_cast<uint64_t>(selected_rows) * sizeof(int32_t);
}

Head::Head(Stream& stream, const ModelShape& shape, const EngineBuffers& buffers, Buffer host,
           RankGroup* ranks)
    : stream_(stream), shape_(shape), buffers_(buffers), ranks_(ranks), host_(std::move(host)) {
  const auto rows = static_cast<size_t>(buffers.selected.rows);
  SPILLWAY_CHECK(rows % kPartRows == 0);
  wanted_.reserve(rows);
  sampled_.reserve(rows);
  rows_.reserve(kPartRows);
  rules_.reserve(kPartRows);
}

// Waits: copies that a failed sweep had queued may still write to host memory.
Head::~Head() {
  if (host_.bytes() > 0) (void)stream_.record().wait();
}

void Head::begin(const LayerWeights& weights, LogitsSink& sink, RankPeers* peers) {
  weights_ = &weights;
  sink_ = &sink;
  peers_ = peers;
  wanted_.clear();
  queued_ = handed_ = whole_ = 0;
}

// Appends the rows to those already selected, as many at once as a part holds.
Status Head::select(const MatrixView& hidden, std::span<const WantedRow> wanted) {
  const WeightSlab rows{hidden.data, hidden.rows};
  const WeightMatrix table{std::span(&rows, 1), Format::kF32,   MatrixLayout::kRows,
                           hidden.rows,         hidden.columns, hidden.rows};
  while (!wanted.empty()) {
    const size_t room = kPartRows - (wanted_.size() - queued_);
    const auto some = wanted.first(std::min(room, wanted.size()));
    rows_.clear();
    for (const WantedRow& one : some) rows_.push_back(one.row);
    const auto first = static_cast<int64_t>(wanted_.size());
    gather_rows(stream_,
                {.table = table,
                 .rows = rows_,
                 .out = buffers_.selected.slice_rows(first, static_cast<int64_t>(some.size()))});
    wanted_.insert(wanted_.end(), some.begin(), some.end());
    wanted = wanted.subspan(some.size());
    if (wanted_.size() - queued_ == kPartRows) SPILLWAY_RETURN_IF_ERROR(queue());
  }
  return {};
}

Status Head::finish() {
  SPILLWAY_RETURN_IF_ERROR(queue());
  SPILLWAY_RETURN_IF_ERROR(hand_out());
  if (peers_ != nullptr) peers_->ask_logits(0);
  return {};
}

Status Head::follow(const LayerWeights& weights, RankPeers& peers) {
  weights_ = &weights;
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const int64_t rows, peers.next_logits());
    if (rows == 0) return {};
    SPILLWAY_CHECK(rows > 0 && rows <= kHeadRows);
    const bool narrow = shape_.embedding != shape_.hidden;
    const MatrixView& input = narrow ? buffers_.projected : buffers_.normed;
    SPILLWAY_RETURN_IF_ERROR(share_logits(input.slice_rows(0, rows)));
  }
}

// Queues the logits of the rows selected since the last call, and their sampling.
Status Head::queue() {
  const size_t count = wanted_.size() - queued_;
  if (count == 0) return {};
  if (host_.bytes() == 0) return run_in_place();
  size_t whole = 0;
  for (size_t i = queued_; i < wanted_.size(); ++i) whole += wanted_[i].sample.count == 0 ? 1 : 0;
  if (whole_ + whole > kPartRows) SPILLWAY_RETURN_IF_ERROR(hand_out());
  SPILLWAY_RETURN_IF_ERROR(compute(queued_, count));
  for (size_t i = 0; i < count; ++i) {
    if (wanted_[queued_ + i].sample.count == 0) copy_to_host(i, whole_++);
  }
  sample(queued_, count, buffers_.sampled + queued_);
  queued_ = wanted_.size();
  if (wanted_.size() < static_cast<size_t>(buffers_.selected.rows)) return {};
  SPILLWAY_RETURN_IF_ERROR(hand_out());
  wanted_.clear();
  queued_ = handed_ = 0;
  return {};
}

// Runs a part where the host reads logits in place; the next part overwrites them.
Status Head::run_in_place() {
  SPILLWAY_RETURN_IF_ERROR(compute(0, wanted_.size()));
  sampled_.assign(wanted_.size(), -1);
  sample(0, wanted_.size(), sampled_.data());
  SPILLWAY_RETURN_IF_ERROR(stream_.record().wait());
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const WantedRow& wanted = wanted_[i];
    if (sampled_[i] >= 0) {
      sink_->on_sampled(wanted.item, wanted.token, sampled_[i]);
    } else {
      sink_->on_logits(
          wanted.item, wanted.token,
          {buffers_.logits.f32(static_cast<int64_t>(i)), static_cast<size_t>(shape_.vocabulary)});
    }
  }
  wanted_.clear();
  return {};
}

// Waits for the queued parts and delivers their results.
Status Head::hand_out() {
  if (handed_ == queued_) return {};
  sampled_.assign(wanted_.size(), -1);
  bool any = false;
  for (size_t i = handed_; i < queued_; ++i) any = any || wanted_[i].sample.count > 0;
  const size_t bytes = (queued_ - handed_) * sizeof(int32_t);
  std::byte* indices = host_.data() + kPartRows * row_bytes(shape_);
  if (any) stream_.copy(indices, reinterpret_cast<std::byte*>(buffers_.sampled + handed_), bytes);
  SPILLWAY_RETURN_IF_ERROR(stream_.record().wait());
  if (any) std::memcpy(sampled_.data() + handed_, indices, bytes);
  // Without a sampled token the sink must inspect the row for the reason. Another part's logits may
  // have overwritten it: it is computed again.
  bool again = false;
  for (size_t i = handed_; i < queued_; ++i) {
    again = again || (wanted_[i].sample.count > 0 && sampled_[i] < 0);
  }
  for (size_t row = 0; handed_ < queued_;) {
    const size_t count = std::min(kPartRows, queued_ - handed_);
    if (again) {
      SPILLWAY_RETURN_IF_ERROR(compute(handed_, count));
      row = 0;
      for (size_t i = 0; i < count; ++i) {
        if (comes_whole(handed_ + i)) copy_to_host(i, row++);
      }
      SPILLWAY_RETURN_IF_ERROR(stream_.record().wait());
      row = 0;
    }
    for (const size_t last = handed_ + count; handed_ < last; ++handed_) {
      const WantedRow& wanted = wanted_[handed_];
      if (comes_whole(handed_)) {
        sink_->on_logits(wanted.item, wanted.token, host_row(row++));
      } else {
        sink_->on_sampled(wanted.item, wanted.token, sampled_[handed_]);
      }
    }
  }
  whole_ = 0;
  return {};
}

// Whether a row is delivered as logits. REQUIRES: it was delivered or is about to be.
bool Head::comes_whole(size_t index) const {
  return wanted_[index].sample.count == 0 || sampled_[index] < 0;
}

// Computes the logits of these selected rows.
Status Head::compute(size_t first, size_t count) {
  const auto rows = static_cast<int64_t>(count);
  const MatrixView selected = buffers_.selected.slice_rows(static_cast<int64_t>(first), rows);
  MatrixView input = buffers_.normed.slice_rows(0, rows);
  if (shape_.final_norm) {
    normalize(stream_, {.kind = shape_.norm,
                        .epsilon = shape_.norm_epsilon,
                        .in = selected,
                        .weight = weights_->vector(WeightRole::kFinalNormWeight),
                        .bias = weights_->vector(WeightRole::kFinalNormBias),
                        .out = input});
  } else {
    convert_rows(stream_, {.in = selected, .out = input});
  }
  const WeightMatrix& project_out = weights_->matrix(WeightRole::kProjectOut);
  if (project_out.rows != 0) {
    const MatrixView projected = buffers_.projected.slice_rows(0, rows);
    linear(stream_, {.in = input, .weight = project_out, .out = projected});
    input = projected;
  }
  if (ranks_ == nullptr) {
    linear(stream_, {.in = input,
                     .weight = weights_->matrix(WeightRole::kHead),
                     .scale = shape_.logits_scale,
                     .out = buffers_.logits.slice_rows(0, rows)});
    return {};
  }
  peers_->ask_logits(rows);
  SPILLWAY_RETURN_IF_ERROR(share_logits(input));
  for (int64_t rank = 0; rank < shape_.ranks; ++rank) {
    const RowSpan span = head_rows(shape_.vocabulary, rank, shape_.ranks);
    convert_rows(stream_, {.in = part(rank, rows),
                           .out = buffers_.logits.slice_rows(0, rows).slice_columns(span.first,
                                                                                    span.count)});
  }
  return {};
}

// The logits of all ranks' parts of the head, of inputs that the first rank has.
Status Head::share_logits(const MatrixView& input) {
  const auto input_bytes =
      static_cast<size_t>(input.rows * input.columns) * dtype_bytes(input.dtype);
  SPILLWAY_RETURN_IF_ERROR(ranks_->broadcast(stream_, input.data, input_bytes, 0));
  const MatrixView own = part(shape_.rank, input.rows);
  linear(stream_, {.in = input,
                   .weight = weights_->matrix(WeightRole::kHead),
                   .scale = shape_.logits_scale,
                   .out = own});
  const auto bytes = static_cast<size_t>(own.rows * own.stride) * sizeof(float);
  return ranks_->all_gather(stream_, own.data, buffers_.logit_parts.data, bytes);
}

// A rank's part of the logits of so many rows, as they are gathered: all parts are as wide as the
// first.
MatrixView Head::part(int64_t rank, int64_t rows) const {
  const int64_t width = buffers_.logit_parts.columns;
  MatrixView own = dense_matrix(buffers_.logit_parts.row(rank * rows), DType::kF32, rows, width);
  own.columns = head_rows(shape_.vocabulary, rank, shape_.ranks).count;
  return own;
}

// Samples from the logits of the rows that have a sample rule, destroying them; other rows are
// unchanged.
void Head::sample(size_t first, size_t count, int32_t* sampled) {
  rules_.clear();
  bool any = false;
  for (const WantedRow& wanted : std::span(wanted_).subspan(first, count)) {
    rules_.push_back(wanted.sample);
    any = any || wanted.sample.count > 0;
  }
  if (!any) return;
  sample_rows(stream_, {.in = buffers_.logits.slice_rows(0, static_cast<int64_t>(count)),
                        .rules = rules_,
                        .out = sampled});
}

// Copies a row of the part whose logits were computed last to host memory.
void Head::copy_to_host(size_t row, size_t to) {
  stream_.copy(host_.data() + to * row_bytes(shape_),
               buffers_.logits.row(static_cast<int64_t>(row)), row_bytes(shape_));
}

std::span<float> Head::host_row(size_t index) const {
  return {reinterpret_cast<float*>(host_.data() + index * row_bytes(shape_)),
          static_cast<size_t>(shape_.vocabulary)};
}

}  // namespace spillway
