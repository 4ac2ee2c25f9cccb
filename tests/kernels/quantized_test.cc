// Quantised numbers: the quantiser's promises, the layouts, and products that are bit for bit those
// of the expanded weights on every instruction set of this CPU.
#include "kernels/base/quantized.h"

#include <hwy/highway.h>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_codes.h"
#include "kernels/integer_groups.h"
#include "kernels/ops.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/packed_matrix.h"
#include "tests/support/random_data.h"

namespace spillway::quantized_test {
namespace {

using test::PackedMatrix;
using test::random_floats;

constexpr Format kQuantized[] = {Format::kQ4, Format::kQ4_1, Format::kQ8_1};

std::vector<float> quantized(Format format, const std::vector<float>& values) {
  std::vector<std::byte> row(format_row_bytes(format, static_cast<int64_t>(values.size())));
  pack_quantized_row(format, values, row.data());
  std::vector<float> back(values.size());
  unpack_quantized_row(format, row.data(), back);
  return back;
}

// The largest code.
float top_of(Format format) {
  return static_cast<float>((1 << format_traits(format).bits) - 1);
}

TEST_CASE("a quantised number is within half a step of the number, whatever the group's range") {
  const Format format = GENERATE(from_range(std::begin(kQuantized), std::end(kQuantized)));
  const float offset = GENERATE(0.0f, 0.02f, -7.3f, 1000.0f);
  const float deviation = GENERATE(1e-7f, 1e-4f, 0.02f, 3.0f, 400.0f);
  const int64_t count =
      std::min<int64_t>(GENERATE(1, 2, 5, 31, 32, 63, 64), format_traits(format).group);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    auto values = random_floats(count, seed, deviation);
    for (float& value : values) value += offset;
    INFO("offset " << offset << " deviation " << deviation << " count " << count << " seed "
                   << seed);
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    // The step is the range from the minimum, a float16 below, and a float16 above
    // the range over the largest code.
    const float below = std::abs(*low) / 1024 + 6e-8f;
    const float step = ((*high - *low) + below) / top_of(format) * (1 + 1.0f / 512) + 6e-8f;
    const auto back = quantized(format, values);
    for (size_t i = 0; i < values.size(); ++i) {
      REQUIRE(std::abs(back[i] - values[i]) <= step / 2 + std::abs(values[i]) * 1e-6f);
    }
  }
}

TEST_CASE("groups of one number, zeros and tiny and huge numbers behave") {
  const Format format = GENERATE(from_range(std::begin(kQuantized), std::end(kQuantized)));
  const auto quantised = [&](const std::vector<float>& values) {
    return quantized(format, values);
  };
  const auto all = [](float value) { return std::vector<float>(64, value); };
  CHECK(quantised(all(0.0f)) == all(0.0f));
  CHECK(quantised(all(-0.0f)) == all(0.0f));
  CHECK(quantised(all(0.5f)) == all(0.5f));
  CHECK(quantised(all(-1024.0f)) == all(-1024.0f));
  // 0.1 is no float16; the scale brings it back to within a code's share of a float16's last place.
  CHECK(quantised(all(0.1f))[3] == Approx(0.1f).margin(3e-6));
  // Below float16's smallest number, 2^-24, nothing is left, without noise.
  for (const float tiny : {1e-30f, -1e-30f, 1e-40f, -1e-40f}) {
    CHECK(std::abs(quantised(all(tiny))[0]) <= 0x1p-24f);
  }
  std::vector<float> mixed = all(1e-40f);
  mixed[7] = 1.0f;
  CHECK(quantised(mixed)[7] == Approx(1.0f).epsilon(0.001));
  CHECK(quantised(mixed)[8] == 0.0f);
  // What float16 cannot hold saturates and stays finite.
  CHECK(quantised(all(-3e38f)) == all(-65504.0f));
  CHECK(quantised(all(3e38f)) == all((1 + top_of(format)) * 65504.0f));
  mixed = all(3e38f);
  mixed[0] = -3e38f;
  for (const float value : quantised(mixed)) CHECK(std::isfinite(value));
}

TEST_CASE("a NaN or an infinity makes its group NaN and no other") {
  const Format format = GENERATE(from_range(std::begin(kQuantized), std::end(kQuantized)));
  const auto group = static_cast<size_t>(format_traits(format).group);
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    auto values = random_floats(200, 3);
    values[70] = bad;
    const auto back = quantized(format, values);
    for (size_t i = 0; i < back.size(); ++i) {
      INFO(format_name(format) << ", " << i << " of " << bad);
      CHECK(std::isnan(back[i]) == (i / group == 70 / group));
    }
  }
}

