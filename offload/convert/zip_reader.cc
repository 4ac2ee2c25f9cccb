#include "offload/convert/zip_reader.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>

#include "kernels/base/checked_math.h"
#include "kernels/base/quote.h"
#include "offload/convert/little_endian.h"

namespace spillway {

namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kDescriptorSignature = 0x08074b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocatorSignature = 0x07064b50;

constexpr size_t kLocalBytes = 30;
constexpr size_t kCentralBytes = 46;
constexpr size_t kEndBytes = 22;
constexpr size_t kEnd64Bytes = 56;
constexpr size_t kLocatorBytes = 20;

constexpr uint64_t kMembersMax = 1'000'000;
constexpr uint64_t kDirectoryBytesMax = uint64_t{256} << 20;
constexpr size_t kNameBytesMax = 512;
constexpr uint16_t kFlagDescriptor = 0x0008;  // CRC and sizes follow the data.
constexpr uint16_t kFlagUtf8 = 0x0800;
constexpr uint16_t kZip64Extra = 1;
constexpr uint32_t kSaturated32 = 0xffffffff;

using View = std::span<const std::byte>;

struct Directory {
  uint64_t members = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// A member as the central directory describes it.
struct Entry {
  ZipMember member;       // `offset` is filled in from the local header.
  std::string full_name;  // With its root folder
  uint16_t flags = 0;
  uint64_t header = 0;  // Offset of the local header.
};

// Whether a 16- or 32-bit field of the old end record equals its 64-bit counterpart or is
// saturated.
template <class T>
bool agrees(T narrow, uint64_t wide) {
  return narrow == wide || narrow == static_cast<T>(~T{0});
}

// Reads the ZIP64 end record, which lies exactly before its locator, which lies exactly before the
// end record.
Result<Directory> read_end64(const ByteSource& source, View end, uint64_t end_at, View locator) {
  const uint64_t end64_at = end_at - kLocatorBytes - kEnd64Bytes;
  const bool good_locator =
      end_at >= kLocatorBytes + kEnd64Bytes && load_little<uint32_t>(locator, 4) == 0 &&
      load_little<uint64_t>(locator, 8) == end64_at && load_little<uint32_t>(locator, 16) == 1;
  if (!good_locator) return corruption("the ZIP64 locator does not point right before itself");
  std::array<std::byte, kEnd64Bytes> end64;
  SPILLWAY_RETURN_IF_ERROR(source.read(end64_at, end64));
  const Directory directory = {load_little<uint64_t>(end64, 32), load_little<uint64_t>(end64, 48),
                               load_little<uint64_t>(end64, 40)};
  const bool good = load_little<uint32_t>(end64, 0) == kEnd64Signature &&
                    load_little<uint64_t>(end64, 4) == kEnd64Bytes - 12 &&
                    load_little<uint32_t>(end64, 16) == 0 &&
                    load_little<uint32_t>(end64, 20) == 0 &&
                    load_little<uint64_t>(end64, 24) == directory.members;
  if (!good) return corruption("the ZIP64 end record is malformed");
  const bool same = agrees(load_little<uint16_t>(end, 10), directory.members) &&
                    agrees(load_little<uint32_t>(end, 12), directory.bytes) &&
                    agrees(load_little<uint32_t>(end, 16), directory.offset);
  if (!same) return corruption("the two end records disagree");
  if (directory.bytes > end64_at || directory.offset != end64_at - directory.bytes) {
    return corruption("the central directory does not end at the ZIP64 end record");
  }
  return directory;
}

// Locates the central directory.
Result<Directory> find_directory(const ByteSource& source) {
  if (source.size() < kEndBytes) return corruption("too short for a ZIP file");
  const uint64_t end_at = source.size() - kEndBytes;
  std::array<std::byte, kEndBytes> end;
  SPILLWAY_RETURN_IF_ERROR(source.read(end_at, end));
  if (load_little<uint32_t>(end, 0) != kEndSignature) {
    return corruption("no ZIP end record in the last 22 bytes; the file is cut off or no ZIP");
  }
  const bool good = load_little<uint16_t>(end, 4) == 0 && load_little<uint16_t>(end, 6) == 0 &&
                    load_little<uint16_t>(end, 8) == load_little<uint16_t>(end, 10) &&
                    load_little<uint16_t>(end, 20) == 0;
  if (!good) return corruption("the ZIP end record has a comment or several disks");
  std::array<std::byte, kLocatorBytes> locator{};
  if (end_at >= kLocatorBytes) {
    SPILLWAY_RETURN_IF_ERROR(source.read(end_at - kLocatorBytes, locator));
  }
  Directory directory;
  if (load_little<uint32_t>(locator, 0) == kLocatorSignature) {
    SPILLWAY_ASSIGN_OR_RETURN(directory, read_end64(source, end, end_at, locator));
  } else {
    directory = {load_little<uint16_t>(end, 10), load_little<uint32_t>(end, 16),
                 load_little<uint32_t>(end, 12)};
    const bool saturated = directory.members == 0xffff || directory.offset == kSaturated32 ||
                           directory.bytes == kSaturated32;
    if (saturated) return corruption("a saturated end record without its ZIP64 twin");
    if (directory.offset + directory.bytes != end_at) {
      return corruption("the central directory does not end at the end record");
    }
  }
  if (directory.members > kMembersMax || directory.bytes > kDirectoryBytesMax) {
    return invalid_argument("a ZIP directory of " + std::to_string(directory.members) +
                            " members is beyond the limit of 1,000,000 and 256 MiB");
  }
  return directory;
}

// Checks that a name is printable ASCII below one root folder and has no path components that
// escape it.
Status check_name(std::string_view name) {
  const auto printable = [](char c) { return c >= 0x20 && c < 0x7f && c != '\\'; };
  const bool good = !name.empty() && name.size() <= kNameBytesMax &&
                    std::all_of(name.begin(), name.end(), printable) && name.front() != '/' &&
                    name.back() != '/' && name.find("//") == std::string_view::npos &&
                    name.find('/') != std::string_view::npos;
  if (!good) return corruption("the member name " + in_quotes(name) + " is not acceptable");
  for (std::string_view rest = name; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('/'));
    if (part == "." || part == "..") {
      return corruption("the member name " + in_quotes(name) + " leaves its folder");
    }
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  }
  return {};
}

// Reads the 64-bit values of the saturated fields, in order.
Status read_zip64_extra(View extra, const std::vector<uint64_t*>& saturated) {
  bool found = false;
  while (!extra.empty()) {
    if (extra.size() < 4) return corruption("a malformed extra field");
    const auto id = load_little<uint16_t>(extra, 0);
    const auto bytes = load_little<uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) return corruption("a malformed extra field");
    if (id == kZip64Extra) {
      if (found || bytes != 8 * saturated.size())
        return corruption("a malformed ZIP64 extra field");
      found = true;
      for (size_t i = 0; i < saturated.size(); ++i) {
        *saturated[i] = load_little<uint64_t>(extra, 4 + 8 * i);
      }
    }
    extra = extra.subspan(4 + bytes);
  }
  if (!found && !saturated.empty()) return corruption("a size is in no ZIP64 extra field");
  return {};
}

