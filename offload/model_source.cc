#include "offload/model_source.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "offload/convert/converter.h"
#include "offload/convert/fingerprint.h"
#include "offload/convert/hf_config.h"
#include "offload/file.h"
#include "offload/model_file.h"
#include "policy/json_reader.h"

namespace spillway {

namespace fs = std::filesystem;

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Letters of a model's name that are good in a file name.
std::string file_stem(const std::string& name) {
  std::string stem;
  for (const char c : name.substr(0, 64)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_';
    stem += plain ? c : '_';
  }
  return stem.empty() || stem.front() == '.' ? "model" + stem : stem;
}

// Holds <path>.lock while the packed file is looked for and made.
class CacheLock {
 public:
  static Result<CacheLock> take(const std::string& path, const ModelSourceOptions& options) {
    SPILLWAY_ASSIGN_OR_RETURN(File file, File::open(path + ".lock", O_RDWR | O_CREAT));
    bool announced = false;
    // Polling, so that an interrupted user gets away.
    while (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return io_error("lock " + file.path(), errno);
      if (!announced && options.announce) {
        options.announce("another process is converting this model; waiting for it");
      }
      announced = true;
      if (options.progress && !options.progress(0, 0)) {
        return Status(Code::kCancelled, "interrupted");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    return CacheLock(std::move(file));
  }

 private:
  explicit CacheLock(File file) : file_(std::move(file)) {}
  File file_;  // Closing it unlocks.
};

Status make_directory(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    return io_error("make the cache folder " + path + " (SPILLWAY_CACHE names another)",
                    error.value());
  }
  return {};
}

Result<ModelSource> convert_into(const std::string& directory, const std::string& packed,
                                 const ModelSourceOptions& options) {
  if (options.announce) {
    options.announce("converting " + directory + " to " + packed + ", once");
  }
  ConvertOptions convert;
  convert.format = options.format;
  convert.bf16_for_f16 = options.bf16_for_f16;
  convert.layout = options.layout;
  convert.lenient_header = options.lenient_header;
  convert.progress = options.progress;
  SPILLWAY_ASSIGN_OR_RETURN(const ConvertReport report,
                            convert_checkpoint(directory, packed, convert));
  ModelSource source{packed, true, report.notes};
  for (const TensorDamage& damage : report.damage) {
    source.warnings.push_back(directory + ": " + damage_text(damage, report.format));
  }
  return source;
}

Result<ModelSource> resolve_directory(const std::string& directory,
                                      const ModelSourceOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(const HfConfig config, read_hf_config(directory));
  if (options.accepts) SPILLWAY_RETURN_IF_ERROR(options.accepts(config.shape));
  SPILLWAY_ASSIGN_OR_RETURN(const std::string fingerprint, checkpoint_fingerprint(directory));
  std::string cache = options.cache_directory;
  if (cache.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(cache, default_cache_directory());
  }
  SPILLWAY_RETURN_IF_ERROR(make_directory(cache));
  const std::string format(options.format         ? dtype_name(*options.format)
                           : options.bf16_for_f16 ? "auto-bf16"
                                                  : "auto");
  // Each kind of device has its own file.
  const MatrixLayout layout = options.layout ? options.layout(options.format.value_or(DType::kBF16))
                                             : MatrixLayout::kPanels16;
  const std::string packed_for =
      layout == MatrixLayout::kPanels16 ? "" : "-" + std::string(layout_name(layout));
  const std::string packed = cache + "/" + file_stem(config.shape.name) + "-" +
                             fingerprint.substr(0, 16) + "-" + format + packed_for + ".spill";
  SPILLWAY_ASSIGN_OR_RETURN(const CacheLock lock, CacheLock::take(packed, options));
  const Result<ModelFile> cached = ModelFile::open(packed);
  if (cached.ok()) return ModelSource{packed, false, {}};
  // A file of another version or a damaged one is made anew; a disk that fails is not.
  const Code code = cached.status().code();
  if (code == Code::kIoError) return cached.status();
  return convert_into(directory, packed, options);
}

}  // namespace

Result<std::string> default_cache_directory() {
  if (std::string set = environment("SPILLWAY_CACHE"); !set.empty()) return set;
  if (std::string set = environment("XDG_CACHE_HOME"); !set.empty()) return set + "/spillway";
  if (std::string home = environment("HOME"); !home.empty()) return home + "/.cache/spillway";
  return not_found("no folder for packed models: set SPILLWAY_CACHE, or use 'spillway convert'");
}

Result<ModelSource> resolve_model(const std::string& model, const ModelSourceOptions& options) {
  std::error_code error;
  const fs::file_status status = fs::status(model, error);
  if (fs::is_directory(status)) return resolve_directory(model, options);
  if (fs::is_regular_file(status)) {
    SPILLWAY_ASSIGN_OR_RETURN(const ModelFile file, ModelFile::open(model));
    return ModelSource{model, false, {}};
  }
  return not_found(in_quotes(model) +
                   " is neither a model directory nor a .spill file; for random weights of a known "
                   "shape add --dummy-weights");
}

}  // namespace spillway
