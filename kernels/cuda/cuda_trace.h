// CudaTrace: spans of a CUDA stream's work on the device's own clock, from a pair of events around
// every op and copy, on the track of the stream's label.
//
// Owned by a CudaContext; its thread. Spans reach the trace at collect(), at the latest when this
// is destroyed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "kernels/base/trace.h"

namespace spillway::cuda {

class CudaTrace {
 public:
  // The trace must outlive this. Blocks for a moment, to align the device's clock with the host's.
  CudaTrace(Trace& trace, std::string_view label, cudaStream_t stream);
  // REQUIRES: the stream's work is done.
  ~CudaTrace();
  CudaTrace(const CudaTrace&) = delete;
  CudaTrace& operator=(const CudaTrace&) = delete;

  // Begin and end the span of work queued in between; spans do not nest. Names are literals.
  void begin(const char* name, const char* value_name, int64_t value);
  void end();

  // Passes finished spans to the trace. Does not block.
  void collect();

 private:
  struct Span {
    const char* name;
    const char* value_name;
    int64_t value;
    cudaEvent_t start, end;
  };
  cudaEvent_t record();
  void hand_over(const Span& span);
  void give_up();

  Trace& trace_;
  const Trace::Track track_;
  const cudaStream_t stream_;
  std::deque<Span> spans_;  // Queued, oldest first; the last may have no end yet
  std::vector<cudaEvent_t> free_;
  cudaEvent_t anchor_ = nullptr;  // Happened at anchor_seconds_
  double anchor_seconds_ = 0;
  bool broken_ = false;  // A call failed; the context notices in its own calls.
};

}  // namespace spillway::cuda