TEST_CASE("a row's bytes are those of its groups, and nothing is written behind them") {
  const auto bytes_of = [](int64_t count) { return format_row_bytes(Format::kQ4, count); };
  CHECK(bytes_of(1) == 8);
  CHECK(bytes_of(8) == 8);
  CHECK(bytes_of(9) == 12);
  CHECK(bytes_of(64) == 36);
  CHECK(bytes_of(80) == 48);
  CHECK(bytes_of(128) == 72);
  CHECK(format_row_bytes(Format::kQ4_1, 32) == 20);
  CHECK(format_row_bytes(Format::kQ4_1, 40) == 28);
  CHECK(format_row_bytes(Format::kQ8_1, 32) == 36);
  CHECK(format_row_bytes(Format::kQ8_1, 33) == 44);
  for (const Format format : kQuantized) {
    for (int64_t count = 1; count <= 150; ++count) {
      const size_t bytes = format_row_bytes(format, count);
      std::vector<std::byte> row(bytes + 8, std::byte{0x5a});
      const auto values = random_floats(count, static_cast<uint64_t>(count));
      pack_quantized_row(format, values, row.data());
      for (size_t i = bytes; i < row.size(); ++i) REQUIRE(row[i] == std::byte{0x5a});
    }
  }
}

TEST_CASE("errors add up to those of the numbers that come back") {
  // A normal group of 64 spans about 4.7 deviations, one of 32 about 4.1: steps are a 15th or a
  // 255th of that, errors a step / sqrt(12).
  const auto [format, rms] = GENERATE(std::pair(Format::kQ4, 0.09), std::pair(Format::kQ4_1, 0.079),
                                      std::pair(Format::kQ8_1, 0.0047));
  const auto values = random_floats(1000, 4, 0.02f);
  std::vector<std::byte> row(format_row_bytes(format, 1000));
  QuantError error;
  pack_quantized_row(format, values, row.data(), &error);
  const auto back = quantized(format, values);
  double errors = 0, squares = 0, most = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double off = std::abs(double{back[i]} - double{values[i]});
    errors += off * off;
    squares += double{values[i]} * double{values[i]};
    most = std::max(most, off);
  }
  CHECK(error.relative_rms() == Approx(std::sqrt(errors / squares)));
  CHECK(error.error_max == most);
  CHECK(error.relative_rms() == Approx(rms).epsilon(0.1));
}

TEST_CASE("panels and rows hold the same numbers, in any slab, and say where their scales are") {
  const Format format = GENERATE(from_range(std::begin(kQuantized), std::end(kQuantized)));
  const int64_t columns = GENERATE(1, 31, 63, 64, 65, 200);
  constexpr int64_t kRows = 70;
  const FormatTraits& traits = format_traits(format);
  const auto values = random_floats(kRows * columns, 5);
  const PackedMatrix rows(MatrixLayout::kRows, format, values, kRows, columns, 64);
  const PackedMatrix panels(MatrixLayout::kPanels16, format, values, kRows, columns, 64);
  CHECK(rows.rounded() == panels.rounded());
  for (const PackedMatrix* packed : {&rows, &panels}) {
    const MatrixLayout layout = packed->matrix().layout;
    const std::byte* slab = packed->matrix().slabs[0].data;
    // The same codes, put there group by group.
    std::vector<std::byte> put(packed_bytes(layout, format, 64, columns));
    for (int64_t row = 0; row < 64; ++row) {
      std::vector<uint8_t> row_codes(static_cast<size_t>(columns));
      std::vector<GroupScale> scales(
          static_cast<size_t>((columns + traits.group - 1) / traits.group));
      quantize_weights(format, {values.data() + row * columns, row_codes.size()}, row_codes.data(),
                       scales.data());
      for (int64_t group = 0; group * traits.group < columns; ++group) {
        const auto count =
            static_cast<size_t>(std::min(traits.group, columns - group * traits.group));
        const uint8_t* codes = row_codes.data() + group * traits.group;
        const GroupScale expected = scales[static_cast<size_t>(group)];
        const ScaleOffsets at = scale_offsets(layout, format, columns, row, group);
        CHECK(std::memcmp(slab + at.scale, &expected.scale, 2) == 0);
        CHECK(std::memcmp(slab + at.minimum, &expected.minimum, 2) == 0);
        put_group(layout, format, columns, row, group, {codes, count}, expected, put.data());
      }
    }
    CHECK(std::equal(put.begin(), put.end(), slab));
  }
}

