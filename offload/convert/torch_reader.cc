#include "offload/convert/torch_reader.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <unordered_map>

#include "kernels/base/quote.h"
#include "offload/convert/pickle_reader.h"
#include "offload/convert/zip_reader.h"

namespace spillway {

namespace {

// Members other than the storages, with their largest sizes.
struct SmallMember {
  std::string_view name;
  uint64_t bytes_max;
};

constexpr SmallMember kSmallMembers[] = {
    {"data.pkl", kPickleBytesMax},
    {"version", 16},
    {"byteorder", 16},
    {".format_version", 16},
    {".storage_alignment", 16},
    {".data/serialization_id", 64},
};

// Parses "data/17" as 17: no leading zeros, at most 9 digits.
std::optional<uint32_t> storage_number(std::string_view name) {
  constexpr std::string_view kPrefix = "data/";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool good = error == std::errc() && end == name.data() + name.size() && name.size() <= 9 &&
                    (name == "0" || name.front() != '0');
  return good ? std::optional(number) : std::nullopt;
}

// Refuses the formats of other versions and tools, which the message names.
Status refuse_other_formats(const ByteSource& source) {
  std::array<std::byte, 512> head{};
  const size_t bytes = std::min<uint64_t>(source.size(), head.size());
  SPILLWAY_RETURN_IF_ERROR(source.read(0, std::span(head).first(bytes)));
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  constexpr std::string_view kMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e",
                                    15);
  const char* again = "; load it in PyTorch and save it again with torch.save, or as safetensors";
  if (text.starts_with(kMagic)) {
    return invalid_argument(std::string("the legacy format of PyTorch before 1.6") + again);
  }
  if (text.starts_with("PYTORCH1")) {
    return invalid_argument(std::string("the preview format of PyTorch 1.0") + again);
  }
  if (text.substr(257, 5) == "ustar") {
    return invalid_argument(std::string("the tar format of PyTorch before 0.1.10") + again);
  }
  if (text.starts_with("PK\x03\x04")) return {};
  return corruption("not a PyTorch file: it does not start as a ZIP does");
}

class TorchReader {
 public:
  explicit TorchReader(const ByteSource& source) : source_(source) {}

  Result<TorchFile> read() {
    SPILLWAY_RETURN_IF_ERROR(refuse_other_formats(source_));
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<ZipMember> members, read_zip(source_));
    for (const ZipMember& member : members) {
      SPILLWAY_RETURN_IF_ERROR(sort_member(member).at("member " + in_quotes(member.name)));
    }
    SPILLWAY_RETURN_IF_ERROR(check_small_members());
    SPILLWAY_ASSIGN_OR_RETURN(const std::string pickle, read_small("data.pkl"));
    Result<StateDict> dict = read_state_dict(std::as_bytes(std::span(pickle)));
    if (!dict.ok()) return dict.status().at("data.pkl");
    SPILLWAY_RETURN_IF_ERROR(check_storages(dict.value()));
    add_tensors(dict.value());
    return std::move(file_);
  }

 private:
  Status sort_member(const ZipMember& member) {
    if (const auto number = storage_number(member.name)) {
      record_by_number_.emplace(*number, static_cast<uint32_t>(file_.records.size()));
      file_.records.push_back({member.name, member.offset, member.bytes, member.crc});
      return {};
    }
    for (const SmallMember& small : kSmallMembers) {
      if (small.name != member.name) continue;
      if (member.bytes > small.bytes_max) return invalid_argument("larger than it may be");
      small_.emplace(small.name, member);
      return {};
    }
    return invalid_argument("does not belong into a state dict (a TorchScript archive?)");
  }

  // The verified bytes of a small member, which decide how the other members are read.
  Result<std::string> read_small(std::string_view name) {
    const auto found = small_.find(name);
    if (found == small_.end()) return corruption("the member " + in_quotes(name) + " is missing");
    const ZipMember& member = found->second;
    std::string text(member.bytes, '\0');
    SPILLWAY_RETURN_IF_ERROR(source_.read(member.offset, std::as_writable_bytes(std::span(text))));
    const uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size());
    if (crc == member.crc) return text;
    return corruption("the member " + in_quotes(name) + " does not match its CRC32");
  }

  Status check_small_members() {
    SPILLWAY_ASSIGN_OR_RETURN(std::string version, read_small("version"));
    if (!version.empty() && version.back() == '\n') version.pop_back();
    int number = 0;
    const char* end = version.data() + version.size();
    const auto [rest, error] = std::from_chars(version.data(), end, number);
    if (error != std::errc() || rest != end || number < 1 || number > 10) {
      return invalid_argument("version " + in_quotes(version) + ", this reads 1 to 10");
    }
    for (const auto& [name, member] : small_) {
      if (name == "version" || name == "data.pkl") continue;
      SPILLWAY_ASSIGN_OR_RETURN(const std::string text, read_small(name));
      if (name == "byteorder" && text != "little") {
        return invalid_argument("byte order " + in_quotes(text) + ", this reads little");
      }
    }
    return {};
  }

  // Checks that the storages of the pickle are the records of the ZIP, byte for byte.
  Status check_storages(const StateDict& dict) const {
    for (const PickledStorage& storage : dict.storages) {
      const std::string name = "data/" + std::to_string(storage.key);
      const auto found = record_by_number_.find(storage.key);
      if (found == record_by_number_.end()) return corruption("the record " + name + " is missing");
      const TorchRecord& record = file_.records[found->second];
      const uint64_t element = storage.format->bits / 8;
      if (record.bytes % element != 0 || record.bytes / element != storage.elements) {
        return corruption("the record " + name + " has " + std::to_string(record.bytes) +
                          " bytes, the pickle says " + std::to_string(storage.elements) +
                          " elements of " + std::to_string(element));
      }
    }
    if (dict.storages.size() != file_.records.size()) {
      return corruption("a record that the pickle does not use");
    }
    return {};
  }

  void add_tensors(const StateDict& dict) {
    for (const PickledTensor& tensor : dict.tensors) {
      const PickledStorage& storage = dict.storages[tensor.storage];
      StoredTensor stored;
      stored.name = tensor.name;
      stored.format = storage.format;
      stored.shape = tensor.shape;
      stored.record = record_by_number_.at(storage.key);
      stored.offset =
          file_.records[*stored.record].offset + tensor.offset * (storage.format->bits / 8);
      stored.bytes = stored_bytes(*storage.format, tensor.shape).value();
      file_.tensors.push_back(std::move(stored));
    }
  }

  const ByteSource& source_;
  TorchFile file_;
  std::unordered_map<uint32_t, uint32_t> record_by_number_;
  std::unordered_map<std::string_view, ZipMember> small_;  // By names of kSmallMembers
};

}  // namespace

Result<TorchFile> read_torch(const ByteSource& source) {
  Result<TorchFile> file = TorchReader(source).read();
  if (!file.ok()) return file.status().at(source.name());
  return file;
}

}  // namespace spillway
