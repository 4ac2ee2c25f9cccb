#include "offload/model_source.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "kernels/base/quote.h"
#include "offload/convert/converter.h"
#include "offload/convert/fingerprint.h"
#include "offload/convert/gguf_model.h"
#include "offload/convert/hf_config.h"
#include "offload/io/file.h"
#include "offload/model_file/model_file.h"

namespace spillway {

namespace fs = std::filesystem;

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A model's name with only the characters that suit a file name.
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
    // Polls, so that the user can interrupt the wait.
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

// Warnings of NaN and infinity that the packed file records. Printed at every start, since the
// conversion, which printed them first, may have been another user's, a year ago.
std::vector<std::string> warnings_of(const std::string& path, const ModelFileTable& table) {
  std::vector<std::string> warnings;
  for (const size_t i : table.non_finite()) {
    const TensorInfo& tensor = table.tensors[i];
    warnings.push_back(
        path + ": " +
        damage_text({tensor.name(), {tensor.nan_count, tensor.inf_count}, 0}, tensor.format));
  }
  return warnings;
}

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
  ModelSource source{packed, true, true, report.notes};
  for (const TensorDamage& damage : report.damage) {
    source.warnings.push_back(directory + ": " + damage_text(damage, report.format));
  }
  return source;
}

// `directory` may be a GGUF file, too.
Result<ModelSource> resolve_directory(const std::string& directory,
                                      const ModelSourceOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(const HfConfig config, read_hf_config(directory));
  if (options.accepts) SPILLWAY_RETURN_IF_ERROR(options.accepts(config.shape));
  SPILLWAY_ASSIGN_OR_RETURN(const std::string fingerprint, checkpoint_fingerprint(directory));
  if (options.accepts_source) {
    SPILLWAY_RETURN_IF_ERROR(options.accepts_source(source_of(config.shape.name, fingerprint)));
  }
  std::string cache = options.cache_directory;
  if (cache.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(cache, default_cache_directory());
  }
  SPILLWAY_RETURN_IF_ERROR(make_directory(cache));
  // "blocks": the formats of a GGUF file's tensors, which earlier versions widened to 16 bits.
  const std::string natural = is_gguf_path(directory) ? "blocks" : "auto";
  const std::string format(options.format         ? std::string(format_name(*options.format))
                           : options.bf16_for_f16 ? natural + "-bf16"
                                                  : natural);
  // Each kind of device has its own file.
  const MatrixLayout layout = options.layout
                                  ? options.layout(options.format.value_or(Format::kBF16))
                                  : MatrixLayout::kPanels16;
  const std::string packed_for =
      layout == MatrixLayout::kPanels16 ? "" : "-" + std::string(layout_name(layout));
  const auto packed_path = [&](const std::string& print) {
    return cache + "/" + file_stem(config.shape.name) + "-" + print.substr(0, 16) + "-" + format +
           packed_for + ".spill";
  };
  const std::string packed = packed_path(fingerprint);
  SPILLWAY_ASSIGN_OR_RETURN(const CacheLock lock, CacheLock::take(packed, options));
  const Result<ModelFile> cached = ModelFile::open(packed);
  if (cached.ok() && cached->table().file_id != options.damaged) {
    return ModelSource{packed, true, false, warnings_of(packed, cached->table())};
  }
  // A file of another version or a damaged one is converted again, but not after a disk error.
  const Code code = cached.status().code();
  if (code == Code::kIoError) return cached.status();
  if (options.announce && code == Code::kNotFound) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::string old, checkpoint_fingerprint_of_stamps(directory));
    const std::string before = packed_path(old);
    if (fs::exists(before)) {
      options.announce(before +
                       " is not used any more: an earlier version named it by sizes and "
                       "times alone, which another model may share; it can be deleted");
    }
  } else if (options.announce) {
    options.announce(cached.ok()
                         ? packed +
                               ": weights in it do not match their checksums; the "
                               "model is packed again"
                         : std::string(cached.status().message()) + "; the model is packed again");
  }
  return convert_into(directory, packed, options);
}

// The error for a file that is not a packed model: its kind and what to pass instead; OK if its
// kind is unknown.
Status another_kind(const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(const File file, File::open_to_read(path));
  SPILLWAY_ASSIGN_OR_RETURN(const FileStamp stamp, file.stamp());
  std::string head(std::min<uint64_t>(stamp.bytes, 16), '\0');
  SPILLWAY_RETURN_IF_ERROR(file.read(0, std::as_writable_bytes(std::span(head))));
  if (head.starts_with("GGUF")) {
    return invalid_argument(path + " is a GGUF file; it is read when its name ends in .gguf");
  }
  // A safetensors file begins with the length of its header, 8 bytes, and the header.
  const bool safetensors = path.ends_with(".safetensors") || head.find("{\"") == 8;
  const bool torch = path.ends_with(".bin") || path.ends_with(".pt") || head.starts_with("PK");
  if (!safetensors && !torch) return {};
  fs::path parent = fs::path(path).parent_path();
  if (parent.empty()) parent = ".";
  return invalid_argument(path + " is " + (safetensors ? "a safetensors" : "a PyTorch") +
                          " file, weights alone; give the directory that holds it with its "
                          "config.json and tokenizer: " +
                          parent.string());
}

}  // namespace

Result<std::string> default_cache_directory() {
  if (std::string set = environment("SPILLWAY_CACHE"); !set.empty()) return set;
  if (std::string set = environment("XDG_CACHE_HOME"); !set.empty()) return set + "/spillway";
  if (std::string home = environment("HOME"); !home.empty()) return home + "/.cache/spillway";
  return not_found("no folder for packed models: set SPILLWAY_CACHE, or use 'spillway convert'");
}

Result<ModelFile> open_packed(const std::string& path) {
  Result<ModelFile> file = ModelFile::open(path);
  if (file.status().code() == Code::kCorruption) SPILLWAY_RETURN_IF_ERROR(another_kind(path));
  return file;
}

Result<ModelSource> resolve_model(const std::string& model, const ModelSourceOptions& options) {
  std::error_code error;
  const fs::file_status status = fs::status(model, error);
  if (fs::is_directory(status)) return resolve_directory(model, options);
  if (fs::exists(status) && is_gguf_path(model)) return resolve_directory(model, options);
  if (fs::is_regular_file(status)) {
    SPILLWAY_ASSIGN_OR_RETURN(const ModelFile file, open_packed(model));
    return ModelSource{model, false, false, warnings_of(model, file.table())};
  }
  return not_found(
      in_quotes(model) +
      " is neither a model directory nor a .gguf or .spill file; for random weights of a known "
      "shape add --dummy-weights");
}

}  // namespace spillway
