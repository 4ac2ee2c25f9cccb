// The JSON of /v1/completions answers. Pure functions, any thread; never on the engine thread (an
// echo with logprobs is megabytes).
#pragma once

#include <cstdint>
#include <string>

#include "server/api/completion.h"
#include "server/api/completion_run.h"

namespace spillway {

// The common head of an answer's chunks.
struct CompletionHead {
  std::string id;       // "cmpl-..."
  int64_t created = 0;  // Unix seconds
};

// A fresh head: the call's request_id or 24 random hex digits, and the wall clock.
CompletionHead make_completion_head(const CompletionCall& call);

// The whole answer of a call that does not stream. REQUIRES: !result.error.
std::string completion_body(const CompletionHead& head, const CompletionCall& call,
                            const ApiContext& context, const CompletionResult& result);

// The usage in an answer, as JSON.
std::string completion_usage(const CompletionUsage& usage);

// One streamed chunk; one line.
std::string completion_chunk(const CompletionHead& head, const CompletionCall& call,
                             const ApiContext& context, const ChoiceText& piece);

// The last chunk of include_usage: `choices` empty.
std::string completion_usage_chunk(const CompletionHead& head, const CompletionCall& call,
                                   const ApiContext& context, const CompletionUsage& usage);

// Keeps a silent stream alive: `choices` empty, `usage` null.
std::string completion_ping_chunk(const CompletionHead& head, const CompletionCall& call,
                                  const ApiContext& context);

}  // namespace spillway
