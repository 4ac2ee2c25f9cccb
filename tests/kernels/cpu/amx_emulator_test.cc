// The emulated tile instructions against plain definitions of what they do; on a CPU that has them,
// the CPU against these.
#include "tests/support/amx_emulator.h"

#include <immintrin.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/cpu/amx.h"

#define SPILLWAY_TILES __attribute__((target("amx-tile,amx-int8,amx-bf16")))

namespace spillway::amx_emulator_test {
namespace {

constexpr int kRows = 16, kRowBytes = 64;
using Bytes = std::vector<uint8_t>;

// Sizes of sum[m][n] += a[m][k] b[k][n], in rows and in words of four bytes.
struct Sizes {
  int m, k, n;
};

cpu::TileConfig config_of(const Sizes& sizes) {
  cpu::TileConfig config;
  const auto set = [&](int tile, int rows, int words) {
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.row_bytes[tile] = static_cast<uint16_t>(4 * words);
  };
  set(0, sizes.m, sizes.n);
  set(1, sizes.m, sizes.k);
  set(2, sizes.k, sizes.n);
  set(7, kRows, kRowBytes / 4);
  return config;
}

Bytes random_bytes(uint32_t seed, size_t count = kRows * kRowBytes) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

enum class Product { kSignedSigned, kSignedUnsigned, kUnsignedSigned, kUnsignedUnsigned, kBf16 };

SPILLWAY_TILES void multiply(Product product, const Bytes& a, const Bytes& b, Bytes& sum) {
  _tile_loadd(0, sum.data(), kRowBytes);
  _tile_loadd(1, a.data(), kRowBytes);
  _tile_stream_loadd(2, b.data(), kRowBytes);
  switch (product) {
    case Product::kSignedSigned:
      _tile_dpbssd(0, 1, 2);
      break;
    case Product::kSignedUnsigned:
      _tile_dpbsud(0, 1, 2);
      break;
    case Product::kUnsignedSigned:
      _tile_dpbusd(0, 1, 2);
      break;
    case Product::kUnsignedUnsigned:
      _tile_dpbuud(0, 1, 2);
      break;
    case Product::kBf16:
      _tile_dpbf16ps(0, 1, 2);
      break;
  }
  _tile_stored(0, sum.data(), kRowBytes);
}

SPILLWAY_TILES void load_config(const cpu::TileConfig& config) {
  asm volatile("" ::"m"(config));  // All of it is read.
  _tile_loadconfig(&config);
}
SPILLWAY_TILES void release() {
  _tile_release();
}

template <class T>
T word(const Bytes& tile, int row, int at) {
  T value;
  std::memcpy(&value, tile.data() + row * kRowBytes + 4 * at, sizeof(value));
  return value;
}

TEST_CASE("tiles of bytes are multiplied and added as integers of 32 bits") {
  const auto sizes = GENERATE(Sizes{16, 16, 16}, Sizes{1, 1, 1}, Sizes{13, 16, 16}, Sizes{5, 7, 3},
                              Sizes{16, 8, 16});
  const auto product = GENERATE(Product::kSignedSigned, Product::kSignedUnsigned,
                                Product::kUnsignedSigned, Product::kUnsignedUnsigned);
  const bool signed_a = product == Product::kSignedSigned || product == Product::kSignedUnsigned;
  const bool signed_b = product == Product::kSignedSigned || product == Product::kUnsignedSigned;
  const Bytes a = random_bytes(1), b = random_bytes(2), before = random_bytes(3);
  Bytes sum = before;
  load_config(config_of(sizes));
  multiply(product, a, b, sum);
  release();
  const auto value = [](uint8_t byte, bool is_signed) {
    return is_signed ? int64_t{static_cast<int8_t>(byte)} : int64_t{byte};
  };
  Bytes expected = before;
  for (int m = 0; m < sizes.m; ++m) {
    for (int n = 0; n < sizes.n; ++n) {
      int64_t all = word<int32_t>(before, m, n);
      for (int i = 0; i < 4 * sizes.k; ++i) {
        all += value(a[static_cast<size_t>(m * kRowBytes + i)], signed_a) *
               value(b[static_cast<size_t>(i / 4 * kRowBytes + 4 * n + i % 4)], signed_b);
      }
      const auto wrapped = static_cast<int32_t>(all);
      std::memcpy(expected.data() + m * kRowBytes + 4 * n, &wrapped, sizeof(wrapped));
    }
  }
  CHECK(sum == expected);
}

// Of the two sums of a tile, and then of them and what was there, each rounded once.
float bf16_dot(const Bytes& a, const Bytes& b, const Bytes& before, const Sizes& sizes, int m,
               int n) {
  float sums[2] = {};
  for (int k = 0; k < sizes.k; ++k) {
    for (int i = 0; i < 2; ++i) {
      const auto x = word<uint32_t>(a, m, k), y = word<uint32_t>(b, k, n);
      sums[i] = std::fma(bf16_to_f32(static_cast<uint16_t>(x >> 16 * i)),
                         bf16_to_f32(static_cast<uint16_t>(y >> 16 * i)), sums[i]);
    }
  }
  const float both = sums[0] + sums[1];
  return word<float>(before, m, n) + both;
}

Bytes random_numbers(uint32_t seed, bool bf16) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-2.0f, 2.0f);
  Bytes bytes(kRows * kRowBytes);
  for (size_t at = 0; at < bytes.size(); at += bf16 ? 2 : 4) {
    const float value = uniform(random);
    const uint16_t narrow = f32_to_bf16(value);
    if (bf16) {
      std::memcpy(bytes.data() + at, &narrow, sizeof(narrow));
    } else {
      std::memcpy(bytes.data() + at, &value, sizeof(value));
    }
  }
  return bytes;
}

