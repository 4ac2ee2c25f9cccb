#include "offload/model_source.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "kernels/base/quote.h"
#include "offload/convert/converter.h"
#include "offload/convert/fingerprint.h"
#include "offload/convert/gguf_model.h"
#include "offload/convert/hf_config.h"
#include "offload/io/file.h"
#include "offload/model_cache.h"
#include "offload/model_file/model_file.h"

namespace spillway {

namespace fs = std::filesystem;

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

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

Result<CacheLock> lock_place(const std::string& packed, const ModelSourceOptions& options) {
  bool announced = false;
  return CacheLock::take(packed, [&]() -> Status {
    if (!announced && options.announce) {
      options.announce("another process is converting this model; waiting for it");
    }
    announced = true;
    if (!options.progress || options.progress(0, 0)) return {};
    return Status(Code::kCancelled, "interrupted");
  });
}

Result<ModelSource> convert_into(const std::string& directory, const std::string& packed,
                                 const ModelSourceOptions& options) {
  ConvertOptions convert;
  std::error_code error;
  convert.origin = fs::absolute(directory, error).lexically_normal().string();
  if (options.announce) {
    convert.announce = [&](const std::string& line) { options.announce(line + "; done once"); };
  }
  convert.room_advice =
      "free some ('spillway cache' lists the packed models there and removes unused ones), or name "
      "a folder on another disk in SPILLWAY_CACHE; bf16 and f16 safetensors can also be streamed "
      "where they lie (--weights-from checkpoint)";
  convert.format = options.format;
  convert.bf16_for_f16 = options.bf16_for_f16;
  convert.layout = options.layout;
  convert.lenient_header = options.lenient_header;
  convert.progress = options.progress;
  SPILLWAY_ASSIGN_OR_RETURN(const ConvertReport report,
                            convert_checkpoint(directory, packed, convert));
  ModelSource source{packed, true, true, {}, ModelUse::begin(packed)};
  for (const std::string& note : report.notes) {
    if (options.announce) options.announce("note: " + note);
  }
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
  const auto packed_path = [&](const std::string& print) {
    return cache + "/" + cached_file_name(config.shape.name, print, format, layout);
  };
  const std::string packed = packed_path(fingerprint);
  SPILLWAY_ASSIGN_OR_RETURN(const CacheLock lock, lock_place(packed, options));
  const Result<ModelFile> cached = ModelFile::open(packed);
  // An earlier version ended sequences at a model's window instead of sliding it.
  const bool slides = cached.ok() &&
                      cached->table().shape.sliding_window == config.shape.sliding_window &&
                      cached->table().shape.sliding_layers == config.shape.sliding_layers;
  // Other earlier versions had another format under the name "q8", and the head of q4 in 4 bits.
  const bool in_format =
      cached.ok() && (!options.format || (cached->table().format == *options.format &&
                                          cached->table().in_named_format()));
  if (slides && in_format && cached->table().file_id != options.damaged) {
    return ModelSource{packed, true, false, warnings_of(packed, cached->table()),
                       ModelUse::begin(packed)};
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
    const std::string why = !cached.ok() ? std::string(cached.status().message())
                            : !in_format
                                ? packed + " is not what --format " + format + " stands for now"
                                : packed + ": weights in it do not match their checksums";
    options.announce(why + "; the model is packed again");
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
    return invalid_argument(
        path + " is a GGUF file; give it a name that ends in .gguf, or a link: ln -s " + path +
        " NAME.gguf");
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

// "meta-llama/Llama-3.1-8B": two plain names.
bool is_repository(const std::string& model) {
  const size_t slash = model.find('/');
  return slash != std::string::npos && is_safe_name(model.substr(0, slash)) &&
         is_safe_name(model.substr(slash + 1)) && model.front() != '.';
}

// The newest snapshot of a repository that Hugging Face's own tools have fetched; empty: there is
// none.
std::string fetched_by_hub(const std::string& model) {
  if (!is_repository(model)) return "";
  std::string hub = environment("HF_HUB_CACHE");
  if (hub.empty()) {
    std::string home = environment("HF_HOME");
    if (home.empty()) home = environment("HOME") + "/.cache/huggingface";
    hub = home + "/hub";
  }
  std::string name = model;
  name.replace(name.find('/'), 1, "--");
  std::error_code error;
  std::string found;
  fs::file_time_type found_at = fs::file_time_type::min();
  const fs::path snapshots = fs::path(hub) / ("models--" + name) / "snapshots";
  for (const auto& entry : fs::directory_iterator(snapshots, error)) {
    if (!fs::exists(entry.path() / "config.json", error)) continue;
    const fs::file_time_type at = fs::last_write_time(entry.path(), error);
    if (error || (!found.empty() && at <= found_at)) continue;
    found = entry.path().string();
    found_at = at;
  }
  return found;
}

}  // namespace

Result<std::string> default_cache_directory() {
  if (std::string set = environment("SPILLWAY_CACHE"); !set.empty()) return set;
  if (std::string set = environment("XDG_CACHE_HOME"); !set.empty()) return set + "/spillway";
  if (std::string home = environment("HOME"); !home.empty()) return home + "/.cache/spillway";
  return not_found("no folder for packed models: set SPILLWAY_CACHE, or use 'spillway convert'");
}

Status no_such_model(const std::string& model) {
  const std::string what = in_quotes(model);
  if (model.find("://") != std::string::npos) {
    return not_found(what +
                     " is an address; nothing is downloaded: fetch the model first, and give "
                     "its directory or .gguf file");
  }
  if (model.ends_with(".gguf") || model.ends_with(".safetensors") || model.ends_with(".spill")) {
    return not_found("there is no file " + what);
  }
  if (const std::string fetched = fetched_by_hub(model); !fetched.empty()) {
    return not_found(what + " is no directory here, but lies in the cache of Hugging Face: give " +
                     fetched);
  }
  if (is_repository(model)) {
    return not_found(
        what +
        " is no directory here; nothing is downloaded. If it is a repository of Hugging "
        "Face, fetch it (hf download " +
        model + " --local-dir DIR) and give DIR");
  }
  return not_found(
      what +
      " is neither a model directory nor a .gguf or .spill file; for random weights of "
      "a known shape add --dummy-weights");
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
    return ModelSource{model, false, false, warnings_of(model, file.table()),
                       ModelUse::begin(model)};
  }
  return no_such_model(model);
}

}  // namespace spillway
