// How fast rows of a checkpoint become slabs and slabs rows, on one thread: GB/s of the bytes that
// are read, the median and the best of several runs over 64 MiB of float32 or 32 MiB of others.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "kernels/weight_layout.h"

namespace spillway {
namespace {

constexpr int64_t kRows = 4096, kColumns = 4096;
constexpr int kRuns = 9;

template <class Body>
void measure(const std::string& what, size_t bytes, const Body& body) {
  std::vector<double> rates;
  body();
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    rates.push_back(static_cast<double>(bytes) / seconds.count() / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  std::printf("%-34s median %6.2f  best %6.2f GB/s\n", what.c_str(), rates[kRuns / 2],
              rates.back());
}

int run() {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-0.05f, 0.05f);
  constexpr size_t kNumbers = static_cast<size_t>(kRows * kColumns);
  std::vector<float> numbers(kNumbers);
  for (float& number : numbers) number = uniform(random);
  for (const DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<std::byte> source(kNumbers * dtype_bytes(from));
    convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(numbers.data()), from,
                     source.data(), kNumbers);
    for (const DType to : {DType::kF32, DType::kBF16, DType::kF16}) {
      const Format format = plain_format(to);
      for (const MatrixLayout layout :
           {MatrixLayout::kRows, MatrixLayout::kPanels16, MatrixLayout::kPanels64}) {
        if (!layout_holds(layout, format)) continue;
        std::vector<std::byte> packed(packed_bytes(layout, format, kRows, kColumns));
        const std::string where = " " + std::string(layout_name(layout));
        measure(
            "pack " + std::string(dtype_name(from)) + " to " + std::string(dtype_name(to)) + where,
            source.size(), [&] {
              pack_rows(layout, format, from, source.data(), kRows, kColumns, packed.data());
            });
        if (from != to) continue;
        measure("unpack " + std::string(dtype_name(from)) + where, packed.size(), [&] {
          unpack_rows(layout, format, packed.data(), kRows, kColumns, source.data());
        });
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace spillway

int main() {
  return spillway::run();
}
