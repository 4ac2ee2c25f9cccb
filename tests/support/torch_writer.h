// Writes PyTorch .bin files byte by byte: the ZIP as torch lays it out or as no one should, and the
// pickle of a state dict opcode by opcode.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/checkpoint_writer.h"

namespace spillway {

// One member. The defaults are what torch writes; each option breaks one thing.
struct ZipSpec {
  std::string name;  // With its root: "archive/data/0".
  Bytes data;
  bool descriptor = true;  // CRC and sizes follow the data (unless it is empty).
  bool wide_descriptor = false;
  std::optional<uint32_t> crc;      // Instead of the right one.
  std::optional<uint16_t> flags;    // Instead of the right ones.
  std::string local_name;           // Instead of `name`, same length.
  std::string central_extra;        // Extra field of the central entry.
  std::string comment;              // Of the central entry.
  uint16_t method = 0;              // 8: deflate.
  size_t gap = 0;                   // Bytes of nothing in front of the local header.
  uint64_t central_bytes_more = 0;  // Makes the directory lie about the size.
  bool saturated = false;           // Sizes in a ZIP64 extra field.
};

struct ZipFileOptions {
  bool zip64_end = true;  // As torch, even for small files.
  std::string comment;
  size_t gap_before_directory = 0;
};

Bytes zip_file(const std::vector<ZipSpec>& members, const ZipFileOptions& options = {});

// Pickle opcodes by name, appended in order.
class PickleWriter {
 public:
  PickleWriter& op(uint8_t opcode);
  PickleWriter& raw(std::string_view bytes);
  PickleWriter& proto();  // Protocol 2.
  PickleWriter& global(std::string_view module, std::string_view name);
  PickleWriter& text(std::string_view text);                    // BINUNICODE
  PickleWriter& integer(int64_t number);                        // The shortest form.
  PickleWriter& integers(const std::vector<int64_t>& numbers);  // A tuple, by MARK.
  PickleWriter& ordered_dict();                                 // An empty one.
  PickleWriter& storage(std::string_view type, std::string_view key, int64_t elements);
  PickleWriter& tensor(std::string_view type, std::string_view key, int64_t elements,
                       int64_t offset, const std::vector<int64_t>& shape,
                       const std::vector<int64_t>& strides);
  PickleWriter& put(uint32_t slot);
  PickleWriter& get(uint32_t slot);
  PickleWriter& mark() { return op('('); }
  PickleWriter& tuple() { return op('t'); }
  PickleWriter& reduce() { return op('R'); }
  PickleWriter& set_items() { return op('u'); }
  PickleWriter& stop() { return op('.'); }

  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

std::vector<int64_t> row_major(const std::vector<int64_t>& shape);

// Opens an OrderedDict with a MARK: tensors and finish_state_dict() follow.
PickleWriter start_state_dict();
Bytes finish_state_dict(PickleWriter writer);  // SETITEMS, _metadata, BUILD, STOP.

// The pickle of these tensors, tensor i in storage i.
Bytes state_dict_pickle(const std::vector<TensorData>& tensors);

// The members of a good file, for tests that break one of them.
std::vector<ZipSpec> torch_members(const std::vector<TensorData>& tensors,
                                   const std::string& root = "archive");

Bytes torch_file(const std::vector<TensorData>& tensors);

}  // namespace spillway
