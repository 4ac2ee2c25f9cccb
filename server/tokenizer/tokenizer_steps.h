// What tokenizer.json says of the steps around its model, checked and as plain values: normalizer,
// pre-tokenizer and decoder, each a list of steps in their order ("Sequence" is taken apart).
// The names are those of the file. Plain values, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

constexpr size_t kStepsMax = 64;  // Of a kind

// {"Regex": text} in Oniguruma's syntax, or {"String": text}.
struct PatternText {
  std::string text;  // Not empty
  bool literal = false;
};

struct NormalizerStep {
  enum class Kind : uint8_t { kNfc, kNfd, kNfkc, kNfkd, kPrepend, kReplace, kLowercase, kStrip };
  Kind kind = Kind::kNfc;
  PatternText pattern;  // kReplace
  std::string content;  // kPrepend: what is put in front of text; kReplace: what is put in
  bool left = true;     // kStrip
  bool right = true;
};

// What becomes of the matches of a pattern and of the text between them.
enum class SplitBehavior : uint8_t {
  kRemoved,   // Matches are left out.
  kIsolated,  // Each match is a piece.
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,  // Matches that touch are one piece.
};

enum class PrependScheme : uint8_t { kAlways, kFirst, kNever };

struct PreTokenizerStep {
  enum class Kind : uint8_t {
    kByteLevel,
    kSplit,
    kDigits,
    kMetaspace,
    kWhitespace,
    kWhitespaceSplit,
    kPunctuation
  };
  Kind kind = Kind::kByteLevel;
  bool add_prefix_space = false;  // kByteLevel
  bool use_regex = true;
  PatternText pattern;                                // kSplit
  bool invert = false;                                // kSplit: the matches are between
  SplitBehavior behavior = SplitBehavior::kIsolated;  // kSplit, kPunctuation
  bool individual_digits = false;                     // kDigits
  std::string replacement;                            // kMetaspace: one character
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;
};

struct DecoderStep {
  enum class Kind : uint8_t { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace };
  Kind kind = Kind::kByteLevel;
  PatternText pattern;  // kReplace
  std::string content;  // kReplace: what is put in; kStrip: the character; kMetaspace: replacement
  int32_t start = 0;    // kStrip: how many at most
  bool prepended = false;  // kMetaspace: the first token has lost its spaces
};

}  // namespace spillway
