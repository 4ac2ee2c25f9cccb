// Every op on every device against its scalar definition (tests/support/scalar_ops.h), on shapes
// that are no multiple of anything.
#include "kernels/ops.h"

#include <catch2/catch.hpp>

#include "kernels/cpu/onednn.h"
#include "tests/support/packed_matrix.h"
#include "tests/support/random_data.h"
#include "tests/support/scalar_ops.h"

namespace spillway {
namespace {

using test::PackedMatrix;
using test::random_floats;
using test::relative_error;

constexpr double kF32Error = 2e-5;  // Of the largest value; sums of up to 2,100 terms.

std::byte* bytes_of(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

MatrixView view(std::vector<float>& values, int64_t rows, int64_t columns) {
  return dense_matrix(bytes_of(values), DType::kF32, rows, columns);
}

// Two threads, so that work is really split.
struct CpuFixture {
  CpuFixture() : device(open_cpu_device(2).value()), stream(device->new_stream("test")) {}
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
};

struct LinearCase {
  int64_t rows, outputs, inputs, slab_rows;
};

TEST_CASE_METHOD(CpuFixture, "linear agrees with its definition") {
  const auto format = GENERATE(DType::kF32, DType::kBF16, DType::kF16, DType::kQ4);
  const auto c =
      GENERATE(LinearCase{1, 64, 64, 64}, LinearCase{2, 70, 33, 128}, LinearCase{3, 200, 1, 64},
               LinearCase{5, 129, 515, 64}, LinearCase{13, 64, 2100, 64},
               LinearCase{97, 320, 96, 192}, LinearCase{200, 65, 130, 128});
  const auto activation = GENERATE(Activation::kNone, Activation::kRelu, Activation::kGelu,
                                   Activation::kGeluTanh, Activation::kSilu);
  INFO("format " << dtype_name(format) << " rows " << c.rows << " outputs " << c.outputs
                 << " inputs " << c.inputs << " activation " << activation_name(activation));
  auto in = random_floats(c.rows * c.inputs, 1);
  const PackedMatrix w(MatrixLayout::kPanels16, format, random_floats(c.outputs * c.inputs, 2),
                       c.outputs, c.inputs, c.slab_rows);
  const auto bias = random_floats(c.outputs, 3);
  auto out = random_floats(c.rows * c.outputs, 4);
  const auto before = out;

  LinearArgs args{.in = view(in, c.rows, c.inputs),
                  .weight = w.matrix(),
                  .bias = bias.data(),
                  .activation = activation,
                  .out = view(out, c.rows, c.outputs)};
  linear(*stream, args);
  auto expected =
      scalar::linear(in, w.rounded(), bias, {}, activation, c.rows, c.outputs, c.inputs);
  CHECK(relative_error(out, expected) < kF32Error);

  if (activation != Activation::kNone) return;
  out = before;
  args.bias = nullptr;
  args.accumulate = true;
  linear(*stream, args);
  expected = scalar::linear(in, w.rounded(), {}, before, activation, c.rows, c.outputs, c.inputs);
  CHECK(relative_error(out, expected) < kF32Error);
}

TEST_CASE_METHOD(CpuFixture, "linear on oneDNN agrees with its definition") {
  // The path of machines with AVX-512; its f32 body runs everywhere, if slowly.
  const auto c =
      GENERATE(LinearCase{1, 64, 64, 64}, LinearCase{70, 130, 64, 64}, LinearCase{5, 129, 515, 64});
  const auto activation = GENERATE(Activation::kNone, Activation::kRelu, Activation::kGelu);
  auto in = random_floats(c.rows * c.inputs, 1);
  const PackedMatrix w(MatrixLayout::kPanels64, DType::kF32, random_floats(c.outputs * c.inputs, 2),
                       c.outputs, c.inputs, c.slab_rows);
  const auto bias = random_floats(c.outputs, 3);
  auto out = random_floats(c.rows * c.outputs, 4);
  const auto before = out;
  cpu::OneDnn onednn(2);
  LinearArgs args{.in = view(in, c.rows, c.inputs),
                  .weight = w.matrix(),
                  .bias = bias.data(),
                  .activation = activation,
                  .out = view(out, c.rows, c.outputs)};
  onednn.linear(args);
  auto expected =
      scalar::linear(in, w.rounded(), bias, {}, activation, c.rows, c.outputs, c.inputs);
  CHECK(relative_error(out, expected) < kF32Error);
  if (activation != Activation::kNone) return;
  out = before;
  args.accumulate = true;
  onednn.linear(args);
  expected = scalar::linear(in, w.rounded(), bias, before, activation, c.rows, c.outputs, c.inputs);
  CHECK(relative_error(out, expected) < kF32Error);
}

TEST_CASE_METHOD(CpuFixture, "a row of linear does not depend on its batch") {
  const auto format = GENERATE(DType::kF32, DType::kBF16, DType::kF16, DType::kQ4);
  constexpr int64_t kRows = 230, kOutputs = 100, kInputs = 700;
  auto in = random_floats(kRows * kInputs, 5);
  const PackedMatrix w(device->matrix_layout(format), format, random_floats(kOutputs * kInputs, 6),
                       kOutputs, kInputs, 64);
  std::vector<float> whole(kRows * kOutputs);
  if (device->activation_dtype(format) != DType::kF32) return;
  linear(
      *stream,
      {.in = view(in, kRows, kInputs), .weight = w.matrix(), .out = view(whole, kRows, kOutputs)});
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 12, 31, 96, 97}) {
    for (int64_t first : {int64_t{0}, int64_t{41}, kRows - rows}) {
      std::vector<float> part(static_cast<size_t>(rows * kOutputs));
      linear(*stream, {.in = view(in, kRows, kInputs).slice_rows(first, rows),
                       .weight = w.matrix(),
                       .out = view(part, rows, kOutputs)});
      INFO("rows " << rows << " from " << first);
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + first * kOutputs));
    }
  }
}

