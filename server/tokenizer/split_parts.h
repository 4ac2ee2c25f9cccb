// What a pattern makes of one piece of text: matches and the text between them, and what becomes of
// both by the behavior of a Split. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "server/tokenizer/pretokenizer.h"
#include "server/tokenizer/text_pattern.h"
#include "server/tokenizer/tokenizer_steps.h"

namespace spillway {

// A part of a text; together they are all of it.
struct SplitPart {
  size_t begin;
  size_t end;
  bool matches;
};

// The parts of a text of `bytes` with these matches, which are in order.
std::vector<SplitPart> parts_of(const std::vector<PatternMatch>& matches, size_t bytes);

// Appends the pieces that the parts become, moved by `offset`, to `spans`. Empty ones are left out.
void append_pieces(const std::vector<SplitPart>& parts, SplitBehavior behavior, size_t offset,
                   std::vector<PieceList::Span>* spans);

}  // namespace spillway
