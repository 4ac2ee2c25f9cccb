#include "server/batches/batch_order.h"

#include <xxhash.h>

#include <algorithm>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "server/batches/batch_line.h"

namespace spillway {

namespace {

using Line = BatchOrder::Line;
using Hashes =
    std::deque<uint64_t>;  // Never moved as it grows: that would take three times as much

// 256, 384, 512, 768, 1024 ... bytes: what two prompts have in common is known to a third of it,
// and a prompt of 1 MiB has 25 hashes.
size_t beginning_bytes(size_t beginning) {
  return (beginning % 2 == 0 ? size_t{256} : size_t{384}) << (beginning / 2);
}

// Appends the hashes of the beginnings of the prompt, each made from the one before it, and returns
// how many. Equal ones of different prompts would make neighbours of them, no more.
uint16_t add_hashes(std::string_view prompt, Hashes& hashes) {
  uint64_t hash = 0;
  size_t hashed = 0;
  uint16_t count = 0;
  for (size_t end = beginning_bytes(0); end <= prompt.size(); end = beginning_bytes(++count)) {
    hash = XXH3_64bits_withSeed(prompt.data() + hashed, end - hashed, hash);
    hashes.push_back(hash);
    hashed = end;
  }
  return count;
}

void sort_by_key(std::span<Line> lines) {
  std::sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return std::tie(a.key, a.offset) < std::tie(b.key, b.offset);
  });
}

// Visits the runs of lines with equal keys. A visit may change the keys in its run.
template <typename Visit>
void for_each_run(std::span<Line> lines, const Visit& visit) {
  while (!lines.empty()) {
    size_t size = 1;
    while (size < lines.size() && lines[size].key == lines.front().key) ++size;
    visit(lines.first(size));
    lines = lines.subspan(size);
  }
}

// Puts lines together that have this beginning in common, and among them those with longer ones.
// REQUIRES: the lines are in the input's order. Recursion ends with the beginnings of the longest
// line that is not alone.
void group(std::span<Line> lines, const Hashes& hashes, uint16_t beginning) {
  bool any = false;
  for (Line& line : lines) {
    const bool has = beginning < line.beginnings;
    line.key = has ? hashes[line.hashes + beginning] : line.offset;
    any = any || has;
  }
  if (!any) return;
  sort_by_key(lines);
  for_each_run(lines, [](std::span<Line> run) {
    const uint64_t first = run.front().offset;
    for (Line& line : run) line.key = first;
  });
  sort_by_key(lines);
  for_each_run(lines, [&](std::span<Line> run) {
    if (run.size() > 1) group(run, hashes, static_cast<uint16_t>(beginning + 1));
  });
}

}  // namespace

Result<BatchOrder> BatchOrder::of(BatchInput& input, int64_t rows, const ApiContext& context,
                                  size_t bytes_max) {
  BatchOrder order;
  const size_t lines_bytes = static_cast<size_t>(rows) * sizeof(Line);
  order.too_many_ = lines_bytes > bytes_max;
  if (order.too_many_) return order;
  order.lines_.reserve(static_cast<size_t>(rows));
  Hashes hashes;
  CustomIds ids;
  InputLine text;
  std::string prompt;
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, input.next(&text));
    if (!found) break;
    BatchLine line = read_batch_line(text, context, &prompt);
    Line& place = order.lines_.emplace_back();
    place.offset = text.offset;
    place.number = text.number;
    place.repeats_id = ids.check(&line);
    place.hashes = static_cast<uint32_t>(hashes.size());
    place.beginnings = add_hashes(prompt, hashes);
    order.too_many_ = lines_bytes + ids.bytes() + hashes.size() * sizeof(uint64_t) > bytes_max;
    if (order.too_many_) break;
  }
  input.rewind();
  const auto earlier = [](const Line& a, const Line& b) { return a.offset < b.offset; };
  if (!order.too_many_) group(order.lines_, hashes, 0);
  if (order.too_many_ || std::is_sorted(order.lines_.begin(), order.lines_.end(), earlier)) {
    order.lines_ = std::vector<Line>();  // Without its memory
  }
  return order;
}

}  // namespace spillway
