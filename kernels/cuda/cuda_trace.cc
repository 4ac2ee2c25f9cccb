#include "kernels/cuda/cuda_trace.h"

#include <utility>

#include "kernels/base/clock.h"
#include "kernels/cuda/cuda_context.h"

namespace spillway::cuda {

namespace {

// Elapsed times are float32 milliseconds: exact enough up to here from the anchor (60 ns).
constexpr float kAnchorMilliseconds = 1000;
constexpr size_t kUncollectedMax = 256;

}  // namespace

CudaTrace::CudaTrace(Trace& trace, std::string_view label, cudaStream_t stream)
    : trace_(trace), track_(trace.track(label)), stream_(stream) {
  anchor_ = record();
  if (!broken_ && cudaEventSynchronize(anchor_) != cudaSuccess) give_up();
  anchor_seconds_ = steady_seconds();
}

CudaTrace::~CudaTrace() {
  collect();
  for (const Span& span : spans_) {
    for (cudaEvent_t event : {span.start, span.end}) free_.push_back(event);
  }
  free_.push_back(anchor_);
  for (cudaEvent_t event : free_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

// Records an event after the queued work; null: it could not be made.
cudaEvent_t CudaTrace::record() {
  cudaEvent_t event = nullptr;
  if (!free_.empty()) {
    event = free_.back();
    free_.pop_back();
  } else if (cudaEventCreateWithFlags(&event, cudaEventDefault) != cudaSuccess) {
    give_up();
    return nullptr;
  }
  if (!broken_ && cudaEventRecord(event, stream_) != cudaSuccess) give_up();
  return event;
}

void CudaTrace::give_up() {
  broken_ = true;
  forget_last_error();
}

void CudaTrace::begin(const char* name, const char* value_name, int64_t value) {
  if (spans_.size() >= kUncollectedMax) collect();
  if (broken_) return;
  spans_.push_back({name, value_name, value, record(), nullptr});
}

void CudaTrace::end() {
  if (!broken_ && !spans_.empty()) spans_.back().end = record();
}

void CudaTrace::hand_over(const Span& span) {
  float before = 0, length = 0;
  if (cudaEventElapsedTime(&before, anchor_, span.start) != cudaSuccess ||
      cudaEventElapsedTime(&length, span.start, span.end) != cudaSuccess) {
    give_up();
    return;
  }
  const double start = anchor_seconds_ + static_cast<double>(before) / 1e3;
  trace_.span(track_, span.name, start, start + static_cast<double>(length) / 1e3, span.value_name,
              span.value);
}

void CudaTrace::collect() {
  while (!broken_ && !spans_.empty() && spans_.front().end != nullptr) {
    Span span = spans_.front();
    const cudaError_t state = query(span.end);
    if (state == cudaErrorNotReady) return;
    if (state != cudaSuccess) {
      give_up();
      return;
    }
    hand_over(span);
    float from_anchor = 0;
    if (!broken_ && cudaEventElapsedTime(&from_anchor, anchor_, span.start) == cudaSuccess &&
        from_anchor > kAnchorMilliseconds) {
      anchor_seconds_ += static_cast<double>(from_anchor) / 1e3;
      std::swap(anchor_, span.start);
    }
    free_.push_back(span.start);
    free_.push_back(span.end);
    spans_.pop_front();
  }
}

}  // namespace spillway::cuda
