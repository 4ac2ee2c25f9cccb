// KvBudget: the numbers of cached positions that a sequence keeps, and their slots (after H2O,
// arXiv 2306.14048, section 4).
//
// A sequence's rows (cached positions) of one layer lie in slots, which all its KV heads share:
//
//   slots 0 to recent: a ring, position p in slot p mod (recent + 1);
//
//   slots recent + 1 to recent + kept: positions kept besides, in any order, by KV head.
//
// A decode step writes its row into the ring's hole, attends to every slot in use, and then the
// position that has left the recent window moves to the kept ones, in place of one of them, or
// becomes the hole: at most one row moves. Plain values; any thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spillway {

// What the score of a position is, where a budget chooses by score.
enum class KvScore : uint8_t {
  kAttention,  // The softmax weights that queries gave it, summed: stored beside the rows (h2o)
  kRandom,     // A number drawn for it by `seed` (base/kv_random.h): not stored
  kSnapMean,   // As kAttention, but of a prompt's queries the last ones alone, smoothed (snap)
  kSnapMax,    // The same with the highest weight of these queries instead of their sum
};

struct KvBudget {
  int64_t recent = 0;  // Last positions; 0: every position is kept, and the rest is 0 (rule full).
  int64_t kept = 0;    // Positions kept besides
  bool by_score = false;  // Keeps the highest scores, else the first (window with sinks)
  // By score: the first positions stay whatever their scores, as a part of `kept`, at most all.
  int64_t first = 0;
  KvScore score = KvScore::kAttention;
  uint64_t seed = 0;
  // While a prompt goes in chunks: the slots of a ring in which its rows lie, a multiple of 64; 0:
  // position p lies in slot p. Where queries attend to a window alone (within()).
  int64_t chunk_ring = 0;

  bool full() const { return recent == 0; }
  bool has_state() const { return kept > 0; }  // Positions, and scores (kernels/kv_state.h)
  bool scored() const { return by_score && kept > 0 && score != KvScore::kRandom; }
  bool random() const { return by_score && score == KvScore::kRandom; }
  bool snaps() const {
    return by_score && (score == KvScore::kSnapMean || score == KvScore::kSnapMax);
  }
  // Of a prompt: the first position whose query counts in the scores. For snap the window of
  // queries is the last 64, of prompts below 256 tokens the last 32 (SnapKV, arXiv 2404.14469,
  // whose window stays in the cache); a budget that does not hold as many takes its recent ones.
  int64_t scored_from(int64_t prompt) const {
    if (!snaps()) return 0;
    const int64_t queries = prompt < 256 ? 32 : 64;
    return std::max<int64_t>(0, prompt - (recent + kept < queries ? recent : queries));
  }
  int64_t ring() const { return recent + 1; }
  // Slots that a sequence of `positions` uses in the end.
  int64_t slots(int64_t positions) const {
    return full() ? positions : std::min(positions, ring() + kept);
  }
  // Slots in use after `positions`, the hole included.
  int64_t span(int64_t positions) const {
    return full() || positions <= recent ? positions : std::min(positions + 1, ring() + kept);
  }
  // Rows that a decode step at `position` attends to, its own included: slots [0, attended).
  int64_t attended(int64_t position) const {
    return full() ? position + 1 : std::min(position + 1, ring() + kept);
  }
  // Rows that are kept after `positions`.
  int64_t rows(int64_t positions) const {
    return full() ? positions : std::min(positions, recent + kept);
  }
  // A prompt that is computed in chunks keeps all its rows, position p in slot p, or the last ones
  // in a ring, until its last chunk (kernels/ops.h). Slots that such a sequence of `positions`
  // needs at its largest, slots in use after `positions` of it, and a position's slot meanwhile.
  int64_t chunked_slots(int64_t prompt, int64_t positions) const {
    return std::max(in_chunks(prompt), slots(positions));
  }
  int64_t chunked_span(int64_t prompt, int64_t positions) const {
    return positions < prompt ? in_chunks(positions) : span(positions);
  }
  int64_t in_chunks(int64_t positions) const {
    return chunk_ring == 0 ? positions : std::min(positions, chunk_ring);
  }
  int64_t chunked_slot(int64_t position) const {
    return chunk_ring == 0 ? position : position % chunk_ring;
  }
  int64_t slot(int64_t position) const { return full() ? position : position % ring(); }

  // The budget of a layer whose queries attend to the last `window` positions alone, their own
  // included (0: to all), for a sequence of `positions`: the last ones within both, since a
  // position outside of the window is never attended to again. `chunk`: the most tokens of a chunk
  // of its prompt; 0: any number.
  KvBudget within(int64_t window, int64_t positions, int64_t chunk = 0) const {
    if (window == 0 || (full() && window >= positions)) return *this;
    KvBudget last;
    last.recent = full() ? window - 1 : std::min(window - 1, recent + kept);
    // A chunk is stored before its first row has attended to the window - 1 rows before it.
    if (chunk > 0) last.chunk_ring = (window - 1 + chunk + 63) / 64 * 64;
    return last;
  }

  friend bool operator==(const KvBudget&, const KvBudget&) = default;
};

}  // namespace spillway
