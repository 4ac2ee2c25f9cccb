#include "offload/convert/byte_source.h"

#include <cstring>
#include <utility>

namespace spillway {

namespace {

Status check_range(const ByteSource& source, uint64_t offset, size_t bytes) {
  if (offset <= source.size() && bytes <= source.size() - offset) return {};
  return corruption(source.name() + " is cut off: " + std::to_string(bytes) + " bytes wanted at " +
                    std::to_string(offset) + ", it has " + std::to_string(source.size()));
}

class FileSource final : public ByteSource {
 public:
  FileSource(File file, FileStamp stamp) : file_(std::move(file)), stamp_(stamp) {}

  const std::string& name() const override { return file_.path(); }
  uint64_t size() const override { return stamp_.bytes; }
  Status read(uint64_t offset, std::span<std::byte> target) const override {
    SPILLWAY_RETURN_IF_ERROR(check_range(*this, offset, target.size()));
    return file_.read(offset, target);
  }
  Status check_unchanged() const override {
    SPILLWAY_ASSIGN_OR_RETURN(const FileStamp now, file_.stamp());
    if (now == stamp_) return {};
    return corruption(name() + " was written to while it was read; run this again");
  }

 private:
  const File file_;
  const FileStamp stamp_;
};

class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string name, std::vector<std::byte> bytes)
      : name_(std::move(name)), bytes_(std::move(bytes)) {}

  const std::string& name() const override { return name_; }
  uint64_t size() const override { return bytes_.size(); }
  Status read(uint64_t offset, std::span<std::byte> target) const override {
    SPILLWAY_RETURN_IF_ERROR(check_range(*this, offset, target.size()));
    if (!target.empty()) std::memcpy(target.data(), bytes_.data() + offset, target.size());
    return {};
  }
  Status check_unchanged() const override { return {}; }

 private:
  const std::string name_;
  const std::vector<std::byte> bytes_;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> file_source(File file) {
  SPILLWAY_ASSIGN_OR_RETURN(const FileStamp stamp, file.stamp());
  return std::unique_ptr<ByteSource>(std::make_unique<FileSource>(std::move(file), stamp));
}

std::unique_ptr<ByteSource> memory_source(std::string name, std::vector<std::byte> bytes) {
  return std::make_unique<MemorySource>(std::move(name), std::move(bytes));
}

}  // namespace spillway
