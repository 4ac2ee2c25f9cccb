#include "scheduler/engine/sweep_account.h"

#include <algorithm>

namespace spillway {

int64_t SweepAccount::begin(std::span<const SweepItem> items) {
  work_ = {};
  for (const SweepItem& item : items) {
    const auto tokens = static_cast<int64_t>(item.tokens.size());
    work_.logit_rows += tokens - item.first_logits();
    if (!item.is_step()) {
      const bool whole = item.position == 0 && item.ends_prompt();
      ++(item.ends_prompt() ? work_.prompts : work_.prompts_unfinished);
      work_.prompt_tokens += tokens;
      work_.prompt_rows += item.kv->mean(
          [&](const KvSequence::Kind& kind) { return whole ? kind.budget.rows(tokens) : tokens; });
      work_.prompt_pairs += item.kv->mean([&](const KvSequence::Kind& kind) {
        return prompt_pairs(item.position, tokens, kind.window);
      });
      work_.cached_rows += item.kv->mean([&](const KvSequence::Kind& kind) {
        return kind.window == 0 ? item.position : std::min(item.position, kind.window - 1);
      });
    } else {
      work_.decoding += tokens;
      work_.drafted += tokens - 1;
      // A draft's tokens read the rows that they share once.
      work_.cached_rows += item.kv->mean([&](const KvSequence::Kind& kind) {
        return kind.budget.attended(item.position + tokens - 1);
      });
    }
  }
  return work_.tokens();
}

void SweepAccount::finish(double seconds, const TransferTotals& now, uint64_t weights_read,
                          double kv_wait_seconds) {
  const TransferTotals before = std::exchange(before_, now);
  const auto since = [](uint64_t bytes, uint64_t then) {
    return static_cast<double>(bytes - then);
  };
  work_.disk_read_bytes = since(weights_read + now.disk_read, before.disk_read);
  work_.disk_write_bytes = since(now.disk_written, before.disk_written);
  work_.to_device_bytes = since(now.to_device, before.to_device);
  work_.to_host_bytes = since(now.to_host, before.to_host);
  work_.host_attended_bytes = since(now.attended_by_host, before.attended_by_host);
  // A wait for staging space is a wait for writes, not for reads.
  const double kv_room = now.kv_room_seconds - before.kv_room_seconds;
  const double rows_room = now.activations_room_seconds - before.activations_room_seconds;
  work_.staging_wait_seconds = kv_room + rows_room;
  work_.kv_wait_seconds = kv_wait_seconds - kv_room;
  work_.activations_wait_seconds -= rows_room;
  work_.seconds = seconds;
  work_.ended = steady_seconds();
  if (log_ != nullptr) log_->add(work_);
}

}  // namespace spillway
