#include "server/cli/generate/generate.h"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/units.h"
#include "server/api/answer_json.h"
#include "server/api/chat_parse.h"
#include "server/api/completion_run.h"
#include "server/cli/common/interrupt.h"
#include "server/cli/flags/engine_settings.h"

namespace spillway {

namespace {

constexpr size_t kPromptBytesMax = size_t{16} << 20;
constexpr auto kPoll = std::chrono::milliseconds(100);

Result<std::string> read_prompt(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return io_error("--prompt-file " + path, errno);
  std::string text(kPromptBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return io_error("--prompt-file " + path, errno);
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kPromptBytesMax) {
    return invalid_argument("--prompt-file " + path + ": longer than 16 MiB");
  }
  return text;
}

Result<std::vector<int32_t>> parse_tokens(const std::string& text) {
  std::vector<int32_t> tokens;
  const char* at = text.data();
  const char* end = at + text.size();
  for (;;) {
    int32_t token = 0;
    const auto [rest, error] = std::from_chars(at, end, token);
    if (error != std::errc() || (rest != end && *rest != ',')) {
      return invalid_argument("--prompt-tokens must be token ids such as 5,7,9");
    }
    tokens.push_back(token);
    if (rest == end) return tokens;
    at = rest + 1;
  }
}

// The engine thread's output, until the main thread has written it.
class Inbox {
 public:
  void add(ChoiceText piece) {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
    changed_.notify_one();
  }
  void end(CompletionResult result) {
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
    changed_.notify_one();
  }

  // Moves the new pieces into `pieces`; returns the result once it has ended.
  std::optional<CompletionResult> take(std::vector<ChoiceText>* pieces) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPoll, [&] { return !pieces_.empty() || result_; });
    pieces->swap(pieces_);
    return result_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ChoiceText> pieces_;
  std::optional<CompletionResult> result_;
};

Status status_of(const ApiError& error) {
  const Code code = error.status < 500 ? Code::kInvalidArgument : Code::kDeviceLost;
  return {code, with_cause(error).message};
}

Status write(std::FILE* out, const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0) {
    return {};
  }
  return io_error("write", errno);
}

std::string text_of(const ChoiceText& piece, bool as_ids) {
  if (!as_ids) return piece.text;
  std::string text;
  for (const int32_t token : piece.tokens) text += std::to_string(token) + " ";
  return text;
}

std::string drafts_text(const DraftCounts& drafts) {
  if (drafts.drafts == 0) return "";
  return "; " + std::to_string(drafts.accepted) + " of " + std::to_string(drafts.drafted) +
         " drafted tokens came true";
}

void print_statistics(const CompletionResult& result, const DraftCounts& drafts) {
  const double seconds = result.times.prompt + result.times.generation;
  const double rate = static_cast<double>(result.usage.generated_tokens) / std::max(seconds, 1e-9);
  std::fprintf(
      stderr, "%lld tokens in %s (%.1f tokens/s): prompt of %lld tokens in %s, then %s%s\n",
      static_cast<long long>(result.usage.generated_tokens), format_seconds(seconds).c_str(), rate,
      static_cast<long long>(result.usage.prompt_tokens),
      format_seconds(result.times.prompt).c_str(), format_seconds(result.times.generation).c_str(),
      drafts_text(drafts).c_str());
}

struct State {
  std::string model;
  GenerateFlags generate;
  EngineFlags engine;
};

void add_generate_flags(Settings& settings, GenerateFlags* flags) {
  settings.group("Prompt");
  settings.add_text("prompt", &flags->prompt, "TEXT", "the text to go on with");
  settings.add_text("prompt-file", &flags->prompt_file, "FILE", "a file that holds it");
  settings.add_text("prompt-tokens", &flags->prompt_tokens, "5,7,9",
                    "its token ids, for models without a tokenizer, too");
  settings.add_switch(
      "chat", &flags->chat,
      "the prompt is a user's message: the model answers it, through its chat template "
      "(without one of its own: \"User: ...\", \"Assistant: ...\")");
  settings.add_text("system", &flags->system, "TEXT",
                    "with --chat: the system message in front of it");
  settings.group("Output");
  settings.add_integer("max-tokens", &flags->max_tokens, 0, INT32_MAX, "tokens to generate");
  settings.add_integer("min-tokens", &flags->min_tokens, 0, INT32_MAX, "do not end before so many");
  settings.add_text("stop", &flags->stop, "TEXT", "end before this text");
  settings.add_switch("ignore-eos", &flags->ignore_eos, "go on behind the model's end token");
  settings.add_switch("echo", &flags->echo, "print the prompt, too");
  settings.add_switch("json", &flags->json,
                      "print the whole answer of /v1/completions, "
                      "or of /v1/chat/completions");
  settings.add_integer("logprobs", &flags->logprobs, 0, 20,
                       "with --json: log-probabilities of each token and of the N best");
  settings.group("Sampling");
  settings.add_real("temperature", &flags->temperature, 0, 2, "0: always the likeliest token");
  settings.add_real("top-p", &flags->top_p, 0, 1, "from the likeliest tokens of this sum only");
  settings.add_integer("top-k", &flags->top_k, -1, INT32_MAX, "from the K likeliest; 0: all");
  settings.add_real("min-p", &flags->min_p, 0, 1,
                    "from tokens at least this likely, relative to the likeliest");
  settings.add_real("repetition-penalty", &flags->repetition_penalty, 0.001, 100,
                    "above 1: less of what prompt and output have");
  settings.add_real("presence-penalty", &flags->presence_penalty, -2, 2,
                    "above 0: less of what the output has");
  settings.add_real("frequency-penalty", &flags->frequency_penalty, -2, 2,
                    "above 0: the less of a token the more often the output has it");
}

