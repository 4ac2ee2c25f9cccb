// How a byte-level tokenizer of a GGUF file cuts text: the file has a name for it
// (tokenizer.ggml.pre) where the original tokenizer.json has a regular expression. Constant data,
// any thread.
#pragma once

#include <string_view>

namespace spillway {

struct GgufPretokenizer {
  std::string_view pattern;    // Split at the matches of this; empty: GPT-2's own.
  bool digits = false;         // Every digit is a piece of its own.
  bool nfc = false;            // Text is normalised to NFC first.
  bool ignore_merges = false;  // A piece that is a token is that token, whatever the merges.
  bool add_bos = false;        // Text begins with bos unless the file says otherwise.
};

// The one of that name; null: unknown. Files from before there were names (and "default") are
// GPT-2's: so transformers takes them, too.
const GgufPretokenizer* gguf_pretokenizer(std::string_view name);

}  // namespace spillway
