// MODEL, opened as far as a plan needs it: its shape and the table of its packed file. A model
// directory is packed first, once. Blocks; not for two threads at once.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "kernels/device_traits.h"
#include "offload/model_file/model_file.h"
#include "offload/model_source.h"
#include "scheduler/planning/engine_flags.h"

namespace spillway {

struct ModelToPlan {
  std::string name;                       // What clients call it
  std::string source;                     // Which checkpoint: changes when it changes
  std::shared_ptr<const ModelFile> file;  // Null: dummy weights
  std::shared_ptr<const ModelFileTable> table;
  bool cached = false;  // The packed file is a directory's, in the cache

  const ModelShape& shape() const { return table->shape; }
};

struct ModelToPlanOptions {
  // As in ModelSourceOptions. May be empty.
  std::function<Status(const std::string&)> accepts_source;
  std::function<bool(uint64_t done, uint64_t total)> progress;
  std::optional<decltype(ModelFileTable::file_id)> damaged;
  std::function<void(const std::string&)> say;  // One line for people, without a newline
};

// `model`: a directory, a packed file or, with --dummy-weights, a shape's name. Of the flags it
// reads format, seed and dummy_weights. kInvalidArgument, kNotFound, kCorruption: the message names
// the file and the next step.
Result<ModelToPlan> open_model_to_plan(const std::string& model, const EngineFlags& flags,
                                       const DeviceTraits& device,
                                       const ModelToPlanOptions& options);

}  // namespace spillway
