#include "scheduler/sweep_prompts.h"

namespace spillway {

namespace {

int64_t next_chunk(const Sequence& sequence, const SweepContents& sweep,
                   const SweepLimits& limits) {
  const int64_t left = sequence.prompt_left();
  return chunk_tokens(sequence.prompt_tokens() - left, left, sweep.owed + sweep.prompt_tokens,
                      limits);
}

}  // namespace

SweepPrompts::SweepPrompts(std::span<const std::unique_ptr<Sequence>> running, int64_t owed,
                           const SweepLimits& limits)
    : limits_(limits), sweep_{.owed = owed} {
  for (const auto& sequence : running) {
    if (!sequence->in_chunks() || sequence->beginning() == nullptr) continue;
    // Behind the beginning that it has computed for others, the rest of a prompt goes at once.
    sequence->set_chunk(sequence->prompt_left());
    sweep_.prompt_tokens += sequence->prompt_left();
  }
  for (const auto& sequence : running) {
    if (!sequence->in_chunks() || sequence->beginning() != nullptr) continue;
    const int64_t tokens = next_chunk(*sequence, sweep_, limits_);
    const bool ends = tokens == sequence->prompt_left();
    sequence->set_chunk(tokens);
    if (ends) {
      sweep_.prompt_tokens += tokens;
    } else {
      chunked_ = sequence.get();
      sweep_.prompt_in_chunks = chunked_->prompt_computed();
    }
  }
}

SweepContents SweepPrompts::contents(int64_t sequences, uint64_t kv_bytes) const {
  SweepContents sweep = sweep_;
  sweep.sequences = sequences;
  sweep.kv_bytes = kv_bytes;
  return sweep;
}

void SweepPrompts::join(Sequence& next, bool in_chunks) {
  if (in_chunks) {
    chunked_ = &next;
    sweep_.prompt_in_chunks = next.prompt_computed();
    return;
  }
  if (next.found_cached() > 0) next.set_chunk(next.prompt_left());
  sweep_.prompt_tokens += static_cast<int64_t>(next.next_tokens().size());
}

int64_t SweepPrompts::finish() {
  if (chunked_ != nullptr) {
    const int64_t tokens = next_chunk(*chunked_, sweep_, limits_);
    chunked_->set_chunk(tokens);
    sweep_.prompt_tokens += tokens;
  }
  return owed_after(sweep_, limits_);
}

}  // namespace spillway
