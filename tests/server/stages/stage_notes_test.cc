#include "server/stages/stage_notes.h"

#include <catch2/catch.hpp>

#include "kernels/ranks/thread_mail.h"
#include "scheduler/stages/stage_messages.h"

namespace spillway::stage_notes_test {
namespace {

const std::vector<std::string> kNames = {"rank 0 (a)", "rank 1 (b)", "rank 2 (c)"};

TEST_CASE("notes of all ranks come to rank 0, by rank") {
  const auto mail = thread_mail(3);
  for (const int rank : {2, 1}) {
    ByteWriter contents;
    contents.add(rank);
    post_note(*mail[static_cast<size_t>(rank)], 0, {}, std::move(contents));
  }
  const auto notes = gather_notes(*mail[0], kNames).value();
  REQUIRE(notes.size() == 3);
  CHECK(ByteReader(notes[1]).get<int>() == 1);
  CHECK(ByteReader(notes[2]).get<int>() == 2);
}

TEST_CASE("an error of a rank is rank 0's, with its name") {
  const auto mail = thread_mail(3);
  post_note(*mail[1], 0, {});
  post_note(*mail[2], 0, Status(Code::kInfeasible, "too small"));
  const Status status = gather_notes(*mail[0], kNames).status();
  CHECK(status.code() == Code::kInfeasible);
  CHECK(status.message() == "rank 2 (c): too small");
}

TEST_CASE("rank 0 says errors, and that it has ended") {
  const auto mail = thread_mail(2);
  post_note(*mail[0], 1, invalid_argument("wrong"));
  CHECK(receive_note(*mail[1]).status().message() == "wrong");
  mail[0]->post(1, end_message());
  CHECK(receive_note(*mail[1]).status().code() == Code::kCancelled);
  mail[0]->post(1, std::vector<std::byte>(2));
  CHECK(receive_note(*mail[1]).status().code() == Code::kCorruption);
}

}  // namespace
}  // namespace spillway::stage_notes_test
