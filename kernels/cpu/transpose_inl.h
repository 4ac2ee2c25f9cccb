// Transposition of rows of 32-bit numbers, sixteen by sixteen, with AVX-512. Included once by each
// file that needs it, and empty for all others: inside its namespace and its target attributes,
// after SPILLWAY_TRANSPOSE_BODIES, <immintrin.h> and <algorithm>.
#ifdef SPILLWAY_TRANSPOSE_BODIES

// Lane i of row k becomes lane k of row i. (All lanes by name: g++ 12 warns of its own headers
// otherwise.)
inline void transpose(__m512i (&rows)[16]) {
  __m512i twos[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    twos[i] = _mm512_maskz_unpacklo_epi32(0xffff, rows[i], rows[i + 1]);
    twos[i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm512_maskz_unpacklo_epi64(0xff, twos[i + j], twos[i + 2 + j]);
      fours[i + 2 * j + 1] = _mm512_maskz_unpackhi_epi64(0xff, twos[i + j], twos[i + 2 + j]);
    }
  }
  // Quarter q of fours[4 * g + j] has rows 4 * g to 4 * g + 3 of column 4 * q + j.
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_maskz_shuffle_i32x4(0xffff, fours[j], fours[4 + j], 0x88);
    const __m512i b = _mm512_maskz_shuffle_i32x4(0xffff, fours[j], fours[4 + j], 0xdd);
    const __m512i c = _mm512_maskz_shuffle_i32x4(0xffff, fours[8 + j], fours[12 + j], 0x88);
    const __m512i d = _mm512_maskz_shuffle_i32x4(0xffff, fours[8 + j], fours[12 + j], 0xdd);
    rows[j] = _mm512_maskz_shuffle_i32x4(0xffff, a, c, 0x88);
    rows[4 + j] = _mm512_maskz_shuffle_i32x4(0xffff, b, d, 0x88);
    rows[8 + j] = _mm512_maskz_shuffle_i32x4(0xffff, a, c, 0xdd);
    rows[12 + j] = _mm512_maskz_shuffle_i32x4(0xffff, b, d, 0xdd);
  }
}

// to[column][row] of `height` rows, at most 16, of `columns` numbers; load(row, column) gives
// sixteen of a row from `column` on, with any values past its end.
template <class Load>
inline void store_columns(int64_t height, int64_t columns, const Load& load, void* to) {
  const auto rows = static_cast<__mmask16>((1u << height) - 1);
  for (int64_t k = 0; k < columns; k += 16) {
    __m512i square[16];
    for (int64_t i = 0; i < 16; ++i) square[i] = i < height ? load(i, k) : _mm512_setzero_si512();
    transpose(square);
    for (int64_t i = 0; i < std::min<int64_t>(16, columns - k); ++i) {
      _mm512_mask_storeu_epi32(static_cast<char*>(to) + (k + i) * height * 4, rows, square[i]);
    }
  }
}

#endif  // SPILLWAY_TRANSPOSE_BODIES
