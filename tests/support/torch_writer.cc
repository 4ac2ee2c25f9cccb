#include "tests/support/torch_writer.h"

#include <zlib.h>

#include <algorithm>

namespace spillway {

namespace {

constexpr uint64_t kSaturated = 0xffffffff;

uint32_t crc_of(const Bytes& data) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}

struct Placed {
  uint64_t header = 0;
  uint32_t crc = 0;
  uint16_t flags = 0;
};

Placed append_member(Bytes& out, const ZipSpec& spec) {
  out.resize(out.size() + spec.gap);
  Placed placed;
  placed.header = out.size();
  placed.crc = spec.crc.value_or(crc_of(spec.data));
  const bool descriptor = spec.descriptor && !spec.data.empty();
  placed.flags = spec.flags.value_or(static_cast<uint16_t>(descriptor ? 0x0808 : 0x0800));
  const std::string& name = spec.local_name.empty() ? spec.name : spec.local_name;
  // "FB", a length and 'Z's that bring the data to a multiple of 64.
  const size_t unpadded = out.size() + 30 + name.size() + 4;
  const size_t padding = (64 - unpadded % 64) % 64;
  append(out, std::string_view("PK\x03\x04\0\0", 6));
  append_little(out, placed.flags, 2);
  append_little(out, spec.method, 2);
  append_little(out, 0, 4);
  append_little(out, descriptor ? 0 : placed.crc, 4);
  append_little(out, descriptor ? 0 : spec.data.size(), 4);
  append_little(out, descriptor ? 0 : spec.data.size(), 4);
  append_little(out, name.size(), 2);
  append_little(out, 4 + padding, 2);
  append(out, name);
  append(out, "FB");
  append_little(out, padding, 2);
  append(out, std::string(padding, 'Z'));
  out.insert(out.end(), spec.data.begin(), spec.data.end());
  if (!descriptor) return placed;
  append(out, std::string_view("PK\x07\x08", 4));
  append_little(out, placed.crc, 4);
  const size_t width = spec.wide_descriptor ? 8 : 4;
  append_little(out, spec.data.size(), width);
  append_little(out, spec.data.size(), width);
  return placed;
}

void append_central(Bytes& out, const ZipSpec& spec, const Placed& placed) {
  const uint64_t bytes = spec.data.size() + spec.central_bytes_more;
  Bytes extra = bytes_of(spec.central_extra);
  if (spec.saturated) {
    append_little(extra, 1, 2);
    append_little(extra, 16, 2);
    append_little(extra, bytes, 8);
    append_little(extra, bytes, 8);
  }
  append(out, std::string_view("PK\x01\x02\0\0\0\0", 8));
  append_little(out, placed.flags, 2);
  append_little(out, spec.method, 2);
  append_little(out, 0, 4);
  append_little(out, placed.crc, 4);
  append_little(out, spec.saturated ? kSaturated : bytes, 4);
  append_little(out, spec.saturated ? kSaturated : bytes, 4);
  append_little(out, spec.name.size(), 2);
  append_little(out, extra.size(), 2);
  append_little(out, spec.comment.size(), 2);
  append_little(out, 0, 8);
  append_little(out, placed.header, 4);
  append(out, spec.name);
  out.insert(out.end(), extra.begin(), extra.end());
  append(out, spec.comment);
}

void append_end64(Bytes& out, size_t members, uint64_t offset, uint64_t bytes) {
  const uint64_t end64 = out.size();
  append(out, std::string_view("PK\x06\x06", 4));
  append_little(out, 44, 8);
  append_little(out, 0, 12);
  append_little(out, members, 8);
  append_little(out, members, 8);
  append_little(out, bytes, 8);
  append_little(out, offset, 8);
  append(out, std::string_view("PK\x06\x07\0\0\0\0", 8));
  append_little(out, end64, 8);
  append_little(out, 1, 4);
}

const char* storage_type(std::string_view dtype) {
  return dtype == "F32"    ? "FloatStorage"
         : dtype == "BF16" ? "BFloat16Storage"
         : dtype == "F16"  ? "HalfStorage"
                           : "LongStorage";
}

}  // namespace

Bytes zip_file(const std::vector<ZipSpec>& members, const ZipFileOptions& options) {
  Bytes out;
  std::vector<Placed> placed;
  for (const ZipSpec& spec : members) placed.push_back(append_member(out, spec));
  out.resize(out.size() + options.gap_before_directory);
  const uint64_t offset = out.size();
  for (size_t i = 0; i < members.size(); ++i) append_central(out, members[i], placed[i]);
  const uint64_t bytes = out.size() - offset;
  if (options.zip64_end) append_end64(out, members.size(), offset, bytes);
  append(out, std::string_view("PK\x05\x06\0\0\0\0", 8));
  append_little(out, members.size(), 2);
  append_little(out, members.size(), 2);
  append_little(out, bytes, 4);
  append_little(out, offset, 4);
  append_little(out, options.comment.size(), 2);
  append(out, options.comment);
  return out;
}