TEST_CASE("a product with quantised weights is bit for bit that with the expanded weights") {
  const Format format = GENERATE(from_range(std::begin(kQuantized), std::end(kQuantized)));
  const auto device = open_cpu_device(2).value();
  const auto stream = device->new_stream("test");
  test::for_each_instruction_set([&] {
    for (const int64_t inputs : {1, 7, 64, 100, 700, 4200}) {
      constexpr int64_t kOutputs = 100, kRowsMax = 101;
      auto in = random_floats(kRowsMax * inputs, 6);
      const PackedMatrix few(MatrixLayout::kPanels16, format,
                             random_floats(kOutputs * inputs, 7, 0.02f), kOutputs, inputs, 64);
      const PackedMatrix f32(MatrixLayout::kPanels16, Format::kF32, few.rounded(), kOutputs, inputs,
                             64);
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 24, 96, 101}) {
        std::vector<float> got(static_cast<size_t>(rows * kOutputs)), expected(got.size());
        const auto multiply = [&](const PackedMatrix& w, std::vector<float>& out) {
          linear(*stream, {.in = dense_matrix(reinterpret_cast<std::byte*>(in.data()), DType::kF32,
                                              rows, inputs),
                           .weight = w.matrix(),
                           .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()),
                                               DType::kF32, rows, kOutputs)});
        };
        multiply(few, got);
        multiply(f32, expected);
        INFO(format_name(format) << ", inputs " << inputs << " rows " << rows);
        REQUIRE(got == expected);
      }
    }
  });
}

// As the raw bits of bfloat16.
std::vector<uint16_t> in_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = f32_to_bf16(values[i]);
  return out;
}

// Fills a matrix's padding of kOutputs x kInputs with NaN scales and ones.
template <Format kOf>
void soil(std::vector<std::byte>& bytes, int64_t outputs, int64_t inputs) {
  using Traits = QuantTraits<kOf>;
  auto* groups = reinterpret_cast<PanelGroup<kOf>*>(bytes.data());
  const int64_t per_panel = (inputs + Traits::kGroup - 1) / Traits::kGroup;
  for (int64_t at = 0; at < static_cast<int64_t>(bytes.size() / sizeof(*groups)); ++at) {
    PanelGroup<kOf>& group = groups[at];
    for (int64_t r = 0; r < 16; ++r) {
      if (at / per_panel * 16 + r >= outputs) group.scale[r] = group.minimum[r] = 0x7e00;  // NaN
      for (int64_t i = 0; i < Traits::kGroup; ++i) {
        if (at % per_panel * Traits::kGroup + i < inputs) continue;
        group.words[i / Traits::kFields][r] |= Traits::kMask
                                               << (Traits::kBits * (i % Traits::kFields));
      }
    }
  }
}

TEST_CASE("what lies in the padding of quantised weights never counts") {
  const Format format = GENERATE(from_range(std::begin(kQuantized), std::end(kQuantized)));
  const auto device = open_cpu_device(2, CpuMatmul::kBf16Dot).value();
  const auto stream = device->new_stream("test");
  constexpr int64_t kOutputs = 20, kInputs = 70, kRows = 13;
  auto in = random_floats(kRows * kInputs, 8);
  auto in_pairs = in_bf16(in);
  const PackedMatrix clean(MatrixLayout::kPanels16, format, random_floats(kOutputs * kInputs, 9),
                           kOutputs, kInputs, 64);
  std::vector<std::byte> bytes(
      clean.matrix().slabs[0].data,
      clean.matrix().slabs[0].data +
          packed_bytes(MatrixLayout::kPanels16, format, kOutputs, kInputs));
  with_quant_traits(format, [&](auto traits) { soil<traits.kFormat>(bytes, kOutputs, kInputs); });
  const WeightSlab slab{bytes.data(), kOutputs};
  WeightMatrix dirty = clean.matrix();
  dirty.slabs = {&slab, 1};
  for (const int64_t rows : {int64_t{1}, kRows}) {
    std::vector<float> a(static_cast<size_t>(rows * kOutputs)), b(a.size());
    const auto view =
        dense_matrix(reinterpret_cast<std::byte*>(in.data()), DType::kF32, rows, kInputs);
    const auto target = [&](std::vector<float>& out) {
      return dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kF32, rows, kOutputs);
    };
    linear(*stream, {.in = view, .weight = clean.matrix(), .out = target(a)});
    linear(*stream, {.in = view, .weight = dirty, .out = target(b)});
    CHECK(a == b);
    if (device->activation_dtype(format) != DType::kBF16) continue;
    const auto narrow =
        dense_matrix(reinterpret_cast<std::byte*>(in_pairs.data()), DType::kBF16, rows, kInputs);
    linear(*stream, {.in = narrow, .weight = clean.matrix(), .out = target(a)});
    linear(*stream, {.in = narrow, .weight = dirty, .out = target(b)});
    CHECK(a == b);
  }
}

