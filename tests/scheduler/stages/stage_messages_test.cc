#include "scheduler/stages/stage_messages.h"

#include <catch2/catch.hpp>

namespace spillway::stage_messages_test {
namespace {

std::vector<std::byte> encode(const StageSweep& sweep, size_t rows) {
  std::vector<std::byte> message = begin_sweep_message(rows);
  for (size_t i = 0; i < rows; ++i) rows_of(&message)[i] = static_cast<float>(i);
  finish_sweep_message(sweep, &message);
  return message;
}

StageSweep sample() {
  StageSweep sweep;
  sweep.number = 7;
  sweep.failures = {{1, Status(Code::kIoError, "rank 2: the disk is gone")}};
  sweep.changes = {{3, false, 40, {}, 30, 8}, {2, true, 0, {}, 0, 0}};
  sweep.items = {{3, 0, 30, 2}, {4, 9, 0, 1}};
  sweep.tokens = {5, 6, 7};
  return sweep;
}

TEST_CASE("a sweep comes out of its message as it went in") {
  const std::vector<std::byte> message = encode(sample(), 6);
  CHECK(kind_of(message).value() == StageMessage::kSweep);
  const ReceivedSweep found = decode_sweep(message).value();
  CHECK(found.sweep.number == 7);
  CHECK(found.sweep.status.ok());
  CHECK(found.sweep.failures.at(0).item == 1);
  CHECK(found.sweep.failures.at(0).status.code() == Code::kIoError);
  CHECK(found.sweep.failures.at(0).status.message() == "rank 2: the disk is gone");
  REQUIRE(found.sweep.changes.size() == 2);
  CHECK(found.sweep.changes[0].rows == 40);
  CHECK(found.sweep.changes[0].chunk_most == 8);
  CHECK(found.sweep.changes[1].release);
  CHECK(found.sweep.items.at(1).position == 9);
  CHECK(found.sweep.tokens == sample().tokens);
  REQUIRE(found.rows.size() == 6);
  CHECK(found.rows[5] == 5);
}

TEST_CASE("an error travels without rows") {
  StageSweep sweep = sample();
  sweep.status = Status(Code::kCapacity, "no memory");
  const ReceivedSweep found = decode_sweep(encode(sweep, 0)).value();
  CHECK(found.sweep.status.code() == Code::kCapacity);
  CHECK(found.rows.empty());
}

TEST_CASE("a rank is asked for logits of so many rows of a sweep") {
  const std::vector<std::byte> message = logits_message({7, -1});
  CHECK(kind_of(message).value() == StageMessage::kLogits);
  const LogitsRequest found = decode_logits(message).value();
  CHECK(found.sweep == 7);
  CHECK(found.rows == -1);
  for (size_t bytes = 0; bytes < message.size(); ++bytes) {
    CHECK_FALSE(decode_logits(std::span(message).first(bytes)).ok());
  }
  CHECK_FALSE(decode_logits(end_message()).ok());
  CHECK_FALSE(decode_sweep(message).ok());
}

TEST_CASE("messages that are cut, or contradict themselves, are errors") {
  const std::vector<std::byte> message = encode(sample(), 6);
  for (size_t bytes = 0; bytes < message.size(); ++bytes) {
    INFO(bytes << " of " << message.size() << " bytes");
    CHECK_FALSE(decode_sweep(std::span(message).first(bytes)).ok());
  }
  CHECK_FALSE(kind_of({}).ok());
  CHECK_FALSE(decode_sweep(end_message()).ok());
  CHECK(kind_of(end_message()).value() == StageMessage::kEnd);

  StageSweep other = sample();
  other.tokens.push_back(1);
  CHECK_FALSE(decode_sweep(encode(other, 0)).ok());
  other = sample();
  other.items[0].tokens = 0;
  CHECK_FALSE(decode_sweep(encode(other, 0)).ok());
  other = sample();
  other.failures[0].item = 2;
  CHECK_FALSE(decode_sweep(encode(other, 0)).ok());
}

}  // namespace
}  // namespace spillway::stage_messages_test
