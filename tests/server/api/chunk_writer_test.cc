// Chunks of which only the text is written anew, against those that are written whole.
#include "server/api/chunk_writer.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/server/api/api_support.h"

namespace spillway::chunk_writer_test {
namespace {

TEST_CASE("a chunk is what is written whole, whatever its text and the call") {
  FakeScheduler engine;
  Tokenizer tokenizer = byte_tokenizer();
  ApiContext context = fake_context(engine.shape(), &tokenizer);
  CompletionCall call;
  call.model = GENERATE(as<std::string>{}, "fake-model", "@", "\"@\"");
  call.chat = GENERATE(false, true);
  call.requests.resize(2);
  call.samples = 2;
  const auto option = GENERATE(0, 1, 2, 3, 4, 5);
  call.include_usage = option == 1;
  call.continuous_usage = option == 2;
  call.timings = option == 3;
  call.return_token_ids = option == 4;
  call.logprobs = option == 5 ? 0 : -1;
  const CompletionHead head = {"id-1", 7};
  ChunkWriter writer;
  for (const char* text : {"a", " b", "\"", "@", "\"@\"", "\\", "\n\r\t\x01", "\xc3\xa4",
                           "\xff\xfe", "", "\xe2\x80\xa8"}) {
    for (int32_t index = 0; index < 2; ++index) {
      for (int state = 0; state < 3; ++state) {
        ChoiceText piece;
        piece.index = index;
        piece.text = text;
        piece.tokens = {5};
        piece.first = state == 1;
        piece.finished = state == 2;
        piece.hit_length = state == 2;
        piece.usage.generated_tokens = 3;
        if (call.logprobs >= 0) piece.scores.push_back({});
        CHECK(writer.write(head, call, context, piece) == answer_chunk(head, call, context, piece));
      }
    }
  }
}

}  // namespace
}  // namespace spillway::chunk_writer_test
