#include "tests/support/paged_attention.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace spillway::test {

namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kGuardBytes = 64;  // Keeps what an address must be a multiple of
constexpr std::byte kGuard{0x5a};

Bytes read(Stream& stream, const std::byte* from, size_t bytes) {
  Bytes found(bytes);
  if (bytes > 0) stream.copy(found.data(), from, bytes);
  REQUIRE(stream.record().wait().ok());
  return found;
}

Buffer copy_of(Device& device, Stream& stream, const Bytes& bytes) {
  Buffer memory = device.allocate(Memory::kDevice, bytes.size() + kGuardBytes).value();
  if (!bytes.empty()) stream.copy(memory.data(), bytes.data(), bytes.size());
  REQUIRE(stream.record().wait().ok());
  return memory;
}

size_t state_bytes(const AttentionArgs& args, const AttentionItem& item) {
  if (!item.budget.has_state()) return 0;
  const KvStateLayout layout{args.kv.heads, item.budget};
  return item.is_step() || item.whole() ? layout.bytes() : layout.chunked_bytes(item.prompt);
}

// A copy of an item's cache and state, the cache in blocks that lie apart.
class PagedItem {
 public:
  PagedItem(Device& device, Stream& stream, const AttentionArgs& args, const AttentionItem& item,
            uint64_t seed)
      : stream_(stream),
        block_bytes_(args.kv.block_bytes()),
        state_bytes_(state_bytes(args, item)),
        places_(static_cast<size_t>(kv_blocks(item.capacity()))) {
    std::iota(places_.begin(), places_.end(), size_t{0});
    std::shuffle(places_.begin(), places_.end(), std::mt19937_64(seed));
    const Bytes piece = read(stream, item.kv.first, places_.size() * block_bytes_);
    Bytes apart(kGuardBytes + places_.size() * step(), kGuard);
    for (size_t block = 0; block < places_.size(); ++block) {
      std::copy_n(piece.data() + block * block_bytes_, block_bytes_, apart.data() + offset(block));
    }
    cache_ = copy_of(device, stream, apart);
    state_ = copy_of(device, stream, read(stream, item.state, state_bytes_));
    for (size_t block = 0; block < places_.size(); ++block) {
      table_.push_back(cache_.data() + offset(block));
    }
  }

  AttentionItem of(AttentionItem item) const {
    item.kv = KvBlocks(table_.data());
    if (item.state != nullptr) item.state = state_.data();
    return item;
  }
  void forget_table() { std::fill(table_.begin(), table_.end(), nullptr); }

  // Whether cache and state have the bits of the item's, and the guards theirs.
  void require_same(const AttentionItem& item) const {
    Bytes apart = read(stream_, cache_.data(), kGuardBytes + places_.size() * step());
    const Bytes piece = read(stream_, item.kv.first, places_.size() * block_bytes_);
    for (size_t block = 0; block < places_.size(); ++block) {
      const auto at = apart.begin() + static_cast<std::ptrdiff_t>(offset(block));
      const auto from = piece.begin() + static_cast<std::ptrdiff_t>(block * block_bytes_);
      INFO("block " << block);
      REQUIRE(std::equal(at, at + static_cast<std::ptrdiff_t>(block_bytes_), from));
      std::fill_n(at, block_bytes_, kGuard);
    }
    REQUIRE(std::all_of(apart.begin(), apart.end(), [](std::byte b) { return b == kGuard; }));
    REQUIRE(read(stream_, state_.data(), state_bytes_) == read(stream_, item.state, state_bytes_));
  }

 private:
  size_t step() const { return block_bytes_ + kGuardBytes; }
  size_t offset(size_t block) const { return kGuardBytes + places_[block] * step(); }

  Stream& stream_;
  const size_t block_bytes_, state_bytes_;
  std::vector<size_t> places_;  // Of each block among those of the sequence
  Buffer cache_, state_;
  std::vector<std::byte*> table_;
};

}  // namespace

void attention_both_ways(Device& device, Stream& stream, const AttentionArgs& args) {
  std::vector<std::unique_ptr<PagedItem>> copies;
  std::vector<AttentionItem> items;
  for (const AttentionItem& item : args.items) {
    copies.push_back(std::make_unique<PagedItem>(device, stream, args, item, copies.size()));
    items.push_back(copies.back()->of(item));
  }
  const size_t out_bytes =
      static_cast<size_t>(args.out.rows * args.out.stride) * dtype_bytes(args.out.dtype);
  const Buffer out = copy_of(device, stream, read(stream, args.out.data, out_bytes));
  AttentionArgs paged = args;
  paged.items = items;
  paged.out.data = out.data();
  attention(stream, paged);
  for (const auto& copy : copies) copy->forget_table();
  attention(stream, args);
  REQUIRE(read(stream, out.data(), out_bytes) == read(stream, args.out.data, out_bytes));
  for (size_t i = 0; i < copies.size(); ++i) {
    INFO("item " << i << " under a block table");
    copies[i]->require_same(args.items[i]);
  }
}

}  // namespace spillway::test
