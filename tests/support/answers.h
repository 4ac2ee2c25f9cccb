// What two runs answer to the same requests, and how far it may lie apart.
//
// On the CPU, and on the emulated device, not at all: tokens do not depend on placement, block or
// micro-batch. A GPU's matrix products are cuBLAS's, which chooses how it sums
// by the shapes of a product, so that there it holds for runs whose products have the same shapes;
// others differ by rounding. In float32 that changes no token of these tests. In narrow formats
// tokens may differ where two are about as likely, so log-probabilities are compared up to there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler/request.h"
#include "server/runtime.h"
#include "tests/support/collecting_sink.h"

namespace spillway::test {

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;  // With ask_logprobs()
  int64_t cached_tokens = 0;            // Of its prompt, not computed; not a part of the answer
};
using Answers = std::vector<Answer>;

// How far apart log-probabilities (natural) of the same tokens may lie when only the order of sums
// differs. 0, for float32: tokens are the same.
double rounding_tolerance(Format format, Format kv_format);

// The same between two runs of `runtime`'s device: 0 unless its sums depend on shapes.
double placement_tolerance(Runtime& runtime, Format format, Format kv_format);

// Asks for the log-probabilities that difference() looks at.
void ask_logprobs(std::vector<Request>* requests);

// REQUIREs that the model opens.
std::unique_ptr<Runtime> open_runtime(const std::string& checkpoint, const EngineFlags& flags);

// Waits for every sink's end, which must be a good one.
Answers answers_of(const std::vector<std::shared_ptr<CollectingSink>>& sinks);

// Submits the requests and waits.
Answers run_together(Runtime& runtime, const std::vector<Request>& requests);

// The same, where some are submitted while others run.
Answers run_arriving(Runtime& runtime, const std::vector<Request>& requests);

// The first difference between runs of the same requests, in words; empty: they are the same.
// With a tolerance: of each sequence the log-probabilities are compared up to the first token that
// differs. A greedy one's must be about as likely there; a draw may fall to either side of a border
// between two. By a rule that chooses what to keep by scores only the first token is compared,
// since of two rows with scores about as high either may stay.
std::string difference(const std::vector<Request>& requests, const Answers& expected,
                       const Answers& found, double tolerance);

}  // namespace spillway::test
