#include "tests/support/amx_emulator.h"

#include <asm/prctl.h>
#include <cpuid.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/cpu/amx.h"

namespace spillway::cpu {

bool has_amx_bf16() {
  return true;
}
// Its kernels use AVX-512 VNNI as well, which is not emulated: int8_bodies() looks for it.
bool has_amx_int8() {
  return true;
}

}  // namespace spillway::cpu

namespace spillway::test {

namespace {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

// Of a thread. Rows and bytes beyond a tile's size are zero.
struct TileState {
  cpu::TileConfig config{.palette = 0};
  alignas(64) uint8_t tiles[kTiles][kRows][kRowBytes] = {};
};
thread_local TileState state;
std::atomic<uint64_t> emulated{0};
struct sigaction before;

// A VEX-encoded instruction of opcode map 0F38, of 128 bits and W 0, as all of these are.
enum Prefix : uint8_t { kNone, k66, kF3, kF2 };
struct Instruction {
  Prefix prefix = kNone;
  uint8_t opcode = 0;
  bool in_memory = false;         // Its operand is, else in registers
  int reg = 0, rm = 0, vvvv = 0;  // Registers
  uintptr_t base = 0;             // Of a memory operand, displacement included
  int64_t index = 0;              // Scaled
  int64_t length = 0;
};

int64_t general_register(const greg_t* registers, int number) {
  constexpr int kAt[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                         REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return registers[kAt[number]];
}

int64_t displacement(const uint8_t* from, int bytes) {
  if (bytes == 1) return static_cast<int8_t>(*from);
  int32_t value = 0;
  if (bytes == 4) std::memcpy(&value, from, sizeof(value));
  return value;
}

// False: it is none of these.
bool decode(const uint8_t* code, const greg_t* registers, Instruction* found) {
  constexpr uint8_t kVex3 = 0xc4, kMap0f38 = 2, kWide = 0x80, kLong = 0x04;
  if (code[0] != kVex3 || (code[1] & 0x1f) != kMap0f38 || (code[2] & (kWide | kLong)) != 0) {
    return false;
  }
  const int r = (~code[1] >> 7 & 1) << 3, x = (~code[1] >> 6 & 1) << 3,
            b = (~code[1] >> 5 & 1) << 3;
  found->prefix = static_cast<Prefix>(code[2] & 3);
  found->vvvv = ~(code[2] >> 3) & 15;
  found->opcode = code[3];
  const uint8_t modrm = code[4];
  const int mod = modrm >> 6, rm = modrm & 7;
  found->reg = (modrm >> 3 & 7) + r;
  found->rm = rm + b;
  found->in_memory = mod != 3;
  const uint8_t* at = code + 5;
  if (found->in_memory) {
    constexpr int kSib = 4, kNoBase = 5, kNoIndex = 4;
    const bool has_sib = rm == kSib;
    const uint8_t sib = has_sib ? *at++ : 0;
    const int base = (has_sib ? sib & 7 : rm), index = (sib >> 3 & 7) + x;
    const bool no_base = mod == 0 && base == kNoBase;
    const int bytes = mod == 1 ? 1 : mod == 2 || no_base ? 4 : 0;
    int64_t address = displacement(at, bytes);
    at += bytes;
    if (!no_base) {
      address += general_register(registers, base + b);
    } else if (!has_sib) {  // Relative to the next instruction
      address += static_cast<int64_t>(reinterpret_cast<uintptr_t>(at));
    }
    found->base = static_cast<uintptr_t>(address);
    if (has_sib && index != kNoIndex) {
      found->index = general_register(registers, index) * (int64_t{1} << (sib >> 6));
    }
  }
  found->length = at - code;
  return true;
}

int rows_of(int tile) {
  return state.config.rows[tile];
}
int bytes_of(int tile) {
  return state.config.row_bytes[tile];
}
bool is_tile(int tile) {
  return tile < kTiles && state.config.palette == 1 && rows_of(tile) > 0;
}

bool load_config(const void* from) {
  cpu::TileConfig config;
  std::memcpy(&config, from, sizeof(config));
  const auto unused = [&](int tile) {
    return config.row_bytes[tile] == 0 && config.rows[tile] == 0;
  };
  bool good = config.palette <= 1 && config.start_row == 0;
  for (const uint8_t byte : config.reserved) good = good && byte == 0;
  for (int tile = 0; tile < 16; ++tile) {
    if (tile < kTiles && config.palette == 1) {
      const bool both = config.row_bytes[tile] > 0 && config.rows[tile] > 0;
      good = good && (both || unused(tile)) && config.rows[tile] <= kRows &&
             config.row_bytes[tile] <= kRowBytes;
    } else {
      good = good && (config.palette == 0 || unused(tile));
    }
  }
  if (!good) return false;
  state = {};
  if (config.palette == 1) state.config = config;
  return true;
}

void load_tile(int tile, uintptr_t base, int64_t stride) {
  std::memset(state.tiles[tile], 0, sizeof(state.tiles[tile]));
  for (int row = 0; row < rows_of(tile); ++row) {
    const auto from = base + static_cast<uintptr_t>(row * stride);
    std::memcpy(state.tiles[tile][row], reinterpret_cast<const void*>(from),
                static_cast<size_t>(bytes_of(tile)));
  }
}

void store_tile(int tile, uintptr_t base, int64_t stride) {
  for (int row = 0; row < rows_of(tile); ++row) {
    const auto to = base + static_cast<uintptr_t>(row * stride);
    std::memcpy(reinterpret_cast<void*>(to), state.tiles[tile][row],
                static_cast<size_t>(bytes_of(tile)));
  }
}

// Sizes of the factors of a product fit.
bool multiplies(int sum, int a, int b) {
  return is_tile(sum) && is_tile(a) && is_tile(b) && sum != a && sum != b && a != b &&
         rows_of(sum) == rows_of(a) && bytes_of(sum) == bytes_of(b) &&
         bytes_of(a) == 4 * rows_of(b) && bytes_of(sum) % 4 == 0;
}

// Dot products of four bytes, added without saturation.
template <class A, class B>
void multiply_bytes(int sum, int a, int b) {
  for (int m = 0; m < rows_of(sum); ++m) {
    int32_t sums[kRowBytes / 4];
    std::memcpy(sums, state.tiles[sum][m], sizeof(sums));
    for (int k = 0; k < bytes_of(a) / 4; ++k) {
      A left[4];
      std::memcpy(left, state.tiles[a][m] + 4 * k, sizeof(left));
      B right[kRowBytes];
      std::memcpy(right, state.tiles[b][k], sizeof(right));
      for (int n = 0; n < bytes_of(sum) / 4; ++n) {
        uint32_t dot = static_cast<uint32_t>(sums[n]);
        for (int i = 0; i < 4; ++i) {
          dot += static_cast<uint32_t>(int32_t{left[i]} * int32_t{right[4 * n + i]});
        }
        sums[n] = static_cast<int32_t>(dot);
      }
    }
    std::memcpy(state.tiles[sum][m], sums, static_cast<size_t>(bytes_of(sum)));
  }
}

// Numbers that are too small for float32's full precision count as zero.
float flushed(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}
float widened(uint16_t bf16) {
  const uint32_t bits = uint32_t{bf16} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return flushed(value);
}
// a * b + c, rounded once; the product of two bf16 numbers is a float32 but at the ends of the
// range.
float fused(float a, float b, float c) {
  const double exact = double{a} * double{b};
  const auto product = static_cast<float>(exact);
  return flushed(double{product} == exact ? c + product : std::fma(a, b, c));
}

// The even and the odd inputs of a tile each have a sum, which begins at zero.
void multiply_bf16(int sum, int a, int b) {
  constexpr int kSums = kRowBytes / 4;
  for (int m = 0; m < rows_of(sum); ++m) {
    float even[kSums] = {}, odd[kSums] = {}, sums[kSums];
    std::memcpy(sums, state.tiles[sum][m], sizeof(sums));
    for (int k = 0; k < bytes_of(a) / 4; ++k) {
      uint16_t left[2], right[2 * kSums];
      std::memcpy(left, state.tiles[a][m] + 4 * k, sizeof(left));
      std::memcpy(right, state.tiles[b][k], sizeof(right));
      const float left_even = widened(left[0]), left_odd = widened(left[1]);
      for (int n = 0; n < bytes_of(sum) / 4; ++n) {
        even[n] = fused(left_even, widened(right[2 * n]), even[n]);
        odd[n] = fused(left_odd, widened(right[2 * n + 1]), odd[n]);
      }
    }
    for (int n = 0; n < bytes_of(sum) / 4; ++n) {
      sums[n] = flushed(flushed(sums[n]) + flushed(even[n] + odd[n]));
    }
    std::memcpy(state.tiles[sum][m], sums, static_cast<size_t>(bytes_of(sum)));
  }
}

// LDTILECFG, STTILECFG, TILERELEASE and TILEZERO
bool run_setup(const Instruction& it) {
  if (it.in_memory) {
    if (it.reg != 0 || it.vvvv != 0) return false;
    const uintptr_t address = it.base + static_cast<uintptr_t>(it.index);
    if (it.prefix == kNone) return load_config(reinterpret_cast<const void*>(address));
    if (it.prefix != k66) return false;
    std::memcpy(reinterpret_cast<void*>(address), &state.config, sizeof(state.config));
    return true;
  }
  if (it.prefix == kNone && it.reg == 0 && it.rm == 0) {
    state = {};
    return true;
  }
  if (it.prefix != kF2 || it.rm != 0 || !is_tile(it.reg)) return false;
  std::memset(state.tiles[it.reg], 0, sizeof(state.tiles[it.reg]));
  return true;
}

// TILELOADD, TILELOADDT1 and TILESTORED
bool run_move(const Instruction& it) {
  if (!it.in_memory || !is_tile(it.reg) || it.vvvv != 0 || it.prefix == kNone) return false;
  if (it.prefix == kF3) {
    store_tile(it.reg, it.base, it.index);
  } else {
    load_tile(it.reg, it.base, it.index);
  }
  return true;
}

// TDPBSSD, TDPBSUD, TDPBUSD and TDPBUUD
bool run_int8(const Instruction& it) {
  if (it.in_memory || !multiplies(it.reg, it.rm, it.vvvv)) return false;
  const auto multiply = it.prefix == kF2   ? &multiply_bytes<int8_t, int8_t>
                        : it.prefix == kF3 ? &multiply_bytes<int8_t, uint8_t>
                        : it.prefix == k66 ? &multiply_bytes<uint8_t, int8_t>
                                           : &multiply_bytes<uint8_t, uint8_t>;
  multiply(it.reg, it.rm, it.vvvv);
  return true;
}

bool run_bf16(const Instruction& it) {
  if (it.in_memory || it.prefix != kF3 || !multiplies(it.reg, it.rm, it.vvvv)) return false;
  multiply_bf16(it.reg, it.rm, it.vvvv);
  return true;
}

bool run(const Instruction& it) {
  constexpr uint8_t kSetup = 0x49, kMove = 0x4b, kInt8 = 0x5e, kBf16 = 0x5c;
  switch (it.opcode) {
    case kSetup:
      return run_setup(it);
    case kMove:
      return run_move(it);
    case kInt8:
      return run_int8(it);
    case kBf16:
      return run_bf16(it);
    default:
      return false;
  }
}

void handle(int signal, siginfo_t* info, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  uint64_t count = 0;
  for (;; ++count) {  // Those that follow one another cost one signal.
    Instruction found;
    if (!decode(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers, &found) ||
        !run(found)) {
      break;
    }
    registers[REG_RIP] += found.length;
  }
  emulated += count;
  if (count > 0) return;
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    return before.sa_handler(signal);
  }
  ::signal(signal, SIG_DFL);  // Meets the instruction once more.
}

[[maybe_unused]] const bool installed = [] {
  constexpr int kTileData = 18;
  ::syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData);  // Where the CPU has them
  struct sigaction action {};
  action.sa_sigaction = &handle;
  action.sa_flags = SA_SIGINFO;
  return ::sigaction(SIGILL, &action, &before) == 0;
}();

}  // namespace

uint64_t emulated_tile_instructions() {
  return emulated;
}

bool has_tile_instructions() {
  constexpr unsigned kBit = 1u << 24;  // EDX of leaf 7.0
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBit) != 0;
}

}  // namespace spillway::test
