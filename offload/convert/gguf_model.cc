#include "offload/convert/gguf_model.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>

#include "kernels/base/quote.h"
#include "offload/io/file.h"

namespace spillway {

namespace {

constexpr std::string_view kExtension = ".gguf";
constexpr int64_t kFilesMax = 4096;
constexpr size_t kNumberBytes = 15;  // "-00001-of-00003"

// What a file says of the model it is a part of; a whole model is file 0 of 1.
struct Split {
  int64_t number = 0;
  int64_t count = 1;
  std::optional<int64_t> tensors;  // Of all files.
};

Result<Split> split_of(const GgufHeader& header, const std::string& file) {
  GgufKeyReader reader(header.metadata, file);
  Split split;
  if (!reader.has("split.count")) return split;
  split.count = reader.integer("split.count", 0, kFilesMax);
  split.count = std::max<int64_t>(split.count, 1);
  split.number = reader.integer("split.no", 0, split.count - 1);
  split.tensors = reader.find_integer("split.tensors.count", 0, INT64_MAX);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return split;
}

// "-00002-of-00003"
std::string split_suffix(int64_t number, int64_t count) {
  char text[64];
  std::snprintf(text, sizeof(text), "-%05lld-of-%05lld", static_cast<long long>(number + 1),
                static_cast<long long>(count));
  return text;
}

std::string without_extension(std::string_view path) {
  return std::string(path.substr(0, path.size() - (is_gguf_path(path) ? kExtension.size() : 0)));
}

bool has_split_suffix(std::string_view stem) {
  if (stem.size() <= kNumberBytes) return false;
  const std::string_view suffix = stem.substr(stem.size() - kNumberBytes);
  const auto digits = [](std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  return suffix[0] == '-' && digits(suffix.substr(1, 5)) && suffix.substr(6, 4) == "-of-" &&
         digits(suffix.substr(10));
}

}  // namespace

bool is_gguf_path(std::string_view path) {
  return path.ends_with(kExtension) && path.size() > kExtension.size();
}

std::string gguf_model_name(std::string_view path) {
  std::string stem = std::filesystem::path(without_extension(path)).filename().string();
  if (has_split_suffix(stem)) stem.resize(stem.size() - kNumberBytes);
  return stem.empty() ? "model" : stem;
}

Result<GgufModel> GgufModel::read(std::unique_ptr<ByteSource> source) {
  SPILLWAY_ASSIGN_OR_RETURN(GgufHeader header, read_gguf_header(*source));
  GgufModel model;
  model.add(std::move(source), header);
  model.metadata_ = std::move(header.metadata);
  return model;
}

Result<GgufModel> GgufModel::open(const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(File file, File::open_to_read(path));
  SPILLWAY_ASSIGN_OR_RETURN(auto source, file_source(std::move(file)));
  SPILLWAY_ASSIGN_OR_RETURN(GgufHeader first, read_gguf_header(*source));
  SPILLWAY_ASSIGN_OR_RETURN(const Split split, split_of(first, path));
  GgufModel model;
  model.add(std::move(source), first);
  model.metadata_ = std::move(first.metadata);
  if (split.count == 1) return model;

  const std::string stem = without_extension(path);
  const std::string suffix = split_suffix(split.number, split.count);
  if (!stem.ends_with(suffix)) {
    return invalid_argument(path + " is file " + std::to_string(split.number + 1) + " of " +
                            std::to_string(split.count) + " of a model; its name must end in " +
                            suffix + ".gguf, so that the others are found beside it");
  }
  const std::string base = stem.substr(0, stem.size() - suffix.size());
  const auto file_path = [&](int64_t number) {
    return base + split_suffix(number, split.count) + std::string(kExtension);
  };
  if (split.number != 0) {
    return invalid_argument(path + " is file " + std::to_string(split.number + 1) + " of " +
                            std::to_string(split.count) + " of a model; give the first, " +
                            file_path(0));
  }
  for (int64_t number = 1; number < split.count; ++number) {
    Result<File> next = File::open_to_read(file_path(number));
    if (next.status().code() == Code::kNotFound) {
      return invalid_argument(path + " is the first of " + std::to_string(split.count) +
                              " files; " + file_path(number) + " is missing; download it");
    }
    if (!next.ok()) return next.status();
    SPILLWAY_ASSIGN_OR_RETURN(auto next_source, file_source(std::move(next).value()));
    SPILLWAY_ASSIGN_OR_RETURN(GgufHeader header, read_gguf_header(*next_source));
    SPILLWAY_ASSIGN_OR_RETURN(const Split part, split_of(header, file_path(number)));
    if (part.number != number || part.count != split.count) {
      return invalid_argument(file_path(number) + " says it is file " +
                              std::to_string(part.number + 1) + " of " +
                              std::to_string(part.count) + ", not " + std::to_string(number + 1) +
                              " of " + std::to_string(split.count));
    }
    model.add(std::move(next_source), header);
  }
  if (split.tensors && static_cast<uint64_t>(*split.tensors) != model.tensors_.size()) {
    return invalid_argument(path + ": split.tensors.count is " + std::to_string(*split.tensors) +
                            ", the files hold " + std::to_string(model.tensors_.size()) +
                            " tensors; they are not of one model");
  }
  return model;
}

void GgufModel::add(std::unique_ptr<ByteSource> source, GgufHeader& header) {
  const auto file = static_cast<uint32_t>(files_.size());
  for (GgufTensor& tensor : header.tensors) tensors_.push_back({std::move(tensor), file});
  header_bytes_.push_back(header.data_offset);
  files_.push_back(std::move(source));
}

const GgufModelTensor* GgufModel::find(std::string_view tensor) const {
  for (const GgufModelTensor& candidate : tensors_) {
    if (candidate.stored.name == tensor) return &candidate;
  }
  return nullptr;
}

Result<std::vector<float>> GgufModel::read_numbers(const GgufModelTensor& tensor,
                                                   uint64_t count_max) const {
  const GgufTensor& stored = tensor.stored;
  const uint64_t count = stored.bytes / stored.format->bytes * stored.format->elements;
  if (count > count_max) {
    return invalid_argument(files_[tensor.file]->name() + ": tensor " + in_quotes(stored.name) +
                            " has " + std::to_string(count) + " numbers, at most " +
                            std::to_string(count_max) + " are expected");
  }
  std::vector<float> numbers(count);
  SPILLWAY_RETURN_IF_ERROR(read_expanded(*files_[tensor.file], stored.offset, *stored.format, 0,
                                         std::as_writable_bytes(std::span(numbers))));
  return numbers;
}

}  // namespace spillway
