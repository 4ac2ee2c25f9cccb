// Looks through the input of a batch before anything of it runs: a file is right as a whole or
// refused as a whole, as OpenAI's API does. Blocks for the disk; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/api/completion.h"
#include "server/batches/batch_input.h"
#include "server/batches/batch_record.h"

namespace spillway {

struct BatchCheck {
  InputSummary summary;
  std::vector<BatchFault> faults;   // The first kBatchFaultsMax; none: it is right
  std::vector<std::string> models;  // That the lines name
};

// Each line must be a JSON object with a custom_id of its own, the method POST (or none),
// `endpoint` as url and a body that does not stream and names a model that is served, if any. What
// else may be wrong with a body is an error of its line when it runs. `input`: nothing was read
// yet; rewound at the end. `stop`: asked now and then; true ends with kCancelled.
Result<BatchCheck> check_batch(BatchInput& input, const std::string& endpoint,
                               const ApiContext& context, int64_t lines_max,
                               const std::function<bool()>& stop);

}  // namespace spillway
