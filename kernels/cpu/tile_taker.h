// What becomes of the tile of a matrix product, up to kGemmRowsMax rows of 64 outputs
// (cpu/gemm_f32.h): who takes its parts as they are finished, and where they will be written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace spillway::cpu {

// Where a tile's outputs go: its first row and column, and how many columns there are. `first` is
// null where nobody says.
struct TileOutputs {
  const std::byte* first = nullptr;
  int64_t row_bytes = 0, element_bytes = 0, columns = 0;
};

// Who takes the parts of a tile as soon as they are finished, each once: what it writes goes on to
// memory while the next part is multiplied.
struct TileTaker {
  // That function, which must live as long: (row, rows, column, columns).
  template <class Take>
  static TileTaker of(const Take& take, const TileOutputs& outputs = {}) {
    return {[](const void* taker, int64_t row, int64_t rows, int64_t column, int64_t columns) {
              (*static_cast<const Take*>(taker))(row, rows, column, columns);
            },
            &take, outputs};
  }
  void take(int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    call(self, row, rows, column, columns);
  }

  void (*call)(const void* self, int64_t row, int64_t rows, int64_t column, int64_t columns);
  const void* self;
  TileOutputs outputs;
};

// Asks memory for the lines of a tile's outputs while the tile is multiplied. A core has few lines
// under way at once, and would wait for those that a part's stores miss; so a strip's are asked for
// some rows at a time, the last ones of a whole strip with the last stretch of inputs that it is
// multiplied by.
class OutputsAhead {
 public:
  struct Rows {
    int64_t begin, end;
  };

  // Strips of up to `strip_rows` rows are multiplied by so many stretches, at least one, one after
  // the other.
  OutputsAhead(const TileOutputs& outputs, int64_t strip_rows, int64_t stretches)
      : outputs_(outputs),
        each_(outputs.first == nullptr ? 0 : (strip_rows + stretches - 1) / stretches),
        first_(each_ == 0 ? 0 : stretches - (strip_rows + each_ - 1) / each_) {}

  // Those of a strip of `height` rows that are asked for with a stretch.
  Rows rows(int64_t stretch, int64_t height) const {
    const int64_t begin = std::min((stretch - first_) * each_, height);
    return begin < 0 ? Rows{0, 0} : Rows{begin, std::min(begin + each_, height)};
  }

  // Asks for them, the strip's rows beginning at row `row` of the tile. (Inlined by force: g++ 12
  // thinks that a function which only prefetches does nothing.)
  [[gnu::always_inline]] void ask(int64_t stretch, int64_t row, int64_t height, int64_t column,
                                  int64_t columns) const {
    constexpr int64_t kLine = 64;
    const Rows some = rows(stretch, height);
    const int64_t bytes = std::min(columns, outputs_.columns - column) * outputs_.element_bytes;
    for (int64_t i = some.begin; i < some.end; ++i) {
      const std::byte* const at =
          outputs_.first + (row + i) * outputs_.row_bytes + column * outputs_.element_bytes;
      for (int64_t byte = 0; byte < bytes; byte += kLine) __builtin_prefetch(at + byte);
    }
  }

 private:
  TileOutputs outputs_;
  int64_t each_, first_;  // Rows that a stretch asks for, and the first stretch that does
};

}  // namespace spillway::cpu
