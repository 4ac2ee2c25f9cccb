#include "scheduler/stages/stage_messages.h"

#include <cstring>

#include "kernels/base/byte_message.h"
#include "kernels/base/check.h"

namespace spillway {
namespace {

// Rows begin at a multiple of this, so that they can be used where they lie.
constexpr size_t kRowsAlignment = 64;

void add(ByteWriter* writer, const Status& status) {
  writer->add(status.code());
  writer->add_text(status.message());
}

Status get_status(ByteReader* reader) {
  const auto code = reader->get<Code>();
  std::string text = reader->get_text();
  return code == Code::kOk ? Status() : Status(code, std::move(text));
}

// Rows lie behind the kind and their number, where they can be used in place.
constexpr size_t kRowsAt = 64;

}  // namespace

Result<StageMessage> kind_of(std::span<const std::byte> message) {
  ByteReader reader(message);
  const auto kind = reader.get<StageMessage>();
  if (!reader.ok() || kind > StageMessage::kLogits) return corruption("no message of a stage");
  return kind;
}

std::vector<std::byte> end_message() {
  ByteWriter writer;
  writer.add(StageMessage::kEnd);
  return writer.take();
}

std::vector<std::byte> logits_message(const LogitsRequest& request) {
  ByteWriter writer;
  writer.add(StageMessage::kLogits);
  writer.add(request.sweep);
  writer.add(request.rows);
  return writer.take();
}

Result<LogitsRequest> decode_logits(std::span<const std::byte> message) {
  ByteReader reader(message);
  const bool logits = reader.get<StageMessage>() == StageMessage::kLogits;
  LogitsRequest request;
  request.sweep = reader.get<uint64_t>();
  request.rows = reader.get<int64_t>();
  if (logits && reader.ok() && reader.left().empty()) return request;
  return corruption("a rank's message is not about logits");
}

std::vector<std::byte> begin_sweep_message(size_t rows) {
  constexpr size_t kUsualRest = 64 << 10;
  std::vector<std::byte> message;
  message.reserve(kRowsAt + rows * sizeof(float) + kUsualRest);
  ByteWriter writer;
  writer.add(StageMessage::kSweep);
  writer.add(static_cast<uint64_t>(rows));
  const std::vector<std::byte> head = writer.take();
  message.assign(head.begin(), head.end());
  message.resize(kRowsAt + rows * sizeof(float));
  return message;
}

std::span<float> rows_of(std::vector<std::byte>* message) {
  return {reinterpret_cast<float*>(message->data() + kRowsAt),
          (message->size() - kRowsAt) / sizeof(float)};
}

void finish_sweep_message(const StageSweep& sweep, std::vector<std::byte>* message) {
  static_assert(std::is_trivially_copyable_v<StageKvChange>);
  ByteWriter writer;
  writer.add(sweep.number);
  add(&writer, sweep.status);
  writer.add(static_cast<uint64_t>(sweep.ended));
  writer.add(static_cast<uint64_t>(sweep.failures.size()));
  for (const StageFailure& failure : sweep.failures) {
    writer.add(static_cast<uint64_t>(failure.item));
    add(&writer, failure.status);
  }
  writer.add_all(std::span<const StageKvChange>(sweep.changes));
  writer.add_all(std::span<const StageItem>(sweep.items));
  writer.add_all(std::span<const int32_t>(sweep.tokens));
  const std::vector<std::byte> rest = writer.take();
  message->insert(message->end(), rest.begin(), rest.end());
}

Result<ReceivedSweep> decode_sweep(std::span<const std::byte> message) {
  const auto wrong = [](const char* what) {
    return corruption(std::string("a stage's message ") + what);
  };
  ByteReader head(message);
  if (head.get<StageMessage>() != StageMessage::kSweep) return wrong("is not of a sweep");
  const auto rows = head.get<uint64_t>();
  if (message.size() < kRowsAt || rows > (message.size() - kRowsAt) / sizeof(float)) {
    return wrong("has fewer rows than it says");
  }
  ReceivedSweep received;
  StageSweep& sweep = received.sweep;
  ByteReader reader(message.subspan(kRowsAt + rows * sizeof(float)));
  sweep.number = reader.get<uint64_t>();
  sweep.status = get_status(&reader);
  sweep.ended = reader.get<uint64_t>() != 0;
  const auto failures = reader.get<uint64_t>();
  for (uint64_t i = 0; i < failures && reader.ok(); ++i) {
    const auto item = static_cast<size_t>(reader.get<uint64_t>());
    sweep.failures.push_back({item, get_status(&reader)});
  }
  sweep.changes = reader.get_all<StageKvChange>();
  sweep.items = reader.get_all<StageItem>();
  sweep.tokens = reader.get_all<int32_t>();
  if (!reader.ok() || !reader.left().empty()) return wrong("is longer or shorter than it says");
  uint64_t tokens = 0;
  for (const StageItem& item : sweep.items) {
    if (item.tokens <= 0 || item.position < 0) return wrong("has an item without tokens");
    if (item.logits > StageLogits::kAll) return wrong("asks for logits that there are not");
    tokens += static_cast<uint64_t>(item.tokens);
    if (tokens > sweep.tokens.size()) break;
  }
  if (tokens != sweep.tokens.size()) return wrong("has other tokens than its items");
  for (const StageFailure& failure : sweep.failures) {
    if (failure.item >= sweep.items.size()) return wrong("names an item that it has not");
  }
  received.rows = {reinterpret_cast<const float*>(message.data() + kRowsAt),
                   static_cast<size_t>(rows)};
  return received;
}

}  // namespace spillway
