#include "server/cli/flags/hints.h"

#include <algorithm>
#include <iterator>

namespace spillway {

namespace {

struct ForeignFlag {
  std::string_view flag;
  std::string_view hint;
};

constexpr std::string_view kModel = "the model is the first word: spillway COMMAND MODEL";
constexpr std::string_view kLength =
    "use --max-model-len N (positions of the longest sequence); memory is taken as each "
    "sequence grows";
constexpr std::string_view kWeights =
    "use --weights D,H,K (per cent on device, host and disk), or leave it to the plan";
constexpr std::string_view kSequences = "use --block N (sequences at once)";
constexpr std::string_view kPrefixCache =
    "use --prefix-cache SIZE|off (serve and batch share beginnings unless told off)";
constexpr std::string_view kKvFormat = "use --kv-format f32|bf16|f16|q4";
constexpr std::string_view kNewTokens =
    "use --max-tokens N (generate) or max_tokens in the request";
constexpr std::string_view kTls = "let a reverse proxy in front do TLS";
constexpr std::string_view kNotNeeded = "leave it out: nothing like it is needed here";

constexpr ForeignFlag kForeign[] = {
    {"--model", kModel},
    {"-m", kModel},
    {"--ctx-size", kLength},
    {"-c", kLength},
    {"--dtype", "use --format f32|bf16|f16|q8|q4 (bfloat16: --format bf16)"},
    {"--quantization", "use --format q4"},
    {"-q", "use --format q4"},
    {"--kv-cache-dtype", kKvFormat},
    {"--cache-type-k", kKvFormat},
    {"--cache-type-v", kKvFormat},
    {"-ctk", kKvFormat},
    {"-ctv", kKvFormat},
    {"--max-num-seqs", kSequences},
    {"--parallel", kSequences},
    {"-np", kSequences},
    {"--batch-size", kSequences},
    {"-b", kSequences},
    {"--ubatch-size", "use --micro-batch N (sequences)"},
    {"-ub", "use --micro-batch N (sequences)"},
    {"--max-num-batched-tokens", "use --prefill-tokens N (prompt tokens of one pass)"},
    {"--enable-prefix-caching", kPrefixCache},
    {"--no-enable-prefix-caching", kPrefixCache},
    {"--cache-reuse", kPrefixCache},
    {"--gpu-memory-utilization", "use --device-memory SIZE, such as 16GiB"},
    {"--swap-space", "use --host-memory SIZE and --disk-memory SIZE"},
    {"--cpu-offload-gb", kWeights},
    {"--n-gpu-layers", kWeights},
    {"--gpu-layers", kWeights},
    {"-ngl", kWeights},
    {"--tensor-parallel-size", "one device computes; choose it with --gpu N"},
    {"-tp", "one device computes; choose it with --gpu N"},
    {"--pipeline-parallel-size", "one device computes; choose it with --gpu N"},
    {"--max-num-queued-reqs", "use --queue-max N (sequences)"},
    {"--scheduling-policy", "clients take turns; --priority on|off says who may go before others"},
    {"--load-format", "use --dummy-weights for random weights; else the format is found out"},
    {"--trust-remote-code", kNotNeeded},
    {"--enforce-eager", kNotNeeded},
    {"--enable-chunked-prefill", kNotNeeded},
    {"--disable-log-requests", kNotNeeded},
    {"--cont-batching", kNotNeeded},
    {"-cb", kNotNeeded},
    {"--metrics", kNotNeeded},
    {"--mlock", "use --host-memory SIZE; what is in the plan stays in memory"},
    {"--no-mmap", kNotNeeded},
    {"--flash-attn", kNotNeeded},
    {"-fa", kNotNeeded},
    {"-t", "use --threads N"},
    {"-s", "use --seed N"},
    {"-p", "use --prompt TEXT (generate)"},
    {"-f", "use --prompt-file FILE (generate)"},
    {"-n", kNewTokens},
    {"--n-predict", kNewTokens},
    {"--predict", kNewTokens},
    {"--temp", "use --temperature X"},
    {"-i", "use --input FILE (batch)"},
    {"-o", "use --output FILE (batch)"},
    {"-a", "use --served-model-name NAME"},
    {"--alias", "use --served-model-name NAME"},
    {"--timeout", "use --request-seconds-max N"},
    {"--ssl-keyfile", kTls},
    {"--ssl-certfile", kTls},
    {"--ssl-key-file", kTls},
    {"--ssl-cert-file", kTls},
};

// Levenshtein distance.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_edits = std::min<size_t>(3, word.size() / 2 + 1);  // Farther is another word.
  for (const std::string& candidate : candidates) {
    if (const size_t distance = edits(word.substr(0, 64), candidate); distance < best_edits) {
      best_edits = distance;
      best = candidate;
    }
  }
  return best;
}

std::string foreign_flag_hint(std::string_view flag) {
  const auto* found = std::find_if(std::begin(kForeign), std::end(kForeign),
                                   [&](const ForeignFlag& known) { return known.flag == flag; });
  return found == std::end(kForeign) ? "" : std::string(found->hint);
}

std::vector<std::string> misspelt_variables(std::span<const Command> commands,
                                            const char* const* environment) {
  std::vector<std::string> known = {"SPILLWAY_CONFIG", "SPILLWAY_CONFIGS", "SPILLWAY_CACHE"};
  for (const Command& command : commands) {
    for (const Setting& setting : command.settings.all()) {
      known.push_back(setting.environment_name());
    }
  }
  std::vector<std::string> sentences;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string name(entry.substr(0, entry.find('=')));
    if (!name.starts_with("SPILLWAY_")) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string meant = nearest(name, known);
    if (!meant.empty()) sentences.push_back(name + " sets nothing; did you mean " + meant + "?");
  }
  return sentences;
}

}  // namespace spillway