Status check_storage(const Entry& entry, uint16_t method, uint64_t compressed) {
  if ((entry.flags & ~(kFlagDescriptor | kFlagUtf8)) != 0) {
    return corruption("flags that torch does not write (encrypted?)");
  }
  if (method != 0 || compressed != entry.member.bytes) {
    return invalid_argument("compressed; torch.save stores members uncompressed, save it again");
  }
  if (entry.member.bytes > INT64_MAX || entry.header > INT64_MAX) {
    return corruption("a size or offset above 2^63 - 1");
  }
  return {};
}

// Reads one central entry and moves `directory` behind it.
Result<Entry> read_entry(View& directory) {
  const bool fits =
      directory.size() >= kCentralBytes && load_little<uint32_t>(directory, 0) == kCentralSignature;
  if (!fits) return corruption("the central directory is malformed");
  Entry entry;
  entry.flags = load_little<uint16_t>(directory, 8);
  const auto method = load_little<uint16_t>(directory, 10);
  entry.member.crc = load_little<uint32_t>(directory, 16);
  uint64_t compressed = load_little<uint32_t>(directory, 20);
  entry.member.bytes = load_little<uint32_t>(directory, 24);
  const size_t name_bytes = load_little<uint16_t>(directory, 28);
  const size_t extra_bytes = load_little<uint16_t>(directory, 30);
  const bool plain =
      load_little<uint16_t>(directory, 32) == 0 && load_little<uint16_t>(directory, 34) == 0;
  entry.header = load_little<uint32_t>(directory, 42);
  if (name_bytes + extra_bytes > directory.size() - kCentralBytes) {
    return corruption("the central directory is cut off");
  }
  const View name = directory.subspan(kCentralBytes, name_bytes);
  entry.full_name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  SPILLWAY_RETURN_IF_ERROR(check_name(entry.full_name));
  const std::string where = "member " + in_quotes(entry.full_name);
  if (!plain) return corruption("has a comment or lies on another disk").at(where);
  std::vector<uint64_t*> saturated;
  for (uint64_t* field : {&entry.member.bytes, &compressed, &entry.header}) {
    if (*field == kSaturated32) saturated.push_back(field);
  }
  const View extra = directory.subspan(kCentralBytes + name_bytes, extra_bytes);
  SPILLWAY_RETURN_IF_ERROR(read_zip64_extra(extra, saturated).at(where));
  SPILLWAY_RETURN_IF_ERROR(check_storage(entry, method, compressed).at(where));
  directory = directory.subspan(kCentralBytes + name_bytes + extra_bytes);
  return entry;
}

// Whether the local header's copy of a field is right: zero when it follows the data, else as in
// the directory.
bool local_agrees(const Entry& entry, uint32_t local, uint64_t central) {
  if ((entry.flags & kFlagDescriptor) != 0) return local == 0;
  return local == std::min<uint64_t>(central, kSaturated32);
}

