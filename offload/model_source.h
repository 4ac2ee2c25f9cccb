// Resolves the user's MODEL to a packed file that can be opened: a .spill file is one, a model
// directory or a .gguf file is converted into a cache folder on first use.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/format.h"
#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "kernels/weight_layout.h"
#include "offload/model_cache.h"
#include "offload/model_file/model_file.h"

namespace spillway {

struct ModelSourceOptions {
  std::optional<Format> format;  // Format to pack a directory in; none: the checkpoint's own.
  bool bf16_for_f16 = false;     // As in ConvertOptions, like `layout`.
  std::function<MatrixLayout(Format)> layout;
  std::string cache_directory;  // Empty: default_cache_directory().
  bool lenient_header = false;  // safetensors_reader.h

  // Whether the caller can compute with such a model; called before a conversion, which takes
  // minutes and gigabytes. Its error is returned. May be empty.
  std::function<Status(const ModelShape&)> accepts;

  // Likewise whether it is the wanted checkpoint, by what ModelFileTable::source will be for the
  // directory. May be empty.
  std::function<Status(const std::string&)> accepts_source;

  // Called once before a conversion starts, with what it will write and where, and when another
  // process is waited for: a line for people. May be empty.
  std::function<void(const std::string&)> announce;

  // As ConvertOptions::progress. May be empty.
  std::function<bool(uint64_t, uint64_t)> progress;

  // The file id of a cached file whose weights did not match their checksums: it is made anew,
  // unless another process did that already.
  std::optional<std::array<uint8_t, 16>> damaged;
};

struct ModelSource {
  std::string path;                   // The packed file's path.
  bool cached = false;                // A directory's, in the cache: it can be made anew.
  bool converted = false;             // Converted by this call.
  std::vector<std::string> warnings;  // NaN and infinity
  // Keep it while the file is used, so that nobody removes it from the cache. Null: as ModelUse.
  std::shared_ptr<const ModelUse> use;
};

// $SPILLWAY_CACHE, else $XDG_CACHE_HOME/spillway, else ~/.cache/spillway; kNotFound if none is set.
Result<std::string> default_cache_directory();

// The packed file of `model`, a .spill file, a model directory or a .gguf file. The cached file's
// name carries the checkpoint's fingerprint and the format, so that a changed directory is
// converted again; two processes that want the same one convert it once. kNotFound: there is no
// such path, or it is neither. kInvalidArgument: it is a file of another kind, and the message says
// which and what to do. kCapacity: not enough disk space, with needed and free bytes. Blocks, for
// minutes when it converts.
Result<ModelSource> resolve_model(const std::string& model, const ModelSourceOptions& options);

// Why there is no model of that name, and what to do: people name repositories and addresses, which
// nothing here downloads. kNotFound.
Status no_such_model(const std::string& model);

// Opens the packed file `path`. Another kind of file (a checkpoint without its directory) is
// kInvalidArgument; the message says what to pass instead.
Result<ModelFile> open_packed(const std::string& path);

}  // namespace spillway