// Decodes every sequence alone or all in one call; rows in the cache are those of `layout`.
struct DecodeCase {
  KvLayout layout;
  Format rounding;
  int64_t heads;
  std::vector<int64_t> lengths;
  std::vector<std::vector<std::byte>> caches;
  std::vector<float> qkv;

  // `numbers_of`: the quantised format whose numbers a float32 cache has, if it is one.
  DecodeCase(Format format, int64_t head_size, Format numbers_of)
      : layout{2, head_size, format}, rounding(numbers_of), heads(4), lengths{1, 15, 16, 40} {
    qkv = random_floats(static_cast<int64_t>(lengths.size()) * width(), 30);
    for (const int64_t length : lengths) caches.emplace_back(layout.sequence_bytes(length + 1));
  }
  int64_t width() const { return (heads + 2 * layout.heads) * layout.head_size; }

  // Fills the caches with prompts, as they are quantised or, into an f32 cache, as `rounded`.
  void fill(Stream& stream, bool rounded) {
    for (size_t s = 0; s < lengths.size(); ++s) {
      auto rows = random_floats(lengths[s] * width(), 40 + s);
      if (rounded) round_kv(rows);
      std::vector<float> out(static_cast<size_t>(lengths[s] * heads * layout.head_size));
      const AttentionItem item{0, lengths[s], 0, caches[s].data()};
      run(stream, rows, {&item, 1}, lengths[s], out);
    }
    if (rounded) round_kv(qkv);
  }
  // Keys and values of each row and head as the quantised cache gives them back.
  void round_kv(std::vector<float>& rows) const {
    const auto size = static_cast<size_t>(layout.head_size);
    for (size_t row = 0; row < rows.size(); row += static_cast<size_t>(width())) {
      for (size_t head = static_cast<size_t>(heads); head < static_cast<size_t>(heads) + 4;
           ++head) {
        const std::span<float> values(rows.data() + row + head * size, size);
        const auto back = quantized(rounding, {values.begin(), values.end()});
        std::copy(back.begin(), back.end(), values.begin());
      }
    }
  }
  void run(Stream& stream, std::vector<float>& rows, std::span<const AttentionItem> items,
           int64_t tokens, std::vector<float>& out) const {
    attention(stream, {.qkv = dense_matrix(reinterpret_cast<std::byte*>(rows.data()), DType::kF32,
                                           tokens, width()),
                       .items = items,
                       .heads = heads,
                       .kv = layout,
                       .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kF32,
                                           tokens, heads * layout.head_size)});
  }
  // One decode step of all sequences, `together` or one call each.
  std::vector<float> decode(Stream& stream, bool together) {
    std::vector<AttentionItem> items;
    for (size_t s = 0; s < lengths.size(); ++s) {
      items.push_back({static_cast<int64_t>(s), 1, lengths[s], caches[s].data()});
    }
    const auto count = static_cast<int64_t>(items.size());
    std::vector<float> out(static_cast<size_t>(count * heads * layout.head_size));
    if (together) {
      run(stream, qkv, items, count, out);
    } else {
      for (const AttentionItem& item : items) run(stream, qkv, {&item, 1}, count, out);
    }
    return out;
  }
};

// From AVX2 on products with packed rows are of integers (cpu/attention_codes.h);
// elsewhere 8-bit rows are scaled as a whole.
TEST_CASE("a decode step over quantised rows is that over the expanded rows") {
  const auto device = open_cpu_device(2).value();
  const auto stream = device->new_stream("test");
  const int64_t head_size = GENERATE(5, 20, 64, 80, 128);
  const Format format = GENERATE(Format::kQ4, Format::kQ8);
  INFO(format_name(format) << ", head size " << head_size);
  test::for_each_instruction_set([&] {
    DecodeCase narrow(format, head_size, format), f32(Format::kF32, head_size, format);
    narrow.fill(*stream, false);
    f32.fill(*stream, true);
    const auto expected = f32.decode(*stream, true), found = narrow.decode(*stream, true);
    const bool has_avx2 = (hwy::SupportedTargets() & (HWY_AVX2 | (HWY_AVX2 - 1))) != 0;
    if (has_avx2 && cpu::codes_head_size(head_size)) {
      CHECK(test::relative_error(found, expected) < 5e-5);
    } else if (format == Format::kQ8) {
      CHECK(test::relative_error(found, expected) < 2e-6);
    } else {
      CHECK(found == expected);
    }
    CHECK(found == narrow.decode(*stream, false));
  });
}

}  // namespace
}  // namespace spillway::quantized_test
