// The JSON of answers, in the form that the call asked for: text_completion or chat.completion,
// whole or in chunks. Pure functions but for the clock of a head, any thread; never on the engine
// thread (an echo with logprobs is megabytes).
#pragma once

#include <cstdint>
#include <string>

#include "server/api/completion.h"
#include "server/api/completion_run.h"

namespace spillway {

// The common head of an answer's chunks.
struct CompletionHead {
  std::string id;       // "cmpl-...", "chatcmpl-..."
  int64_t created = 0;  // Unix seconds
};

// A fresh head: the call's request_id or 24 random hex digits, and the wall clock.
CompletionHead make_completion_head(const CompletionCall& call);

// The whole answer of a call that does not stream. REQUIRES: !result.error.
std::string answer_body(const CompletionHead& head, const CompletionCall& call,
                        const ApiContext& context, const CompletionResult& result);

// One streamed chunk; one line.
std::string answer_chunk(const CompletionHead& head, const CompletionCall& call,
                         const ApiContext& context, const ChoiceText& piece);

// The last chunk of include_usage: `choices` empty.
std::string answer_usage_chunk(const CompletionHead& head, const CompletionCall& call,
                               const ApiContext& context, const CompletionUsage& usage);

// How far the prompts are (llama.cpp's prompt_progress): `choices` empty.
std::string answer_progress_chunk(const CompletionHead& head, const CompletionCall& call,
                                  const ApiContext& context, const PromptProgress& progress);

// Keeps a silent stream alive: `choices` empty, `usage` null.
std::string answer_ping_chunk(const CompletionHead& head, const CompletionCall& call,
                              const ApiContext& context);

}  // namespace spillway
