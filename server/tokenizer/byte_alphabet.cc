#include "server/tokenizer/byte_alphabet.h"

#include <array>

namespace spillway {
namespace {

constexpr uint16_t kSymbolsEnd = 0x144;  // One past the last character of the alphabet.

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

constexpr std::array<uint16_t, 256> make_symbols() {
  std::array<uint16_t, 256> symbols{};
  uint16_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    symbols[byte] = stands_for_itself(byte) ? static_cast<uint16_t>(byte) : next++;
  }
  return symbols;
}
constexpr std::array<uint16_t, 256> kSymbols = make_symbols();

constexpr std::array<int16_t, kSymbolsEnd> make_bytes() {
  std::array<int16_t, kSymbolsEnd> bytes{};
  bytes.fill(-1);
  for (unsigned byte = 0; byte < 256; ++byte) bytes[kSymbols[byte]] = static_cast<int16_t>(byte);
  return bytes;
}
constexpr std::array<int16_t, kSymbolsEnd> kBytes = make_bytes();
static_assert(kSymbols[' '] == 0x120 && kSymbols[0xAD] == kSymbolsEnd - 1);

int hex_digit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

}  // namespace

std::string symbol_of_byte(uint8_t byte) {
  const unsigned point = kSymbols[byte];
  if (point < 0x80) return std::string(1, static_cast<char>(point));
  return {static_cast<char>(0xC0 | (point >> 6)), static_cast<char>(0x80 | (point & 0x3F))};
}

std::optional<std::string> bytes_of_piece(std::string_view piece) {
  std::string bytes;
  bytes.reserve(piece.size());
  for (size_t i = 0; i < piece.size();) {
    unsigned point = static_cast<uint8_t>(piece[i++]);
    if (point >= 0x80) {  // All of the alphabet beyond ASCII has two bytes.
      if ((point & 0xE0) != 0xC0 || i == piece.size()) return std::nullopt;
      const unsigned second = static_cast<uint8_t>(piece[i++]);
      if ((second & 0xC0) != 0x80) return std::nullopt;
      point = ((point & 0x1Fu) << 6) | (second & 0x3Fu);
    }
    if (point >= kSymbolsEnd || kBytes[point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kBytes[point]));
  }
  return bytes;
}

std::optional<uint8_t> byte_of_token(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return std::nullopt;
  const int high = hex_digit(piece[3]);
  const int low = hex_digit(piece[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<uint8_t>(high * 16 + low);
}

}  // namespace spillway