Status check(const State& state) {
  const GenerateFlags& flags = state.generate;
  const int prompts =
      !flags.prompt.empty() + !flags.prompt_file.empty() + !flags.prompt_tokens.empty();
  if (prompts == 0) {
    return invalid_argument("a prompt is missing: --prompt, --prompt-file or --prompt-tokens");
  }
  if (prompts > 1) {
    return invalid_argument("only one of --prompt, --prompt-file and --prompt-tokens can be given");
  }
  if (flags.logprobs && !flags.json) return invalid_argument("--logprobs needs --json");
  if (!flags.chat && !flags.system.empty()) return invalid_argument("--system needs --chat");
  if (flags.chat && !flags.prompt_tokens.empty()) {
    return invalid_argument("--chat takes text: --prompt or --prompt-file, not --prompt-tokens");
  }
  if (flags.chat && (flags.echo || flags.logprobs)) {
    return invalid_argument("--chat knows neither --echo nor --logprobs");
  }
  return validate(state.engine);
}

// Puts the prompt into a user's message.
void make_chat(const std::string& system, nlohmann::json* body) {
  nlohmann::json messages = nlohmann::json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", std::move((*body)["prompt"])}});
  body->erase("prompt");
  (*body)["messages"] = std::move(messages);
}

}  // namespace

Result<std::string> generate_body(const GenerateFlags& flags, uint64_t seed) {
  nlohmann::json body = {{"max_tokens", flags.max_tokens},
                         {"min_tokens", flags.min_tokens},
                         {"temperature", flags.temperature},
                         {"top_p", flags.top_p},
                         {"top_k", flags.top_k},
                         {"min_p", flags.min_p},
                         {"repetition_penalty", flags.repetition_penalty},
                         {"presence_penalty", flags.presence_penalty},
                         {"frequency_penalty", flags.frequency_penalty},
                         {"ignore_eos", flags.ignore_eos},
                         {"seed", seed & INT64_MAX},
                         {"return_token_ids", true},
                         {"stream", !flags.json}};
  if (flags.echo) body["echo"] = true;
  if (!flags.stop.empty()) body["stop"] = flags.stop;
  if (flags.logprobs) body["logprobs"] = *flags.logprobs;
  if (!flags.prompt_tokens.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(body["prompt"], parse_tokens(flags.prompt_tokens));
  } else if (!flags.prompt_file.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(body["prompt"], read_prompt(flags.prompt_file));
  } else {
    body["prompt"] = flags.prompt;
  }
  if (flags.chat) make_chat(flags.system, &body);
  // Bytes that are not UTF-8 count as U+FFFD, as they do in the tokenizer.
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status run_generate(const GenerateFlags& flags, uint64_t seed, const ServedModel& model,
                    std::FILE* out) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::string body, generate_body(flags, seed));
  auto parsed =
      flags.chat ? parse_chat(body, model.context) : parse_completion(body, model.context);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return status_of(*error);
  const InterruptGuard guard;
  const auto inbox = std::make_shared<Inbox>();
  CompletionEvents events;
  events.on_text = [inbox](ChoiceText piece) { inbox->add(std::move(piece)); };
  events.on_done = [inbox](CompletionResult result) { inbox->end(std::move(result)); };
  auto started =
      CompletionRun::start(*model.scheduler, model.context.tokenizer,
                           std::get<CompletionCall>(std::move(parsed)), std::move(events));
  if (const auto* error = std::get_if<ApiError>(&started)) return status_of(*error);
  const auto run = std::get<std::shared_ptr<CompletionRun>>(std::move(started));

  Status written;
  std::optional<CompletionResult> result;
  std::vector<ChoiceText> pieces;
  while (!result) {
    if (guard.interrupted() || !written.ok()) run->cancel();
    pieces.clear();
    result = inbox->take(&pieces);
    for (const ChoiceText& piece : pieces) {
      if (written.ok()) written = write(out, text_of(piece, model.context.tokenizer == nullptr));
    }
  }
  if (written.ok() && flags.json && !result->error) {
    written = write(
        out, answer_body(make_completion_head(run->call()), run->call(), model.context, *result));
  }
  if (written.ok()) written = write(out, "\n");
  SPILLWAY_RETURN_IF_ERROR(written);
  if (guard.interrupted()) return {Code::kCancelled, "interrupted"};
  if (result->error) return status_of(*result->error);
  print_statistics(*result, model.scheduler->stats().drafts);
  return {};
}

Command generate_command(const OpenModel& open) {
  auto state = std::make_shared<State>();
  Command command;
  command.name = "generate";
  command.summary = "complete one prompt";
  command.description =
      "Writes the completion of one prompt to standard output as it appears, and what it took to "
      "standard error. The same --seed gives the same text.";
  command.usage = "--prompt TEXT";
  command.arguments = {{"MODEL", kModelHelp, &state->model}};
  add_generate_flags(command.settings, &state->generate);
  add_engine_flags(command.settings, &state->engine);
  command.check = [state] { return check(*state); };
  command.run = [state, open] {
    const Result<ServedModel> model = as_input(open(state->model, state->engine, OpenFor{}));
    if (!model.ok()) return report("generate", model.status());
    return report("generate",
                  run_generate(state->generate, state->engine.seed, model.value(), stdout));
  };
  return command;
}

}  // namespace spillway
