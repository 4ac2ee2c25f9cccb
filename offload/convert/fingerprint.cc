#include "offload/convert/fingerprint.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "offload/convert/byte_source.h"
#include "offload/convert/gguf_model.h"
#include "offload/convert/safetensors_reader.h"
#include "offload/io/file.h"

namespace spillway {

namespace {

constexpr uint64_t kEndBytes = uint64_t{1} << 20;      // Read at the start and the end of each file
constexpr uint64_t kSmallTensor = uint64_t{64} << 10;  // Up to this size read whole
constexpr uint64_t kSampleBytes = 4096;
constexpr uint64_t kSamplesPerFile = 256;  // For a file with unknown tensors

struct Range {
  uint64_t offset = 0, bytes = 0;
};

bool counts(std::string_view name) {
  return name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".json") ||
         name.ends_with(".txt") || name.ends_with(".jinja");
}

Result<std::vector<std::string>> files_that_count(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (counts(name)) names.push_back(std::move(name));
  }
  if (error) return io_error("list " + directory, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::string hex(const XXH128_hash_t& hash) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

std::string hash_of(std::string_view text) {
  return hex(XXH3_128bits(text.data(), text.size()));
}

// Adds the ends and the middle of a tensor: training changes all of a matrix or none of it.
void add_tensor(const Range& tensor, std::vector<Range>& ranges) {
  if (tensor.bytes <= kSmallTensor) return ranges.push_back(tensor);
  for (const uint64_t at : {uint64_t{0}, tensor.bytes / 2, tensor.bytes - kSampleBytes}) {
    ranges.push_back({tensor.offset + at, kSampleBytes});
  }
}

// The ranges of a file to read: its ends, with the headers and (in a .bin) the checksums of all
// records, and samples of every tensor.
std::vector<Range> samples_of(const std::string& name, const ByteSource& source) {
  const uint64_t bytes = source.size();
  if (bytes <= 2 * kEndBytes) return {{0, bytes}};
  std::vector<Range> ranges = {{0, kEndBytes}, {bytes - kEndBytes, kEndBytes}};
  if (name.ends_with(".safetensors")) {
    // An unreadable header is reported when the model is read.
    if (const auto tensors = read_safetensors(source, {.lenient_header = true}); tensors.ok()) {
      for (const StoredTensor& tensor : tensors.value()) {
        add_tensor({tensor.offset, tensor.bytes}, ranges);
      }
      return ranges;
    }
  }
  for (uint64_t i = 0; i < kSamplesPerFile; ++i) {
    ranges.push_back({(bytes - kSampleBytes) / kSamplesPerFile * i, kSampleBytes});
  }
  return ranges;
}

Result<std::string> hash_ranges(const ByteSource& source, const std::vector<Range>& ranges) {
  std::string hashes;
  std::vector<std::byte> buffer;
  for (const Range& range : ranges) {
    buffer.resize(range.bytes);
    SPILLWAY_RETURN_IF_ERROR(source.read(range.offset, buffer));
    hashes += hash_of({reinterpret_cast<const char*>(buffer.data()), buffer.size()});
  }
  return hashes;
}

Result<std::string> contents_of(const std::string& name, File file) {
  SPILLWAY_ASSIGN_OR_RETURN(const auto source, file_source(std::move(file)));
  return hash_ranges(*source, samples_of(name, *source));
}

// What a fingerprint is of.
struct Parts {
  bool times = true;
  bool contents = true;  // Samples of them
};

std::string stamp_text(const std::string& name, const FileStamp& stamp, const Parts& parts) {
  const std::string time = parts.times ? ' ' + std::to_string(stamp.modified_ns) : "";
  return name + '\n' + std::to_string(stamp.bytes) + time + '\n';
}

// Hashes names and sizes of a GGUF model's files, their times, and of their contents all headers,
// which hold configuration and tokenizer, and samples of every tensor.
Result<std::string> hash_gguf(const std::string& path, const Parts& parts) {
  SPILLWAY_ASSIGN_OR_RETURN(const GgufModel model, GgufModel::open(path));
  std::string text;
  for (uint32_t i = 0; i < model.files().size(); ++i) {
    const ByteSource& source = *model.files()[i];
    SPILLWAY_ASSIGN_OR_RETURN(const File file, File::open_to_read(source.name()));
    SPILLWAY_ASSIGN_OR_RETURN(const FileStamp stamp, file.stamp());
    text += stamp_text(std::filesystem::path(source.name()).filename().string(), stamp, parts);
    if (!parts.contents) continue;
    std::vector<Range> ranges = {{0, model.header_bytes(i)}};
    for (const GgufModelTensor& tensor : model.tensors()) {
      if (tensor.file == i) add_tensor({tensor.stored.offset, tensor.stored.bytes}, ranges);
    }
    SPILLWAY_ASSIGN_OR_RETURN(const std::string read, hash_ranges(source, ranges));
    text += read + '\n';
  }
  return hash_of(text);
}

// Hashes names and sizes, times, and the samples of each file.
Result<std::string> hash_directory(const std::string& directory, const Parts& parts) {
  SPILLWAY_ASSIGN_OR_RETURN(const File opened, File::open(directory, O_RDONLY | O_DIRECTORY));
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_that_count(directory));
  std::string text;
  for (const std::string& name : names) {
    SPILLWAY_ASSIGN_OR_RETURN(File file, File::open_in(opened, name));
    SPILLWAY_ASSIGN_OR_RETURN(const FileStamp stamp, file.stamp());
    text += stamp_text(name, stamp, parts);
    if (!parts.contents) continue;
    SPILLWAY_ASSIGN_OR_RETURN(const std::string read, contents_of(name, std::move(file)));
    text += read + '\n';
  }
  return hash_of(text);
}

Result<std::string> hash_path(const std::string& path, const Parts& parts) {
  return is_gguf_path(path) ? hash_gguf(path, parts) : hash_directory(path, parts);
}

}  // namespace

Result<std::string> checkpoint_fingerprint(const std::string& path) {
  return hash_path(path, {});
}

std::string source_of(const std::string& model_name, const std::string& fingerprint) {
  return model_name + " " + fingerprint;
}

Result<std::string> checkpoint_fingerprint_of_stamps(const std::string& path) {
  return hash_path(path, {.times = true, .contents = false});
}

Result<std::string> checkpoint_contents(const std::string& path) {
  return hash_path(path, {.times = false, .contents = true});
}

}  // namespace spillway
