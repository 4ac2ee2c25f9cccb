// The chunks of prompts in a sweep, and what it leaves for the next one to make up for.
#include "scheduler/sweep_prompts.h"

#include <catch2/catch.hpp>
#include <vector>

#include "tests/support/collecting_sink.h"
#include "tests/support/tiny_shape.h"

namespace spillway::sweep_prompts_test {
namespace {

std::unique_ptr<Sequence> sequence_of(size_t prompt, int64_t prefill_tokens) {
  Request request;
  request.prompt.assign(prompt, 1);
  SequenceKv promise;
  promise.chunks = chunks_of(static_cast<int64_t>(prompt), prefill_tokens);
  return std::make_unique<Sequence>(RequestId{1}, std::move(request),
                                    std::make_shared<test::CollectingSink>(), test::tiny_shape(),
                                    promise, 0, 0);
}

TEST_CASE("a whole prompt takes its tokens of the sweep, one in chunks what is left") {
  const SweepLimits limits{.block_sequences = 8, .prefill_tokens = 100};
  std::vector<std::unique_ptr<Sequence>> running;
  SweepPrompts prompts(running, 0, limits);
  CHECK(prompts.contents(3, 50).sequences == 3);
  CHECK(prompts.contents(3, 50).kv_bytes == 50);
  CHECK(prompts.contents(0, 0).prompt_tokens == 0);

  const auto whole = sequence_of(30, 100), longer = sequence_of(250, 100);
  prompts.join(*whole, false);
  CHECK(prompts.contents(1, 0).prompt_tokens == 30);
  prompts.join(*longer, true);
  CHECK(prompts.contents(2, 0).prompt_in_chunks == 250);
  CHECK(prompts.contents(2, 0).prompt_tokens == 30);
  CHECK(prompts.finish() == 0);  // There is no target.
  CHECK(longer->next_tokens().size() == 70);
  CHECK(whole->next_tokens().size() == 30);
}

TEST_CASE("a prompt that has begun goes on, and beside it others take half") {
  const SweepLimits limits{.block_sequences = 8, .prefill_tokens = 100};
  std::vector<std::unique_ptr<Sequence>> running;
  running.push_back(sequence_of(250, 100));
  running[0]->set_chunk(100);
  running[0]->end_sweep();  // 100 of 250
  SweepPrompts prompts(running, 0, limits);
  CHECK(prompts.contents(1, 0).prompt_in_chunks == 250);
  CHECK(prompts.finish() == 0);
  CHECK(running[0]->next_tokens().size() == 100);
  running[0]->end_sweep();
  // Its last chunk counts among the whole prompts.
  SweepPrompts last(running, 0, limits);
  CHECK(last.contents(1, 0).prompt_in_chunks == 0);
  CHECK(last.contents(1, 0).prompt_tokens == 50);
  CHECK(running[0]->next_tokens().size() == 50);
}

TEST_CASE("what a sweep takes above its target the next one owes") {
  const SweepLimits limits{.block_sequences = 8, .prefill_tokens = 100, .prefill_target = 40};
  std::vector<std::unique_ptr<Sequence>> running;
  SweepPrompts prompts(running, 0, limits);
  const auto whole = sequence_of(90, 100);
  prompts.join(*whole, false);
  CHECK(prompts.finish() == 50);
  CHECK(SweepPrompts(running, 50, limits).finish() == 10);
}

}  // namespace
}  // namespace spillway::sweep_prompts_test
