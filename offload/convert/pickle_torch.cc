// The torch half of the pickle machine: the known names and the values they build.
#include <algorithm>
#include <charconv>

#include "kernels/base/checked_math.h"
#include "kernels/base/quote.h"
#include "offload/convert/pickle_machine.h"

namespace spillway::pickle {

namespace {

struct StorageName {
  std::string_view global;
  std::string_view format;
};

constexpr StorageName kStorages[] = {
    {"HalfStorage", "F16"},   {"BFloat16Storage", "BF16"}, {"FloatStorage", "F32"},
    {"DoubleStorage", "F64"}, {"LongStorage", "I64"},      {"IntStorage", "I32"},
    {"ShortStorage", "I16"},  {"CharStorage", "I8"},       {"ByteStorage", "U8"},
    {"BoolStorage", "BOOL"},
};

constexpr size_t kTorchTensorsMax = size_t{1} << 21;
constexpr size_t kStoragesMax = 1'000'000;

// "0", "17": the number of a record, without leading zeros.
std::optional<uint32_t> storage_key(std::string_view text) {
  uint32_t key = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), key);
  const bool good = error == std::errc() && end == text.data() + text.size() && text.size() <= 9 &&
                    (text == "0" || text.front() != '0');
  return good ? std::optional(key) : std::nullopt;
}

bool is_location(std::string_view text) {
  if (text == "cpu" || text == "cuda") return true;
  if (!text.starts_with("cuda:")) return false;
  text.remove_prefix(5);
  return !text.empty() && text.size() <= 4 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Whether the strides are row-major without gaps; the stride of a dimension of size 1 is ignored.
bool is_contiguous(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                   uint64_t elements) {
  if (elements == 0) return true;
  int64_t expected = 1;
  for (size_t i = shape.size(); i > 0; --i) {
    if (shape[i - 1] != 1 && strides[i - 1] != expected) return false;
    expected *= shape[i - 1];  // At most `elements`: no overflow.
  }
  return true;
}

}  // namespace

Status Machine::push_global() {
  SPILLWAY_ASSIGN_OR_RETURN(const std::string_view module, take_line());
  SPILLWAY_ASSIGN_OR_RETURN(const std::string_view name, take_line());
  Value value = {.kind = Kind::kGlobal};
  if (module == "collections" && name == "OrderedDict") return push(value);
  value.global = Global::kRebuildTensor;
  if (module == "torch._utils" && name == "_rebuild_tensor_v2") return push(value);
  value.global = Global::kRebuildParameter;
  if (module == "torch._utils" && name == "_rebuild_parameter") return push(value);
  value.global = Global::kStorageType;
  for (size_t i = 0; module == "torch" && i < std::size(kStorages); ++i) {
    value.number = static_cast<int64_t>(i);
    if (kStorages[i].global == name) return push(value);
  }
  return invalid_argument("the pickle asks for " + in_quotes(module) + "." + in_quotes(name) +
                          ", which a plain state dict does not need; save model.state_dict() "
                          "with torch.save");
}

// BINPERSID: ('storage', torch.XStorage, '0', 'cpu', elements).
Status Machine::push_storage() {
  SPILLWAY_ASSIGN_OR_RETURN(const Value id, pop(Kind::kTuple, "a tuple as persistent id"));
  const std::span<const Value> parts = items(id);
  const bool good = parts.size() == 5 && parts[0].kind == Kind::kString &&
                    text(parts[0]) == "storage" && parts[1].kind == Kind::kGlobal &&
                    parts[1].global == Global::kStorageType && parts[2].kind == Kind::kString &&
                    parts[3].kind == Kind::kString && is_location(text(parts[3])) &&
                    parts[4].kind == Kind::kInt && parts[4].number >= 0;
  const std::optional<uint32_t> key = good ? storage_key(text(parts[2])) : std::nullopt;
  if (!key) return invalid_argument("a persistent id that is no storage on cpu or cuda");
  const StoredFormat* format = stored_format_of_name(kStorages[index(parts[1])].format);
  const auto elements = static_cast<uint64_t>(parts[4].number);
  const auto next = static_cast<uint32_t>(storages_.size());
  const auto [found, fresh] = storage_by_key_.emplace(*key, next);
  if (fresh) {
    if (storages_.size() == kStoragesMax) return invalid_argument("more than 1,000,000 storages");
    storages_.push_back({*key, format, elements});
  }
  const PickledStorage& known = storages_[found->second];
  if (known.format != format || known.elements != elements) {
    return corruption("storage " + std::to_string(*key) + " is described in two ways");
  }
  return push({.kind = Kind::kStorage, .number = found->second});
}

