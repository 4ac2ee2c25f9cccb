#include "server/stages/stage_notes.h"

#include <utility>

#include "scheduler/stages/stage_messages.h"

namespace spillway {

namespace {

struct Note {
  Status status;
  std::vector<std::byte> contents;
};

Result<Note> read_note(std::span<const std::byte> message) {
  SPILLWAY_ASSIGN_OR_RETURN(const StageMessage kind, kind_of(message));
  if (kind == StageMessage::kEnd) {
    return Note{Status(Code::kCancelled, "rank 0 has ended"), {}};
  }
  ByteReader reader(message);
  reader.get<StageMessage>();
  const auto code = reader.get<Code>();
  std::string text = reader.get_text();
  if (kind != StageMessage::kSetup || !reader.ok()) return corruption("a rank's note is damaged");
  Note note;
  if (code != Code::kOk) note.status = Status(code, std::move(text));
  note.contents.assign(reader.left().begin(), reader.left().end());
  return note;
}

}  // namespace

void post_note(RankMail& mail, int to, const Status& status, ByteWriter contents) {
  ByteWriter writer;
  writer.add(StageMessage::kSetup);
  writer.add(status.code());
  writer.add_text(status.message());
  std::vector<std::byte> message = writer.take();
  const std::vector<std::byte> more = contents.take();
  message.insert(message.end(), more.begin(), more.end());
  mail.post(to, std::move(message));
}

Result<std::vector<std::byte>> receive_note(RankMail& mail) {
  SPILLWAY_ASSIGN_OR_RETURN(const RankMail::Message message, mail.receive());
  SPILLWAY_ASSIGN_OR_RETURN(Note note, read_note(message.bytes));
  SPILLWAY_RETURN_IF_ERROR(note.status);
  return std::move(note.contents);
}

Result<std::vector<std::vector<std::byte>>> gather_notes(RankMail& mail,
                                                         std::span<const std::string> names) {
  std::vector<std::vector<std::byte>> all(static_cast<size_t>(mail.size()));
  Status first;
  for (int i = 1; i < mail.size(); ++i) {
    SPILLWAY_ASSIGN_OR_RETURN(const RankMail::Message message, mail.receive());
    SPILLWAY_ASSIGN_OR_RETURN(Note note, read_note(message.bytes));
    const auto from = static_cast<size_t>(message.from);
    if (first.ok()) first = note.status.at(names[from]);
    all[from] = std::move(note.contents);
  }
  SPILLWAY_RETURN_IF_ERROR(first);
  return all;
}

}  // namespace spillway