TEST_CASE_METHOD(CpuFixture, "linear writes bfloat16 rounded to nearest") {
  auto in = random_floats(3 * 40, 7);
  const PackedMatrix w(MatrixLayout::kPanels16, DType::kF32, random_floats(70 * 40, 8), 70, 40,
                       128);
  std::vector<float> full(3 * 70);
  std::vector<uint16_t> out(3 * 70);
  linear(*stream, {.in = view(in, 3, 40), .weight = w.matrix(), .out = view(full, 3, 70)});
  linear(*stream,
         {.in = view(in, 3, 40),
          .weight = w.matrix(),
          .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kBF16, 3, 70)});
  for (size_t i = 0; i < out.size(); ++i) CHECK(out[i] == f32_to_bf16(full[i]));
}

struct AttentionCase {
  int64_t heads, kv_heads, head_size;
};

// A head's row as the cache gives it back.
scalar::Matrix cached(DType dtype, const float* row, int64_t size) {
  const auto count = static_cast<size_t>(size);
  scalar::Matrix values(row, row + size);
  std::vector<std::byte> bytes(KvLayout{1, size, dtype}.row_bytes());
  if (dtype == DType::kQ4) {
    pack_q4_row(values, bytes.data());
    unpack_q4_row(bytes.data(), values);
    return values;
  }
  convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(row), dtype, bytes.data(),
                   count);
  convert_elements(dtype, bytes.data(), DType::kF32, bytes_of(values), count);
  return values;
}

// Runs prompts of the given lengths and then two decode steps of all, against the definition: a
// prompt over its own rows, a decode step over rows as the cache keeps them.
void check_attention(Stream& stream, const AttentionCase& c, DType kv_dtype, double error) {
  const KvLayout layout{c.kv_heads, c.head_size, kv_dtype};
  const std::vector<int64_t> lengths = {1, 16, 97, 3, 130, 64};
  const int64_t width = (c.heads + 2 * c.kv_heads) * c.head_size;
  std::vector<std::vector<std::byte>> caches;
  std::vector<std::vector<float>> history(lengths.size());  // qkv rows of each sequence
  for (int64_t length : lengths) caches.emplace_back(layout.sequence_bytes(length + 2));
  for (int step = 0; step < 3; ++step) {
    std::vector<AttentionItem> items;
    int64_t tokens = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int64_t count = step == 0 ? lengths[s] : 1;
      const int64_t position = step == 0 ? 0 : lengths[s] + step - 1;
      items.push_back({tokens, count, position, caches[s].data()});
      tokens += count;
    }
    auto qkv = random_floats(tokens * width, 20 + static_cast<uint64_t>(step));
    std::vector<float> out(static_cast<size_t>(tokens * c.heads * c.head_size));
    attention(stream, {.qkv = view(qkv, tokens, width),
                       .items = items,
                       .heads = c.heads,
                       .kv = layout,
                       .out = view(out, tokens, c.heads * c.head_size)});
    for (size_t s = 0; s < lengths.size(); ++s) {
      const float* first = qkv.data() + items[s].first_row * width;
      history[s].insert(history[s].end(), first, first + items[s].tokens * width);
    }
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int64_t t = 0; t < items[s].tokens; ++t) {
        const int64_t rows = items[s].position + t + 1;
        for (int64_t head = 0; head < c.heads; ++head) {
          scalar::Matrix keys, values;
          const int64_t kv_head = head / (c.heads / c.kv_heads);
          for (int64_t r = 0; r < rows; ++r) {
            const float* row = history[s].data() + r * width;
            const float* k = row + (c.heads + kv_head) * c.head_size;
            const float* v = k + c.kv_heads * c.head_size;
            const DType kept = step == 0 ? DType::kF32 : kv_dtype;
            const scalar::Matrix key = cached(kept, k, c.head_size);
            const scalar::Matrix value = cached(kept, v, c.head_size);
            keys.insert(keys.end(), key.begin(), key.end());
            values.insert(values.end(), value.begin(), value.end());
          }
          const float* q = history[s].data() + (rows - 1) * width + head * c.head_size;
          const auto expected = scalar::attend(q, keys, values, rows, c.head_size);
          const float* got = out.data() + ((items[s].first_row + t) * c.heads + head) * c.head_size;
          INFO("step " << step << " sequence " << s << " token " << t << " head " << head);
          REQUIRE(relative_error({got, expected.size()}, expected) < error);
        }
      }
    }
  }
}

TEST_CASE_METHOD(CpuFixture, "attention agrees with its definition") {
  const auto c = GENERATE(AttentionCase{2, 2, 64}, AttentionCase{3, 3, 5}, AttentionCase{1, 1, 80},
                          AttentionCase{4, 2, 128}, AttentionCase{6, 1, 20});
  INFO("heads " << c.heads << " kv " << c.kv_heads << " size " << c.head_size);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kQ4}) {
    INFO("KV " << dtype_name(dtype));
    check_attention(*stream, c, dtype, 1e-5);
  }
}

}  // namespace
}  // namespace spillway
