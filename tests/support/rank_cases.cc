#include "tests/support/rank_cases.h"

#include <cstring>
#include <utility>

namespace spillway::test {
namespace {

// The byte of a rank's data in one call.
std::byte byte_of(int rank, size_t call, size_t at) {
  return static_cast<std::byte>((at * 31 + call * 17 + static_cast<size_t>(rank) * 101 + at / 251) &
                                0xff);
}

class Cases {
 public:
  Cases(RankGroup& ranks, Device& device)
      : ranks_(ranks), device_(device), stream_(device.new_stream("ranks")) {}

  std::vector<std::string> run() {
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{7}, size_t{4096}, size_t{100'003}, size_t{3} << 20}) {
      gather(bytes, /*in_place=*/false);
      gather(bytes, /*in_place=*/true);
      for (int root = 0; root < ranks_.size(); ++root) broadcast(bytes, root);
      if (ranks_.size() > 1) pass_on(bytes);
    }
    for (int i = 0; i < 300; ++i) gather(static_cast<size_t>(i % 13), i % 2 == 0);
    if (ranks_.size() > 1) chain();
    refuse();
    return std::move(wrong_);
  }

 private:
  void note(const Status& status, const std::string& what) {
    if (!status.ok()) wrong_.push_back(what + ": " + std::string(status.message()));
  }

  Buffer buffer(size_t bytes) {
    Result<Buffer> memory = device_.allocate(Memory::kDevice, bytes);
    if (!memory.ok()) {
      note(memory.status(), "memory");
      return {};
    }
    return std::move(memory).value();
  }

  // The memory of a copy must stay until its work is done.
  void put(std::byte* to, const std::vector<std::byte>& bytes) {
    if (bytes.empty()) return;
    stream_->copy(to, bytes.data(), bytes.size());
    note(stream_->record().wait(), "copy in");
  }

  std::vector<std::byte> get(const std::byte* from, size_t bytes) {
    std::vector<std::byte> host(bytes);
    if (bytes > 0) stream_->copy(host.data(), from, bytes);
    note(stream_->record().wait(), "copy out");
    return host;
  }

  std::vector<std::byte> data_of(int rank, size_t bytes) const {
    std::vector<std::byte> data(bytes);
    for (size_t i = 0; i < bytes; ++i) data[i] = byte_of(rank, call_, i);
    return data;
  }

  void compare(const std::vector<std::byte>& found, const std::vector<std::byte>& expected,
               const std::string& what) {
    if (found != expected) wrong_.push_back(what + ": other bytes than were sent");
  }

  std::string name(const char* what, size_t bytes) const {
    return std::string(what) + " of " + std::to_string(bytes) + " bytes, call " +
           std::to_string(call_);
  }

  void gather(size_t bytes, bool in_place) {
    ++call_;
    const auto size = static_cast<size_t>(ranks_.size());
    Buffer all = buffer(size * bytes + 1), part = buffer(bytes + 1);
    std::byte* const mine =
        in_place ? all.data() + static_cast<size_t>(ranks_.rank()) * bytes : part.data();
    put(mine, data_of(ranks_.rank(), bytes));
    note(ranks_.all_gather(*stream_, mine, all.data(), bytes), name("all_gather", bytes));
    std::vector<std::byte> expected;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const std::vector<std::byte> other = data_of(rank, bytes);
      expected.insert(expected.end(), other.begin(), other.end());
    }
    compare(get(all.data(), size * bytes), expected, name("all_gather", bytes));
  }

  void broadcast(size_t bytes, int root) {
    ++call_;
    Buffer data = buffer(bytes + 1);
    if (ranks_.rank() == root) put(data.data(), data_of(root, bytes));
    note(ranks_.broadcast(*stream_, data.data(), bytes, root), name("broadcast", bytes));
    compare(get(data.data(), bytes), data_of(root, bytes), name("broadcast", bytes));
  }

  // Each gives to the one behind it, the last to the first; even ranks give before they take. With
  // an odd number of ranks the last takes first.
  void pass_on(size_t bytes) {
    ++call_;
    const int rank = ranks_.rank(), size = ranks_.size();
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    Buffer out = buffer(bytes + 1), in = buffer(bytes + 1);
    put(out.data(), data_of(rank, bytes));
    const auto give = [&] {
      note(ranks_.send(*stream_, out.data(), bytes, next), name("send", bytes));
    };
    const bool first = rank % 2 == 0 && rank != size - 1;
    if (first) give();
    note(ranks_.receive(*stream_, in.data(), bytes, before), name("receive", bytes));
    if (!first) give();
    compare(get(in.data(), bytes), data_of(before, bytes), name("pass on", bytes));
  }

  // What stages of a pipeline do: from the first rank to the last, several times, without waiting.
  void chain() {
    constexpr size_t kBytes = 5000;
    for (int round = 0; round < 20; ++round) {
      ++call_;
      Buffer data = buffer(kBytes);
      const int rank = ranks_.rank();
      if (rank == 0) {
        put(data.data(), data_of(0, kBytes));
      } else {
        note(ranks_.receive(*stream_, data.data(), kBytes, rank - 1), name("chain", kBytes));
      }
      if (rank + 1 < ranks_.size()) {
        note(ranks_.send(*stream_, data.data(), kBytes, rank + 1), name("chain", kBytes));
      }
      compare(get(data.data(), kBytes), data_of(0, kBytes), name("chain", kBytes));
    }
  }

  // Calls that are wrong by themselves leave the group as it is.
  void refuse() {
    Buffer data = buffer(64);
    const int size = ranks_.size(), rank = ranks_.rank();
    for (const Status& refused :
         {ranks_.send(*stream_, data.data(), 8, size), ranks_.send(*stream_, data.data(), 8, -1),
          ranks_.send(*stream_, data.data(), 8, rank),
          ranks_.receive(*stream_, data.data(), 8, rank),
          ranks_.broadcast(*stream_, data.data(), 8, size)}) {
      if (refused.code() != Code::kInvalidArgument) wrong_.push_back("a wrong rank was accepted");
    }
    gather(64, false);
  }

  RankGroup& ranks_;
  Device& device_;
  const std::unique_ptr<Stream> stream_;
  size_t call_ = 0;
  std::vector<std::string> wrong_;
};

}  // namespace

std::vector<std::string> run_rank_cases(RankGroup& ranks, Device& device) {
  return Cases(ranks, device).run();
}

}  // namespace spillway::test
