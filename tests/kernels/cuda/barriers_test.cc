// Every barrier of our kernels is needed, and its loss is found: without any one of them some order
// of the threads gives other results. With all of them every order gives the same bits.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "kernels/ops.h"
#include "tests/support/cuda_emulation.h"
#include "tests/support/places.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/test_devices.h"

namespace spillway::barriers_test {
namespace {

using emulation::Barrier;
using test::DeviceArray;
using Bytes = std::vector<std::byte>;

template <class T>
void append(Bytes* to, const std::vector<T>& values) {
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  to->insert(to->end(), first, first + values.size() * sizeof(T));
}

Bytes bytes_of(const std::vector<float>& values) {
  Bytes bytes;
  append(&bytes, values);
  return bytes;
}

struct Machine {
  std::unique_ptr<Device> device = open_cuda_device(0).value();
  std::unique_ptr<Stream> stream = device->new_stream("test");
};

Bytes layer_norm(const Machine& on) {
  constexpr int64_t kRows = 2, kColumns = 300;
  const DeviceArray<float> x(*on.device, *on.stream, test::random_floats(kRows * kColumns, 1)),
      out(*on.device, *on.stream, std::vector<float>(kRows * kColumns));
  normalize(*on.stream, {.in = x.matrix(kRows, kColumns), .out = out.matrix(kRows, kColumns)});
  return bytes_of(out.read());
}

// Normed heads, of which a lane rotates numbers that other lanes have normed.
Bytes rotated_heads(const Machine& on, int64_t size, bool hadamard) {
  constexpr int64_t kRows = 2, kHeads = 3;
  const int64_t width = 5 * size;
  const DeviceArray<float> qkv(*on.device, *on.stream, test::random_floats(kRows * width, 5)),
      norm(*on.device, *on.stream, test::random_floats(size, 6)),
      table(*on.device, *on.stream, test::random_floats(kRows * size, 7));
  rotate_heads(*on.stream, {.qkv = qkv.matrix(kRows, width),
                            .heads = kHeads,
                            .kv_heads = 1,
                            .head_size = size,
                            .query_norm = norm.data(),
                            .key_norm = norm.data(),
                            .table = table.matrix(kRows, size),
                            .hadamard = hadamard});
  return bytes_of(qkv.read());
}

// More columns than are in shared memory at once; of 4 bits whole groups go to tensor cores.
Bytes quantized_product(const Machine& on, Format format, int64_t columns) {
  constexpr int64_t kRows = 2, kOutputs = 9;
  const test::PackedMatrix packed(on.device->matrix_layout(format), format,
                                  test::random_floats(kOutputs * columns, 2), kOutputs, columns,
                                  64);
  const test::DeviceMatrix weights(*on.device, *on.stream, packed);
  const DeviceArray<std::byte> x(
      *on.device, *on.stream,
      test::bytes_of(DType::kBF16, test::random_floats(kRows * columns, 3)));
  const DeviceArray<float> out(*on.device, *on.stream, std::vector<float>(kRows * kOutputs));
  linear(*on.stream, {.in = dense_matrix(x.data(), DType::kBF16, kRows, columns),
                      .weight = weights.matrix(),
                      .out = out.matrix(kRows, kOutputs)});
  return bytes_of(out.read());
}

// Rows with ties, drawn by every part of the rule, and the highest number of one.
Bytes draw_rows(const Machine& on) {
  constexpr int32_t kColumns = 900;
  std::vector<float> row = test::random_floats(3 * kColumns, 4, 2.0f);
  for (float& x : row) x = std::round(4 * x) / 4;
  const DeviceArray<float> x(*on.device, *on.stream, row);
  const DeviceArray<int32_t> out(*on.device, *on.stream, std::vector<int32_t>(3, -7));
  const std::vector<SampleRule> rules = {
      {.count = kColumns},
      {.count = kColumns, .temperature = 1, .top_k = 50, .top_p = 0.7f, .uniform = 0.6},
      {.count = kColumns, .temperature = 2, .min_p = 0.001f, .uniform = 0.95}};
  sample_rows(*on.stream, {.in = x.matrix(3, kColumns), .rules = rules, .out = out.data()});
  Bytes all = bytes_of(x.read());
  append(&all, out.read());
  return all;
}

struct AttentionCase {
  int64_t heads, kv_heads, size;
  DType out;
  KvBudget budget;
  int64_t first;  // Position of the first call: 0 is a prompt, else a step over a cache of noise
  int64_t prompt;
  int64_t steps;
  Format format = Format::kF32;  // The cache's
};

// Of a sequence that was there before: any positions, scores of the size that a step adds.
Bytes noisy_state(const KvStateLayout& layout, const KvBudget& budget, int64_t heads) {
  Bytes bytes(layout.bytes() + 64);
  std::mt19937_64 random(7);
  for (int64_t head = 0; head < heads && budget.scored(); ++head) {
    const KvHeadState state = layout.head(bytes.data(), head);
    std::iota(state.positions, state.positions + budget.kept, 0);
    std::shuffle(state.positions, state.positions + budget.kept, random);
    std::uniform_real_distribution<float> score(0, 0.01f);
    std::generate_n(state.scores, budget.ring() + budget.kept, [&] { return score(random); });
  }
  return bytes;
}

Bytes attend(const Machine& on, const AttentionCase& c) {
  const KvLayout layout{c.kv_heads, c.size, c.format};
  const int64_t end = c.first + c.prompt + c.steps, width = (c.heads + 2 * c.kv_heads) * c.size;
  // Bytes of float16 are 4-bit rows, too, whose scales and minima are numbers.
  const DType dtype = c.format == Format::kF32 ? DType::kF32 : DType::kF16;
  const auto noise =
      static_cast<int64_t>(layout.sequence_bytes(c.budget.slots(end)) / dtype_bytes(dtype));
  const DeviceArray<std::byte> kv(*on.device, *on.stream,
                                  test::bytes_of(dtype, test::random_floats(noise, 5)));
  const KvStateLayout states{c.kv_heads, c.budget};
  const DeviceArray<std::byte> state(*on.device, *on.stream,
                                     noisy_state(states, c.budget, c.kv_heads));
  Bytes all;
  for (int64_t position = c.first; position < end;) {
    const int64_t tokens = position == 0 ? c.prompt : 1;
    const DeviceArray<float> qkv(
        *on.device, *on.stream,
        test::random_floats(tokens * width, 6 + static_cast<uint64_t>(position)));
    const DeviceArray<std::byte> out(
        *on.device, *on.stream,
        Bytes(static_cast<size_t>(tokens * c.heads * c.size) * dtype_bytes(c.out)));
    const AttentionItem item{0, tokens, position, kv.data(), c.budget, state.data()};
    attention(*on.stream, {.qkv = qkv.matrix(tokens, width),
                           .items = {&item, 1},
                           .heads = c.heads,
                           .kv = layout,
                           .out = dense_matrix(out.data(), c.out, tokens, c.heads * c.size)});
    append(&all, out.read());
    position += tokens;
  }
  append(&all, kv.read());
  append(&all, state.read());
  return all;
}

struct Case {
  const char* name;
  std::function<Bytes(const Machine&)> run;
};

// Between them they come to every barrier, in shapes that need it: several tiles, heads that share
// keys, more positions to choose among than a block has threads.
std::vector<Case> cases() {
  const auto attention_case = [](const char* name, const AttentionCase& c) {
    return Case{name, [=](const Machine& on) { return attend(on, c); }};
  };
  return {
      {"LayerNorm", layer_norm},
      {"rotated heads", [](const Machine& on) { return rotated_heads(on, 70, false); }},
      {"rotated heads, Hadamard", [](const Machine& on) { return rotated_heads(on, 48, true); }},
      {"4-bit product",
       [](const Machine& on) { return quantized_product(on, Format::kQ4, 1024 + 70); }},
      {"4-bit product on tensor cores",
       [](const Machine& on) { return quantized_product(on, Format::kQ4, 1024); }},
      {"8-bit product",
       [](const Machine& on) { return quantized_product(on, Format::kQ8, 2048 + 70); }},
      {"draw", draw_rows},
      attention_case("decode, two splits", {4, 2, 8, DType::kF32, {}, 300, 0, 1}),
      attention_case("decode, three heads share keys", {6, 2, 8, DType::kF32, {}, 300, 0, 1}),
      attention_case("decode by score", {4, 2, 8, DType::kF32, {20, 200, true}, 300, 0, 6}),
      attention_case("decode, wide rows", {4, 2, 64, DType::kF32, {}, 300, 0, 1, Format::kF16}),
      // More heads than a product of the codes has columns for.
      attention_case("decode, 4 bits", {12, 1, 64, DType::kF32, {}, 150, 0, 1, Format::kQ4}),
      attention_case("f32 prompt", {4, 2, 8, DType::kF32, {5, 12, true}, 0, 40, 0}),
      attention_case("many positions", {1, 1, 4, DType::kF32, {9, 120, true}, 0, 200, 0}),
      attention_case("snap by the mean",
                     {2, 1, 4, DType::kF32, {9, 60, true, 0, KvScore::kSnapMean}, 0, 300, 0}),
      attention_case("snap by the highest",
                     {4, 2, 4, DType::kF32, {9, 250, true, 0, KvScore::kSnapMax}, 0, 300, 0}),
      attention_case("bf16 prompt", {2, 1, 32, DType::kBF16, {5, 20, true}, 0, 70, 0})};
}

// Barriers that no case needs, by their text.
const std::map<std::string, const char*> kRedundant = {
    {"__syncthreads();  // The values are there.",
     "copies that are still under way (cp.async) are made at once in the emulation"},
    {"__syncwarp();  // Those of a warp's rows are its own.",
     "lanes exchange sums behind what they write, which orders them in the emulation: but a "
     "shuffle "
     "orders no memory by the letter"},
    {"__syncthreads();  // All have read the scores.",
     "the score that thread 0 moves makes the others' comparison no other: but unordered reads and "
     "writes are a race by the letter"}};

const std::string kFolder = test::source_directory() + "/kernels/cuda/";

std::string text_at(const Barrier& barrier) {
  std::ifstream file(kFolder + barrier.file);
  std::string line;
  for (unsigned i = 0; i < barrier.line; ++i) std::getline(file, line);
  return line.substr(line.find_first_not_of(' '));
}

// In a process of its own, since the kernel may do anything then: whether a few orders of the
// threads give something else than `expected`.
bool fails_without(const Barrier& barrier, const Case& c, const Machine& on,
                   const Bytes& expected) {
  constexpr uint64_t kSeeds = 12;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) std::signal(signal, SIG_DFL);
    if (freopen("/dev/null", "w", stderr) == nullptr) _exit(2);
    const rlimit seconds{60, 60}, none{0, 0};
    setrlimit(RLIMIT_CPU, &seconds);
    setrlimit(RLIMIT_CORE, &none);
    emulation::drop_barrier(barrier);
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      emulation::set_seed(seed);
      if (c.run(on) != expected) _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status != 0;
}

TEST_CASE("without any one of its barriers a kernel is wrong in some order of its threads",
          "[slow]") {
  const Machine on;
  std::map<Barrier, bool> found;
  std::map<Barrier, std::string> tried;
  for (const Case& c : cases()) {
    INFO(c.name);
    Bytes expected;
    const auto barriers = emulation::barriers_of([&] { expected = c.run(on); });
    for (uint64_t seed = 0; seed < 6; ++seed) {
      INFO("seed " << seed);
      emulation::set_seed(seed);
      REQUIRE(c.run(on) == expected);
    }
    for (const Barrier& barrier : barriers) {
      tried[barrier] += std::string(tried[barrier].empty() ? "" : ", ") + c.name;
      if (!found[barrier]) found[barrier] = fails_without(barrier, c, on, expected);
    }
  }
  for (const auto& [barrier, needed] : found) {
    const std::string text = text_at(barrier);
    INFO(barrier.file << ":" << barrier.line << ": " << text << "\ntried: " << tried[barrier]);
    CHECK(needed == !kRedundant.contains(text));
  }
  // And no barrier of the sources is missing here.
  size_t barriers = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    std::ifstream file(entry.path());
    std::string line;
    for (unsigned number = 1; std::getline(file, line); ++number) {
      const size_t at = std::min(line.find("__syncthreads()"), line.find("__syncwarp()"));
      if (at == std::string::npos || line.rfind("//", at) != std::string::npos) continue;
      ++barriers;
      INFO(entry.path() << ":" << number << ": " << line);
      CHECK(found.contains({entry.path().filename().string(), number}));
    }
  }
  CHECK(barriers == found.size());
}

}  // namespace
}  // namespace spillway::barriers_test