PickleWriter& PickleWriter::op(uint8_t opcode) {
  bytes_.push_back(static_cast<std::byte>(opcode));
  return *this;
}

PickleWriter& PickleWriter::raw(std::string_view bytes) {
  append(bytes_, bytes);
  return *this;
}

PickleWriter& PickleWriter::proto() {
  return op(0x80).op(2);
}

PickleWriter& PickleWriter::global(std::string_view module, std::string_view name) {
  return op('c').raw(module).raw("\n").raw(name).raw("\n");
}

PickleWriter& PickleWriter::text(std::string_view text) {
  op('X');
  append_little(bytes_, text.size(), 4);
  return raw(text);
}

PickleWriter& PickleWriter::integer(int64_t number) {
  const auto bits = static_cast<uint64_t>(number);
  const auto form = [&](uint8_t opcode, size_t bytes) -> PickleWriter& {
    op(opcode);
    append_little(bytes_, bits, bytes);
    return *this;
  };
  if (number >= 0 && number < 256) return form('K', 1);
  if (number >= 0 && number < 65536) return form('M', 2);
  if (number >= INT32_MIN && number <= INT32_MAX) return form('J', 4);
  op(0x8a).op(8);
  append_little(bytes_, bits, 8);
  return *this;
}

PickleWriter& PickleWriter::integers(const std::vector<int64_t>& numbers) {
  if (numbers.empty()) return op(')');
  mark();
  for (const int64_t number : numbers) integer(number);
  return tuple();
}

PickleWriter& PickleWriter::ordered_dict() {
  return global("collections", "OrderedDict").op(')').reduce();
}

PickleWriter& PickleWriter::storage(std::string_view type, std::string_view key, int64_t elements) {
  return mark()
      .text("storage")
      .global("torch", type)
      .text(key)
      .text("cpu")
      .integer(elements)
      .tuple()
      .op('Q');
}

PickleWriter& PickleWriter::tensor(std::string_view type, std::string_view key, int64_t elements,
                                   int64_t offset, const std::vector<int64_t>& shape,
                                   const std::vector<int64_t>& strides) {
  return global("torch._utils", "_rebuild_tensor_v2")
      .mark()
      .storage(type, key, elements)
      .integer(offset)
      .integers(shape)
      .integers(strides)
      .op(0x89)
      .ordered_dict()
      .tuple()
      .reduce();
}

PickleWriter& PickleWriter::put(uint32_t slot) {
  op('r');
  append_little(bytes_, slot, 4);
  return *this;
}

PickleWriter& PickleWriter::get(uint32_t slot) {
  op('j');
  append_little(bytes_, slot, 4);
  return *this;
}

std::vector<int64_t> row_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i > 1; --i) {
    strides[i - 2] = strides[i - 1] * std::max<int64_t>(shape[i - 1], 1);
  }
  return strides;
}

PickleWriter start_state_dict() {
  PickleWriter writer;
  writer.proto().ordered_dict().mark();
  return writer;
}

Bytes finish_state_dict(PickleWriter writer) {
  writer.set_items();
  writer.op('}')
      .text("_metadata")
      .ordered_dict()
      .text("")
      .op('}')
      .text("version")
      .integer(1)
      .op('s')
      .op('s')
      .op('s')
      .op('b')
      .stop();
  return writer.bytes();
}

Bytes state_dict_pickle(const std::vector<TensorData>& tensors) {
  PickleWriter writer = start_state_dict();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorData& tensor = tensors[i];
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    writer.text(tensor.name)
        .tensor(storage_type(tensor.dtype), std::to_string(i), elements, 0, tensor.shape,
                row_major(tensor.shape));
  }
  return finish_state_dict(std::move(writer));
}

std::vector<ZipSpec> torch_members(const std::vector<TensorData>& tensors,
                                   const std::string& root) {
  std::vector<ZipSpec> members;
  const auto add = [&](const std::string& name, Bytes data) {
    members.push_back({});
    members.back().name = root + "/" + name;
    members.back().data = std::move(data);
  };
  add("data.pkl", state_dict_pickle(tensors));
  add("byteorder", bytes_of("little"));
  for (size_t i = 0; i < tensors.size(); ++i) add("data/" + std::to_string(i), tensors[i].data);
  add("version", bytes_of("3\n"));
  add(".data/serialization_id", bytes_of(std::string(40, '7')));
  return members;
}

Bytes torch_file(const std::vector<TensorData>& tensors) {
  return zip_file(torch_members(tensors));
}

}  // namespace spillway
