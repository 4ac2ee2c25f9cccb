// The pickle machine: state dicts are read, anything that could run code or hang is refused.
#include "offload/convert/pickle_reader.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <random>

#include "tests/support/seed.h"
#include "tests/support/torch_writer.h"

namespace spillway::pickle_reader_test {
namespace {

constexpr const char* kFloat = "FloatStorage";

Result<StateDict> read(const Bytes& bytes) {
  return read_state_dict(bytes);
}

void check_refused(const PickleWriter& writer, const std::string& reason) {
  const auto result = read(writer.bytes());
  INFO(reason);
  REQUIRE_FALSE(result.ok());
  CHECK_THAT(std::string(result.status().message()), Catch::Contains(reason));
}

void check_refused_in_dict(PickleWriter value, const std::string& reason) {
  PickleWriter writer = start_state_dict();
  writer.text("x");
  Bytes bytes = writer.bytes();
  bytes.insert(bytes.end(), value.bytes().begin(), value.bytes().end());
  PickleWriter whole;
  whole.raw({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const auto result = read(finish_state_dict(whole));
  INFO(reason);
  REQUIRE_FALSE(result.ok());
  CHECK_THAT(std::string(result.status().message()), Catch::Contains(reason));
}

PickleWriter value() {
  return {};
}

TEST_CASE("a state dict's tensors come back with storage, offset and shape") {
  PickleWriter writer = start_state_dict();
  writer.text("a").tensor(kFloat, "0", 12, 0, {3, 4}, {4, 1});
  writer.text("b").tensor("HalfStorage", "1", 10, 4, {6}, {1});
  writer.text("scalar").tensor("BFloat16Storage", "12", 1, 0, {}, {});
  writer.text("row").tensor(kFloat, "0", 12, 8, {1, 4}, {77, 1});  // A size of 1 has any stride.
  writer.text("empty").tensor(kFloat, "0", 12, 12, {0, 5}, {5, 1});
  const auto result = read(finish_state_dict(writer));
  INFO(result.status().message());
  REQUIRE(result.ok());
  const StateDict& dict = result.value();
  REQUIRE(dict.tensors.size() == 5);
  CHECK(dict.tensors[0].name == "a");
  CHECK(dict.tensors[0].shape == std::vector<int64_t>{3, 4});
  CHECK(dict.tensors[1].offset == 4);
  CHECK(dict.tensors[3].offset == 8);
  REQUIRE(dict.storages.size() == 3);
  CHECK(dict.storages[dict.tensors[1].storage].key == 1);
  CHECK(dict.storages[dict.tensors[1].storage].format->name == "F16");
  CHECK(dict.storages[dict.tensors[2].storage].key == 12);
  CHECK(dict.storages[dict.tensors[2].storage].format->name == "BF16");
  CHECK(dict.tensors[3].storage == dict.tensors[0].storage);
}

TEST_CASE("plain dicts, parameters, memoised tensors and large numbers are read") {
  PickleWriter writer;
  writer.proto().op('}').put(0).mark();
  writer.text("tied").tensor(kFloat, "0", 4, 0, {4}, {1}).put(300);
  writer.text("head").get(300);
  writer.text("parameter").global("torch._utils", "_rebuild_parameter").mark();
  writer.tensor(kFloat, "1", int64_t{1} << 40, 0, {int64_t{1} << 40}, {1});
  writer.op(0x88).ordered_dict().tuple().reduce();
  writer.set_items().stop();
  const auto result = read(writer.bytes());
  INFO(result.status().message());
  REQUIRE(result.ok());
  REQUIRE(result.value().tensors.size() == 3);
  CHECK(result.value().tensors[0].storage == result.value().tensors[1].storage);
  CHECK(result.value().tensors[2].shape == std::vector<int64_t>{int64_t{1} << 40});
}

TEST_CASE("more than a thousand items come in several batches") {
  PickleWriter writer;
  writer.proto().ordered_dict();
  for (int batch = 0; batch < 3; ++batch) {
    writer.mark();
    for (int i = 0; i < 1000; ++i) {
      const std::string key = std::to_string(batch * 1000 + i);
      writer.text(key).tensor(kFloat, key, 1, 0, {1}, {1});
    }
    writer.set_items();
  }
  CHECK(read(writer.stop().bytes()).value().tensors.size() == 3000);
}

TEST_CASE("names beyond the few that state dicts need are refused by name") {
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"os", "system"},
                                                        {"posix", "system"},
                                                        {"builtins", "eval"},
                                                        {"torch", "load"},
                                                        {"torch.storage", "TypedStorage"},
                                                        {"torch.storage", "UntypedStorage"},
                                                        {"torch._utils", "_rebuild_tensor_v3"},
                                                        {"torch._utils", "_rebuild_sparse_tensor"},
                                                        {"collections", "Counter"},
                                                        {"torch", "floatstorage"},
                                                        {"torch", "FloatStorage2"}}) {
    check_refused(PickleWriter().proto().global(module, name).stop(), "'" + name + "'");
  }
  check_refused(PickleWriter().proto().global("\x1b[31mred", "x").stop(), "\\x1b");
  check_refused(PickleWriter().proto().global(std::string(300, 'm'), "x").stop(), "256");
}

TEST_CASE("every opcode but the known ones is refused") {
  const std::string known = "()tQR}ubcKMJNXhjqrs.\x85\x86\x87\x88\x89\x8a";
  for (int opcode = 0; opcode < 256; ++opcode) {
    if (known.find(static_cast<char>(opcode)) != std::string::npos) continue;
    INFO(opcode);
    check_refused(
        PickleWriter().proto().op(static_cast<uint8_t>(opcode)).raw(std::string(16, '\0')),
        "does not occur");
  }
}

TEST_CASE("other protocols are refused with what to do") {
  for (const uint8_t protocol : {0, 1, 3, 4, 5}) {
    check_refused(PickleWriter().op(0x80).op(protocol).op('}').stop(), "default protocol");
  }
  check_refused(PickleWriter().op('}').op('.').op('.'), "no pickle");
}

TEST_CASE("broken programs are refused") {
  const auto start = [] { return PickleWriter().proto(); };
  check_refused(start().op('}'), "STOP");
  check_refused(start().op('}').stop().stop(), "behind");
  check_refused(start().op('}').op('}').stop(), "single");
  check_refused(start().op('}').mark().stop(), "single");
  check_refused(start().stop(), "single");
  check_refused(start().tuple().stop(), "mark");
  check_refused(start().op('}').set_items().stop(), "mark");
  check_refused(start().mark().set_items().stop(), "stack");
  check_refused(start().op(0x86).stop(), "stack");
  check_refused(start().op('}').mark().op(0x85).stop(), "stack");  // Reaches below the mark.
  check_refused(start().op('}').mark().put(0).stop(), "stack");
  check_refused(start().op('}').mark().text("k").set_items().stop(), "without a value");
  check_refused(start().op('}').integer(1).integer(2).op('s').stop(), "no string");
  check_refused(start().op(')').text("k").integer(2).op('s').stop(), "no dict");
  check_refused(start().get(0).stop(), "memo slot 0");
  check_refused(start().op('}').put(3).get(2).stop(), "memo slot 2");
  check_refused(start().op('}').put(0x7fffffff).stop(), "memo slot");
  check_refused(start().op('X').raw("\xff\xff\xff\xff"), "4096");
  check_refused(start().op('X').raw(std::string("\x10\0\0\0short", 9)), "cut off");
  check_refused(start().op(0x8a).op(9).raw(std::string(9, '\0')).stop(), "64 bits");
  check_refused(start().op('c').raw("torch"), "name");
  check_refused(start().op(')').stop(), "no dict");
  check_refused(start().op('}').text(std::string(1025, 'k')).op(')').op('s').stop(), "1024");
  check_refused(start().mark().raw(std::string(65, 'N')).tuple().stop(), "64 items");
}

TEST_CASE("calls other than the three allowed ones are refused") {
  const auto call = [](const char* module, const char* name) {
    return PickleWriter().global(module, name);
  };
  check_refused_in_dict(call("collections", "OrderedDict").integer(1).op(0x85).reduce(), "a call");
  check_refused_in_dict(call("torch", kFloat).op(')').reduce(), "a call");
  check_refused_in_dict(call("torch._utils", "_rebuild_tensor_v2").op(')').reduce(), "arguments");
  check_refused_in_dict(call("torch._utils", "_rebuild_parameter").op(')').reduce(), "arguments");
  check_refused_in_dict(value().op('}').op(')').reduce(), "known name");
  check_refused_in_dict(call("collections", "OrderedDict").op('}').reduce(), "tuple");
}

TEST_CASE("tensors that a storage cannot hold are refused") {
  const auto tensor = [](int64_t elements, int64_t offset, std::vector<int64_t> shape,
                         std::vector<int64_t> strides) {
    return value().tensor(kFloat, "0", elements, offset, shape, strides);
  };
  check_refused_in_dict(tensor(11, 0, {3, 4}, {4, 1}), "leaves storage");
  check_refused_in_dict(tensor(12, 1, {3, 4}, {4, 1}), "leaves storage");
  check_refused_in_dict(tensor(12, -1, {3, 4}, {4, 1}), "arguments");
  check_refused_in_dict(tensor(12, INT64_MAX, {3, 4}, {4, 1}), "leaves storage");
  check_refused_in_dict(tensor(12, 0, {4, 3}, {1, 4}), "contiguous");  // A transposed view.
  check_refused_in_dict(tensor(24, 0, {3, 4}, {8, 2}), "contiguous");
  check_refused_in_dict(tensor(12, 0, {3, 4}, {0, 1}), "contiguous");
  check_refused_in_dict(tensor(12, 0, {3, 4}, {4}), "cannot be");
  check_refused_in_dict(tensor(12, 0, {3, -4}, {4, 1}), "no size");
  check_refused_in_dict(tensor(12, 0, {int64_t{1} << 62, 4, 4}, {16, 4, 1}), "cannot be");
  check_refused_in_dict(tensor(1, 0, std::vector<int64_t>(9, 1), std::vector<int64_t>(9, 1)),
                        "8 numbers");
}

TEST_CASE("storages that are not plain are refused") {
  const auto id = [](const char* what, const char* type, const char* key, const char* where,
                     int64_t elements) {
    return PickleWriter()
        .mark()
        .text(what)
        .global("torch", type)
        .text(key)
        .text(where)
        .integer(elements)
        .tuple()
        .op('Q');
  };
  check_refused_in_dict(id("module", kFloat, "0", "cpu", 1), "persistent id");
  check_refused_in_dict(id("storage", kFloat, "00", "cpu", 1), "persistent id");
  check_refused_in_dict(id("storage", kFloat, "-1", "cpu", 1), "persistent id");
  check_refused_in_dict(id("storage", kFloat, "../0", "cpu", 1), "persistent id");
  check_refused_in_dict(id("storage", kFloat, "1234567890", "cpu", 1), "persistent id");
  check_refused_in_dict(id("storage", kFloat, "0", "meta", 1), "persistent id");
  check_refused_in_dict(id("storage", kFloat, "0", "cuda:", 1), "persistent id");
  check_refused_in_dict(id("storage", kFloat, "0", "cpu", -1), "persistent id");
  check_refused_in_dict(id("storage", kFloat, "0", "cuda:0", 1), "no tensor");
  check_refused_in_dict(value().op('}').op('Q'), "persistent id");
}

TEST_CASE("one storage described in two ways is refused") {
  PickleWriter writer = start_state_dict();
  writer.text("a").tensor(kFloat, "0", 4, 0, {4}, {1});
  writer.text("b").tensor("HalfStorage", "0", 4, 0, {4}, {1});
  check_refused(writer.set_items().stop(), "two ways");
}

TEST_CASE("what is not a dict of tensors with unique names is refused") {
  check_refused_in_dict(value().integer(7), "no tensor");
  check_refused_in_dict(value().ordered_dict(), "no tensor");
  PickleWriter twice = start_state_dict();
  twice.text("a").tensor(kFloat, "0", 4, 0, {4}, {1});
  twice.text("a").tensor(kFloat, "0", 4, 0, {4}, {1});
  check_refused(twice.set_items().stop(), "twice");
  PickleWriter attribute = PickleWriter().proto().ordered_dict();
  attribute.op('}').text("__reduce__").integer(1).op('s').op('b').stop();
  check_refused(attribute, "_metadata");
  PickleWriter plain = PickleWriter().proto().op('}');
  plain.op('}').text("_metadata").integer(1).op('s').op('b').stop();
  check_refused(plain, "_metadata");
  // A seventh argument carries bits that negate or conjugate the numbers.
  PickleWriter seventh;
  seventh.global("torch._utils", "_rebuild_tensor_v2").mark().storage(kFloat, "0", 4).integer(0);
  seventh.integers({4}).integers({1}).op(0x89).ordered_dict().op('}').tuple().reduce();
  check_refused_in_dict(seventh, "arguments");
}

TEST_CASE("doubling tuples and self-reference cost nothing") {
  PickleWriter doubling;
  doubling.proto().op(')').put(0);
  for (int i = 0; i < 100; ++i) doubling.get(0).get(0).op(0x86).put(0).op('N').op(0x86);
  const auto start = std::chrono::steady_clock::now();
  CHECK_FALSE(read(doubling.stop().bytes()).ok());
  PickleWriter self;
  self.proto().op('}').put(0).text("x").get(0).op('s').stop();
  CHECK_FALSE(read(self.bytes()).ok());
  PickleWriter deep;
  deep.proto().op(')');
  for (int i = 0; i < 1'000'000; ++i) deep.op(0x85);
  CHECK_FALSE(read(deep.stop().bytes()).ok());
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("mutated pickles never break the machine") {
  PickleWriter writer = start_state_dict();
  writer.text("a").tensor(kFloat, "0", 12, 0, {3, 4}, {4, 1});
  writer.text("b").tensor("HalfStorage", "1", 300, 4, {6}, {1});
  const Bytes good = finish_state_dict(writer);
  const unsigned seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::minstd_rand random(seed);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    Bytes bad = good;
    for (unsigned n = random() % 3 + 1; n > 0; --n) {
      bad[random() % bad.size()] = static_cast<std::byte>(random());
    }
    refused += read(bad).ok() ? 0 : 1;
  }
  CHECK(refused > 2500);
}

}  // namespace
}  // namespace spillway::pickle_reader_test
