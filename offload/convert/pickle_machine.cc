#include "offload/convert/pickle_machine.h"

#include <algorithm>

#include "offload/convert/little_endian.h"

namespace spillway::pickle {

namespace {

enum Opcode : uint8_t {
  kMark = 0x28,
  kEmptyTuple = 0x29,
  kStop = 0x2e,
  kBinInt = 0x4a,
  kBinInt1 = 0x4b,
  kBinInt2 = 0x4d,
  kNone = 0x4e,
  kBinPersId = 0x51,
  kReduce = 0x52,
  kBinUnicode = 0x58,
  kBuild = 0x62,
  kGlobal = 0x63,
  kBinGet = 0x68,
  kLongBinGet = 0x6a,
  kBinPut = 0x71,
  kLongBinPut = 0x72,
  kSetItem = 0x73,
  kTuple = 0x74,
  kSetItems = 0x75,
  kEmptyDict = 0x7d,
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
};

// Limits. The largest real file, opt-175b's, needs a thousandth.
constexpr size_t kOperationsMax = 20'000'000;
constexpr size_t kStackMax = size_t{1} << 22;
constexpr size_t kMemoMax = size_t{1} << 22;
constexpr size_t kDictsMax = size_t{1} << 22;
constexpr size_t kStringBytesMax = 4096;
constexpr size_t kKeyBytesMax = 1024;
constexpr size_t kGlobalBytesMax = 256;
constexpr size_t kTupleItemsMax = 64;

constexpr uint8_t kProtocol = 2;

std::string hex(uint8_t byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  return {'0', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

}  // namespace

Result<Value> Machine::run() {
  if (bytes_.size() > kPickleBytesMax) return invalid_argument("larger than 64 MiB");
  if (bytes_.size() < 3 || bytes_[0] != std::byte{kProto}) return invalid_argument("no pickle");
  if (bytes_[1] != std::byte{kProtocol}) {
    return invalid_argument("pickle protocol " + std::to_string(static_cast<unsigned>(bytes_[1])) +
                            "; save it again with torch.save's default protocol, 2");
  }
  at_ = 2;
  for (size_t operations = 0;; ++operations) {
    if (at_ == bytes_.size()) return corruption("the pickle ends without STOP");
    const size_t start = at_;
    const auto opcode = static_cast<uint8_t>(bytes_[at_++]);
    if (opcode == kStop) break;
    if (operations == kOperationsMax) return invalid_argument("more than 20,000,000 operations");
    if (const Status status = step(opcode); !status.ok()) {
      return status.at("pickle, byte " + std::to_string(start));
    }
  }
  if (at_ != bytes_.size()) return corruption("bytes behind the pickle's STOP");
  if (stack_.size() != 1 || !marks_.empty()) return corruption("the pickle leaves no single value");
  return stack_.front();
}

Status Machine::step(uint8_t opcode) {
  switch (opcode) {
    case kMark:
      if (marks_.size() == kStackMax) return invalid_argument("too many marks");
      marks_.push_back(stack_.size());
      return {};
    case kEmptyTuple:
      return push_tuple({});
    case kTuple: {
      SPILLWAY_ASSIGN_OR_RETURN(const auto above, above_mark());
      const std::vector<Value> copy(above.begin(), above.end());
      SPILLWAY_RETURN_IF_ERROR(drop_to_mark());
      return push_tuple(copy);
    }
    case kTuple1:
    case kTuple2:
    case kTuple3:
      return push_tuple_of(opcode - kTuple1 + size_t{1});
    case kEmptyDict:
      return push_dict(false);
    case kNone:
      return push({.kind = Kind::kNone});
    case kNewTrue:
    case kNewFalse:
      return push({.kind = Kind::kBool, .number = opcode == kNewTrue ? 1 : 0});
    case kBinUnicode:
      return take_string();
    case kGlobal:
      return push_global();
    case kBinPersId:
      return push_storage();
    case kReduce:
      return reduce();
    case kBuild:
      return build();
    case kSetItem:
      return set_item();
    case kSetItems: {
      SPILLWAY_ASSIGN_OR_RETURN(const auto above, above_mark());
      const std::vector<Value> copy(above.begin(), above.end());
      SPILLWAY_RETURN_IF_ERROR(drop_to_mark());
      if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) return corruption("empty stack");
      return set_items(copy, stack_.back());
    }
    default:
      return step_number(opcode);
  }
}

Status Machine::step_number(uint8_t opcode) {
  const size_t operand_bytes = opcode == kBinInt || opcode == kLongBinGet || opcode == kLongBinPut
                                   ? 4
                               : opcode == kBinInt2                                           ? 2
                               : opcode == kBinInt1 || opcode == kBinGet || opcode == kBinPut ? 1
                                                                                              : 0;
  if (opcode == kLong1) return take_long();
  if (operand_bytes == 0) {
    return invalid_argument("opcode " + hex(opcode) + " does not occur in a state dict");
  }
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t operand, take_number(operand_bytes));
  if (opcode == kBinGet || opcode == kLongBinGet) return memo_get(operand);
  if (opcode == kBinPut || opcode == kLongBinPut) return memo_put(operand);
  // Only the four-byte form is signed.
  const int64_t number =
      opcode == kBinInt ? static_cast<int32_t>(operand) : static_cast<int64_t>(operand);
  return push({.kind = Kind::kInt, .number = number});
}

Result<uint64_t> Machine::take_number(size_t count) {
  if (count > bytes_.size() - at_) return corruption("the pickle is cut off");
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= static_cast<uint64_t>(bytes_[at_ + i]) << (8 * i);
  at_ += count;
  return value;
}

// LONG1: little-endian two's complement of up to eight bytes.
Status Machine::take_long() {
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t count, take_number(1));
  if (count > 8) return invalid_argument("a whole number of more than 64 bits");
  SPILLWAY_ASSIGN_OR_RETURN(uint64_t bits, take_number(count));
  const bool negative = count > 0 && (bits >> (8 * count - 1) & 1) != 0;
  if (negative && count < 8) bits |= ~uint64_t{0} << (8 * count);
  return push({.kind = Kind::kInt, .number = static_cast<int64_t>(bits)});
}

