// The MODEL argument, opened as far as a plan needs it: its shape and the table of its packed file.
// A model directory is packed first, once. Blocks; one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "kernels/device_traits.h"
#include "offload/model_file/model_file.h"
#include "offload/model_source.h"
#include "offload/slab_source.h"
#include "scheduler/planning/engine_flags.h"

namespace spillway {

struct ModelToPlan {
  std::string name;                       // The name that clients use
  std::string source;                     // Identifies the checkpoint and its version
  std::shared_ptr<const ModelFile> file;  // Null: of a checkpoint, or dummy weights
  // With --weights-from checkpoint, or of one of several ranks; else null
  std::shared_ptr<const SlabSource> slabs;
  std::shared_ptr<const ModelFileTable> table;
  bool cached = false;                  // The packed file is in the cache, made from a directory
  std::shared_ptr<const ModelUse> use;  // Keeps the packed file from being removed from there

  const ModelShape& shape() const { return table->shape; }
  bool dummy() const { return !file && !slabs; }
};

struct ModelToPlanOptions {
  // As in ModelSourceOptions. May be empty.
  std::function<Status(const std::string&)> accepts_source;
  std::function<bool(uint64_t done, uint64_t total)> progress;
  std::optional<decltype(ModelFileTable::file_id)> damaged;
  std::function<void(const std::string&)> say;  // Takes one line for the user, without a newline
};

// `model`: a directory, a packed file or, with --dummy-weights, a shape's name. Of the flags it
// reads format, seed, weights_from, dummy_weights, ranks and rank: of several ranks the model is
// what this one has. kInvalidArgument, kNotFound, kCorruption: the message names the file and the
// next step.
Result<ModelToPlan> open_model_to_plan(const std::string& model, const EngineFlags& flags,
                                       const DeviceTraits& device,
                                       const ModelToPlanOptions& options);

}  // namespace spillway
