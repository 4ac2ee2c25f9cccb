// The chunks of one answer that streams. Nearly all of them differ from the one before by a token's
// text only, so what stands around it is made once for each choice. One thread at a time.
#pragma once

#include <string>
#include <vector>

#include "server/api/answer_json.h"

namespace spillway {

class ChunkWriter {
 public:
  // What answer_chunk() writes, byte for byte. Every call with the same head, call and context.
  std::string write(const CompletionHead& head, const CompletionCall& call,
                    const ApiContext& context, const ChoiceText& piece);

 private:
  struct Around {
    std::string before, after;  // Empty: not made yet
  };

  std::vector<Around> choices_;
};

}  // namespace spillway