Status Machine::take_string() {
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t count, take_number(4));
  if (count > kStringBytesMax) return invalid_argument("a string of more than 4096 bytes");
  if (count > bytes_.size() - at_) return corruption("the pickle is cut off");
  const Value value = {.kind = Kind::kString,
                       .size = static_cast<uint32_t>(count),
                       .number = static_cast<int64_t>(at_)};
  at_ += count;
  return push(value);
}

Result<std::string_view> Machine::take_line() {
  const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_,
                              bytes_.size() - at_);
  const size_t end = rest.substr(0, kGlobalBytesMax + 1).find('\n');
  if (end == std::string_view::npos) return corruption("a name of more than 256 bytes");
  at_ += end + 1;
  return rest.substr(0, end);
}

std::string_view Machine::text(const Value& value) const {
  return {reinterpret_cast<const char*>(bytes_.data()) + value.number, value.size};
}

Status Machine::push(Value value) {
  if (stack_.size() == kStackMax)
    return invalid_argument("more than 4,194,304 values on the stack");
  stack_.push_back(value);
  return {};
}

Result<Value> Machine::pop() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) return corruption("empty stack");
  const Value value = stack_.back();
  stack_.pop_back();
  return value;
}

Result<Value> Machine::pop(Kind kind, const char* what) {
  SPILLWAY_ASSIGN_OR_RETURN(const Value value, pop());
  if (value.kind != kind) return invalid_argument(std::string("expected ") + what);
  return value;
}

Result<std::span<const Value>> Machine::above_mark() {
  if (marks_.empty()) return corruption("no mark on the stack");
  return std::span<const Value>(stack_).subspan(marks_.back());
}

Status Machine::drop_to_mark() {
  stack_.resize(marks_.back());
  marks_.pop_back();
  return {};
}

Status Machine::memo_put(uint64_t slot) {
  if (slot >= kMemoMax) return invalid_argument("memo slot beyond 4,194,304");
  SPILLWAY_ASSIGN_OR_RETURN(const Value value, pop());
  if (memo_.size() <= slot) memo_.resize(slot + 1);
  memo_[slot] = value;
  return push(value);
}

Status Machine::memo_get(uint64_t slot) {
  if (slot >= memo_.size() || memo_[slot].kind == Kind::kUnset) {
    return corruption("memo slot " + std::to_string(slot) + " is empty");
  }
  return push(memo_[slot]);
}

Status Machine::push_tuple(std::span<const Value> items) {
  if (items.size() > kTupleItemsMax) return invalid_argument("a tuple of more than 64 items");
  const Value value = {.kind = Kind::kTuple,
                       .size = static_cast<uint32_t>(items.size()),
                       .number = static_cast<int64_t>(tuple_items_.size())};
  tuple_items_.insert(tuple_items_.end(), items.begin(), items.end());
  return push(value);
}

Status Machine::push_tuple_of(size_t count) {
  Value items[3];
  for (size_t i = count; i > 0; --i) {
    SPILLWAY_ASSIGN_OR_RETURN(items[i - 1], pop());
  }
  return push_tuple(std::span(items).first(count));
}

std::span<const Value> Machine::items(const Value& tuple) const {
  return std::span(tuple_items_).subspan(index(tuple), tuple.size);
}

Status Machine::push_dict(bool ordered) {
  if (dicts_.size() == kDictsMax) return invalid_argument("more than 4,194,304 dicts");
  dicts_.push_back({.ordered = ordered, .items = {}});
  return push({.kind = Kind::kDict, .number = static_cast<int64_t>(dicts_.size() - 1)});
}

Status Machine::set_item() {
  SPILLWAY_ASSIGN_OR_RETURN(const Value value, pop());
  SPILLWAY_ASSIGN_OR_RETURN(const Value key, pop());
  SPILLWAY_ASSIGN_OR_RETURN(const Value target, pop());
  SPILLWAY_RETURN_IF_ERROR(push(target));
  const Value pair[] = {key, value};
  return set_items(pair, target);
}

Status Machine::set_items(std::span<const Value> pairs, Value target) {
  if (target.kind != Kind::kDict) return invalid_argument("items are set on what is no dict");
  if (pairs.size() % 2 != 0) return corruption("a key without a value");
  Dict& dict = dicts_[index(target)];
  for (size_t i = 0; i < pairs.size(); i += 2) {
    if (pairs[i].kind != Kind::kString) return invalid_argument("a key that is no string");
    if (pairs[i].size > kKeyBytesMax) return invalid_argument("a key of more than 1024 bytes");
    dict.items.emplace_back(pairs[i], pairs[i + 1]);
  }
  return {};
}

// BUILD: torch attaches module versions to the state dict: {'_metadata': ...}. Checked, then
// dropped.
Status Machine::build() {
  SPILLWAY_ASSIGN_OR_RETURN(const Value state, pop(Kind::kDict, "a dict of attributes"));
  SPILLWAY_ASSIGN_OR_RETURN(const Value target, pop(Kind::kDict, "an OrderedDict to build"));
  const Dict& attributes = dict(state);
  const bool good = dict(target).ordered && attributes.items.size() == 1 &&
                    text(attributes.items.front().first) == "_metadata";
  if (!good) return invalid_argument("attributes other than an OrderedDict's _metadata");
  return push(target);
}

}  // namespace spillway::pickle