Status Machine::reduce() {
  SPILLWAY_ASSIGN_OR_RETURN(const Value arguments, pop(Kind::kTuple, "a tuple of arguments"));
  SPILLWAY_ASSIGN_OR_RETURN(const Value callable, pop(Kind::kGlobal, "a known name to call"));
  if (callable.global == Global::kOrderedDict && arguments.size == 0) return push_dict(true);
  if (callable.global == Global::kRebuildTensor) {
    SPILLWAY_ASSIGN_OR_RETURN(const Value tensor, rebuild_tensor(items(arguments)));
    return push(tensor);
  }
  if (callable.global == Global::kRebuildParameter) {
    SPILLWAY_ASSIGN_OR_RETURN(const Value tensor, rebuild_parameter(items(arguments)));
    return push(tensor);
  }
  return invalid_argument("a call with arguments that a state dict does not need");
}

bool Machine::is_empty_hooks(const Value& value) const {
  return value.kind == Kind::kDict && dict(value).ordered && dict(value).items.empty();
}

Result<std::vector<int64_t>> Machine::sizes(const Value& tuple, const char* what) const {
  std::vector<int64_t> list;
  const bool good = tuple.kind == Kind::kTuple && tuple.size <= kRankMax;
  if (!good) return invalid_argument(std::string(what) + " is no tuple of at most 8 numbers");
  for (const Value& item : items(tuple)) {
    if (item.kind != Kind::kInt || item.number < 0) {
      return invalid_argument(std::string(what) + " has an item that is no size");
    }
    list.push_back(item.number);
  }
  return list;
}

// (storage, offset, size, stride, requires_grad, hooks). A seventh argument would carry bits that
// change what the numbers mean (conjugate, negative).
Result<Value> Machine::rebuild_tensor(std::span<const Value> arguments) {
  const bool good = arguments.size() == 6 && arguments[0].kind == Kind::kStorage &&
                    arguments[1].kind == Kind::kInt && arguments[1].number >= 0 &&
                    arguments[4].kind == Kind::kBool && is_empty_hooks(arguments[5]);
  if (!good) return invalid_argument("a tensor with arguments that a state dict does not need");
  Tensor tensor;
  tensor.storage = static_cast<uint32_t>(arguments[0].number);
  tensor.offset = static_cast<uint64_t>(arguments[1].number);
  SPILLWAY_ASSIGN_OR_RETURN(tensor.shape, sizes(arguments[2], "the size"));
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<int64_t> strides, sizes(arguments[3], "the stride"));
  const PickledStorage& storage = storages_[tensor.storage];
  const auto bytes = stored_bytes(*storage.format, tensor.shape);
  if (!bytes || strides.size() != tensor.shape.size()) {
    return corruption("a tensor of shape " + shape_text(tensor.shape) + " cannot be");
  }
  const uint64_t elements = *bytes / (storage.format->bits / 8);
  if (!is_contiguous(tensor.shape, strides, elements)) {
    return invalid_argument("a tensor of shape " + shape_text(tensor.shape) + " and stride " +
                            shape_text(strides) + " is a view; save it again after .contiguous()");
  }
  if (tensor.offset > storage.elements || elements > storage.elements - tensor.offset) {
    return corruption("a tensor of shape " + shape_text(tensor.shape) + " leaves storage " +
                      std::to_string(storage.key));
  }
  if (tensors_.size() == kTorchTensorsMax) return invalid_argument("more than 2,097,152 tensors");
  tensors_.push_back(std::move(tensor));
  return Value{.kind = Kind::kTensor, .number = static_cast<int64_t>(tensors_.size() - 1)};
}

// (tensor, requires_grad, hooks)
Result<Value> Machine::rebuild_parameter(std::span<const Value> arguments) {
  const bool good = arguments.size() == 3 && arguments[0].kind == Kind::kTensor &&
                    arguments[1].kind == Kind::kBool && is_empty_hooks(arguments[2]);
  if (!good) return invalid_argument("a parameter with arguments that a state dict does not need");
  return arguments[0];
}

}  // namespace spillway::pickle
