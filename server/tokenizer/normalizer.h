// Changes text before it is cut and encoded, as the normalizer of tokenizer.json says.
//
// Owned by a Tokenizer. Thread rule: const after create(), any thread.
// Unicode's normal forms are those of Unicode 9, which PyPI's `tokenizers` has: characters that are
// younger neither compose, decompose nor change places.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/tokenizer/tokenizer_steps.h"

namespace spillway {

class Normalizer {
 public:
  // kInvalidArgument: a pattern that is none.
  static Result<Normalizer> create(const std::vector<NormalizerStep>& steps);

  Normalizer(Normalizer&&) noexcept;
  Normalizer& operator=(Normalizer&&) noexcept;
  ~Normalizer();

  // Whether there is nothing to do.
  bool empty() const { return steps_.empty(); }

  // REQUIRES: valid UTF-8; so is the result. Empty text stays empty. kCapacity: a limit is reached,
  // of a pattern, of 1 GiB, or of 16 times the text and 1 MiB.
  Result<std::string> normalize(std::string text) const;

 private:
  Normalizer();
  struct Step;
  std::vector<std::unique_ptr<const Step>> steps_;
};

}  // namespace spillway