// Reads the local header and fills in the data's offset. Torch's local extra field breaks the ZIP
// rules for large members, so that only its length counts.
Status read_local(const ByteSource& source, Entry& entry) {
  std::array<std::byte, kLocalBytes> local;
  SPILLWAY_RETURN_IF_ERROR(source.read(entry.header, local));
  const size_t name_bytes = load_little<uint16_t>(local, 26);
  const size_t extra_bytes = load_little<uint16_t>(local, 28);
  const bool good = load_little<uint32_t>(local, 0) == kLocalSignature &&
                    load_little<uint16_t>(local, 6) == entry.flags &&
                    load_little<uint16_t>(local, 8) == 0 &&
                    local_agrees(entry, load_little<uint32_t>(local, 14), entry.member.crc) &&
                    local_agrees(entry, load_little<uint32_t>(local, 18), entry.member.bytes) &&
                    local_agrees(entry, load_little<uint32_t>(local, 22), entry.member.bytes) &&
                    name_bytes == entry.full_name.size();
  if (!good) return corruption("its local header disagrees with the central directory");
  std::string name(name_bytes, '\0');
  SPILLWAY_RETURN_IF_ERROR(
      source.read(entry.header + kLocalBytes, std::as_writable_bytes(std::span(name))));
  if (name != entry.full_name) return corruption("its local header has another name");
  entry.member.offset = entry.header + kLocalBytes + name_bytes + extra_bytes;
  return {};
}

// Checks that a member's data and descriptor end exactly at `next`.
Status check_end(const ByteSource& source, const Entry& entry, uint64_t next) {
  const auto data_end = checked_add(entry.member.offset, entry.member.bytes);
  const Status hole = corruption("a hole or an overlap behind its data");
  if (!data_end || *data_end > next) return hole;
  const uint64_t rest = next - *data_end;
  if ((entry.flags & kFlagDescriptor) == 0 || entry.member.bytes == 0) {
    return rest == 0 ? Status() : hole;
  }
  if (rest != 16 && rest != 24) return hole;
  std::array<std::byte, 24> bytes{};
  SPILLWAY_RETURN_IF_ERROR(source.read(*data_end, std::span(bytes).first(rest)));
  const bool wide = rest == 24;
  const uint64_t first =
      wide ? load_little<uint64_t>(bytes, 8) : uint64_t{load_little<uint32_t>(bytes, 8)};
  const uint64_t second =
      wide ? load_little<uint64_t>(bytes, 16) : uint64_t{load_little<uint32_t>(bytes, 12)};
  const bool good = load_little<uint32_t>(bytes, 0) == kDescriptorSignature &&
                    load_little<uint32_t>(bytes, 4) == entry.member.crc &&
                    first == entry.member.bytes && second == entry.member.bytes;
  return good ? Status() : corruption("its data descriptor disagrees with the central directory");
}

// Checks that there is one root and no two names differ only in case. Strips the root.
Status strip_roots(std::vector<Entry>& entries) {
  std::unordered_set<std::string> seen;
  const std::string root = entries.front().full_name.substr(0, entries.front().full_name.find('/'));
  for (Entry& entry : entries) {
    const std::string& name = entry.full_name;
    if (name.substr(0, name.find('/')) != root) {
      return corruption("member " + in_quotes(name) + " is not below " + in_quotes(root));
    }
    std::string lower = name;
    for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (!seen.insert(std::move(lower)).second) {
      return corruption("member " + in_quotes(name) + " occurs twice (up to case)");
    }
    entry.member.name = name.substr(root.size() + 1);
  }
  return {};
}

}  // namespace

Result<std::vector<ZipMember>> read_zip(const ByteSource& source) {
  SPILLWAY_ASSIGN_OR_RETURN(const Directory directory, find_directory(source));
  std::vector<std::byte> bytes(directory.bytes);
  SPILLWAY_RETURN_IF_ERROR(source.read(directory.offset, bytes));
  View rest = bytes;
  std::vector<Entry> entries;
  for (uint64_t i = 0; i < directory.members; ++i) {
    SPILLWAY_ASSIGN_OR_RETURN(Entry entry, read_entry(rest));
    entries.push_back(std::move(entry));
  }
  if (!rest.empty()) return corruption("bytes behind the last entry of the central directory");
  if (entries.empty()) return corruption("an empty ZIP file");
  SPILLWAY_RETURN_IF_ERROR(strip_roots(entries));
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.header < b.header; });
  if (entries.front().header != 0) return corruption("bytes in front of the first member");
  std::vector<ZipMember> members;
  for (size_t i = 0; i < entries.size(); ++i) {
    const uint64_t next = i + 1 < entries.size() ? entries[i + 1].header : directory.offset;
    const std::string where = "member " + in_quotes(entries[i].full_name);
    SPILLWAY_RETURN_IF_ERROR(read_local(source, entries[i]).at(where));
    SPILLWAY_RETURN_IF_ERROR(check_end(source, entries[i], next).at(where));
    members.push_back(std::move(entries[i].member));
  }
  return members;
}

}  // namespace spillway
