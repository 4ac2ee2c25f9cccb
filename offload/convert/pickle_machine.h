// The stack machine behind read_state_dict(): runs the opcodes up to STOP. See pickle_reader.h.
// One use, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/pickle_reader.h"
#include "offload/convert/pickle_value.h"

namespace spillway::pickle {

class Machine {
 public:
  // `bytes` must outlive the machine: strings are views into it.
  explicit Machine(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // Runs the whole pickle; returns the one value it leaves. Errors name the byte.
  Result<Value> run();

  // The objects that values of the matching kind refer to.
  std::string_view text(const Value& value) const;
  const Dict& dict(const Value& value) const { return dicts_[index(value)]; }
  const Tensor& tensor(const Value& value) const { return tensors_[index(value)]; }
  const std::vector<PickledStorage>& storages() const { return storages_; }

 private:
  static size_t index(const Value& value) { return static_cast<size_t>(value.number); }

  Status step(uint8_t opcode);  // All opcodes but PROTO and STOP.
  Status step_number(uint8_t opcode);

  // Operands that follow the opcode.
  Result<uint64_t> take_number(size_t bytes);
  Result<std::string_view> take_line();
  Status take_string();
  Status take_long();

  // The stack. Nothing below the last MARK can be reached.
  Status push(Value value);
  Result<Value> pop();
  Result<Value> pop(Kind kind, const char* what);
  Result<std::span<const Value>> above_mark();  // Valid until the next push.
  Status drop_to_mark();

  Status memo_put(uint64_t slot);
  Status memo_get(uint64_t slot);
  Status push_tuple(std::span<const Value> items);
  Status push_tuple_of(size_t count);
  Status push_dict(bool ordered);
  Status push_global();
  Status set_items(std::span<const Value> pairs, Value target);
  Status set_item();
  Status build();
  Status reduce();
  Status push_storage();

  // Torch's functions, on the items of their argument tuple.
  Result<Value> rebuild_tensor(std::span<const Value> arguments);
  Result<Value> rebuild_parameter(std::span<const Value> arguments);
  Result<std::vector<int64_t>> sizes(const Value& tuple, const char* what) const;
  bool is_empty_hooks(const Value& value) const;
  std::span<const Value> items(const Value& tuple) const;

  const std::span<const std::byte> bytes_;
  size_t at_ = 0;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;  // Stack sizes at each MARK
  std::vector<Value> memo_;
  std::vector<Value> tuple_items_;  // All tuples, one after the other.
  std::vector<Dict> dicts_;
  std::vector<Tensor> tensors_;
  std::vector<PickledStorage> storages_;
  std::unordered_map<uint32_t, uint32_t> storage_by_key_;
};

}  // namespace spillway::pickle