TEST_CASE("tiles of bf16 pairs are multiplied and added in float32") {
  const auto sizes = GENERATE(Sizes{16, 16, 16}, Sizes{1, 1, 1}, Sizes{3, 16, 16}, Sizes{16, 5, 9});
  const Bytes a = random_numbers(1, true), b = random_numbers(2, true);
  const Bytes before = random_numbers(3, false);
  Bytes sum = before;
  load_config(config_of(sizes));
  multiply(Product::kBf16, a, b, sum);
  release();
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kRowBytes / 4; ++n) {
      const bool inside = m < sizes.m && n < sizes.n;
      INFO(m << ", " << n);
      CHECK(word<float>(sum, m, n) ==
            (inside ? bf16_dot(a, b, before, sizes, m, n) : word<float>(before, m, n)));
    }
  }
}

TEST_CASE("the smallest numbers count as zero in products of bf16, NaN and infinity are kept") {
  const auto run = [](float x, float y, float start) {
    Bytes a(kRows * kRowBytes), b(kRows * kRowBytes), sum(kRows * kRowBytes);
    const uint16_t left = f32_to_bf16(x), right = f32_to_bf16(y);
    std::memcpy(a.data(), &left, sizeof(left));
    std::memcpy(b.data(), &right, sizeof(right));
    std::memcpy(sum.data(), &start, sizeof(start));
    load_config(config_of({1, 1, 1}));
    multiply(Product::kBf16, a, b, sum);
    release();
    return word<float>(sum, 0, 0);
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(run(3, 5, 0.5f) == 15.5f);
  CHECK(run(0x1p-127f, 1, 0) == 0);         // A small factor
  CHECK(run(0x1p-100f, 0x1p-27f, 0) == 0);  // A small product
  CHECK(run(0, 0, 0x1p-127f) == 0);         // A small sum
  CHECK(run(0x1p-100f, 0x1p-26f, 0) == 0x1p-126f);
  CHECK(run(kInfinity, 2, 1) == kInfinity);
  CHECK(std::isnan(run(kInfinity, 0, 1)));
  CHECK(std::isnan(run(std::nanf(""), 1, 1)));
  // The product is not rounded before it is added: 1 + 2^-9 squared is no bf16.
  CHECK(run(1.0078125f, 1.0078125f, -1) == 1.0078125f * 1.0078125f - 1);
}

TEST_CASE("rows and bytes beyond a tile's size are zero") {
  const Bytes from = random_bytes(4);
  Bytes to(kRows * kRowBytes, 0xaa);
  cpu::TileConfig small = config_of({3, 2, 5});
  load_config(small);
  [](const Bytes& source, Bytes& target) SPILLWAY_TILES {
    _tile_loadd(0, source.data(), kRowBytes);  // Three rows of five words
    _tile_stored(0, target.data(), kRowBytes);
  }(from, to);
  for (int at = 0; at < kRows * kRowBytes; ++at) {
    const bool inside = at / kRowBytes < 3 && at % kRowBytes < 20;
    const auto i = static_cast<size_t>(at);
    REQUIRE(to[i] == (inside ? from[i] : 0xaa));
  }
  // Loading a configuration clears the tiles, and so does TILEZERO.
  load_config(cpu::kWholeTiles);
  [](Bytes& target) SPILLWAY_TILES { _tile_stored(0, target.data(), kRowBytes); }(to);
  CHECK(to == Bytes(kRows * kRowBytes));
  [](const Bytes& source, Bytes& target) SPILLWAY_TILES {
    _tile_loadd(5, source.data(), kRowBytes);
    _tile_zero(5);
    _tile_stored(5, target.data(), kRowBytes);
  }(from, to);
  CHECK(to == Bytes(kRows * kRowBytes));
  cpu::TileConfig stored;
  [](cpu::TileConfig* target) SPILLWAY_TILES { _tile_storeconfig(target); }(&stored);
  CHECK(std::memcmp(&stored, &cpu::kWholeTiles, sizeof(stored)) == 0);
  release();
}

// Every way to write an address, and registers of either half.
TEST_CASE("addresses of tiles have a base, a displacement and a stride in any register") {
  const Bytes from = random_bytes(5, 4 * kRows * kRowBytes + 4096);
  load_config(cpu::kWholeTiles);
  Bytes to(kRows * kRowBytes);
  const auto check = [&](int64_t displacement, int64_t stride) {
    for (int r = 0; r < kRows; ++r) {
      INFO("row " << r << ", displacement " << displacement << ", stride " << stride);
      CHECK(std::memcmp(to.data() + r * kRowBytes, from.data() + displacement + r * stride,
                        kRowBytes) == 0);
    }
  };
#define SPILLWAY_LOAD(ADDRESS, BASE, INDEX, STRIDE)                                              \
  asm volatile("mov %0, %%" BASE "\n\tmov %1, %%" INDEX "\n\ttileloadd " ADDRESS                 \
               ", %%tmm3\n\ttilestored %%tmm3, (%2,%3,1)"                                        \
               :                                                                                 \
               : "r"(from.data()), "r"(int64_t{STRIDE}), "r"(to.data()), "r"(int64_t{kRowBytes}) \
               : BASE, INDEX, "memory")
  SPILLWAY_LOAD("(%%r8,%%r9,1)", "r8", "r9", 64);
  check(0, 64);
  SPILLWAY_LOAD("7(%%r13,%%r12,2)", "r13", "r12", 64);
  check(7, 128);
  SPILLWAY_LOAD("300(%%rax,%%r15,4)", "rax", "r15", 32);
  check(300, 128);
  SPILLWAY_LOAD("-0(%%r12,%%rcx,8)", "r12", "rcx", 8);
  check(0, 64);
#undef SPILLWAY_LOAD
  release();
}

TEST_CASE("instructions are emulated where the CPU does not know them, and others are not") {
  const uint64_t before = test::emulated_tile_instructions();
  load_config(cpu::kWholeTiles);
  release();
  CHECK((test::emulated_tile_instructions() > before) == !test::has_tile_instructions());
  const auto ends_by = [](auto&& wrong) {
    const pid_t child = fork();
    if (child == 0) {
      wrong();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  };
  CHECK(ends_by([] { asm volatile("ud2"); }) == SIGILL);
  if (test::has_tile_instructions()) return;  // A CPU raises other signals.
  CHECK(ends_by([] {                          // Without a configuration
          [](void) SPILLWAY_TILES { _tile_zero(0); }();
        }) == SIGILL);
  CHECK(ends_by([] {  // Sizes that do not fit
          load_config(config_of({16, 8, 16}));
          [](void) SPILLWAY_TILES { _tile_dpbsud(0, 1, 7); }();
        }) == SIGILL);
  CHECK(ends_by([] {  // TDPBSUD whose factors are one tile, which no assembler writes
          load_config(cpu::kWholeTiles);
          asm volatile(".byte 0xc4, 0xe2, 0x72, 0x5e, 0xc1");
        }) == SIGILL);
  CHECK(ends_by([] {
          cpu::TileConfig config = config_of({16, 16, 16});
          config.reserved[3] = 1;
          load_config(config);
        }) == SIGILL);
}

}  // namespace
}  // namespace spillway::amx_emulator_test
