#include "server/cli/flags/foreign_names.h"

#include <algorithm>
#include <span>

namespace spillway {

namespace {

struct ForeignName {
  std::string_view name;
  std::string_view hint;
};

// Names that several programs share have what is right for most. tests/server/cli/flags/
// foreign_names_test.cc holds every flag of ours that a hint names against the real ones.
constexpr std::string_view kModel = "the model is the first word: spillway COMMAND MODEL";
constexpr std::string_view kOnDisk =
    "nothing is downloaded; give a model directory or a .gguf file that is on the disk";
constexpr std::string_view kLength =
    "use --max-model-len N (positions of the longest sequence); memory is taken as each "
    "sequence grows";
constexpr std::string_view kWeights =
    "use --weights D,H,K (per cent on device, host and disk), or leave it to the plan";
constexpr std::string_view kKvPlace =
    "use --kv D,H,K (per cent on device, host and disk), or leave it to the plan";
constexpr std::string_view kHostKv =
    "use --host-memory SIZE, and --kv D,H,K or leave it to the plan";
constexpr std::string_view kSequences = "use --block N (sequences at once)";
constexpr std::string_view kMicroBatch = "use --micro-batch N (sequences)";
constexpr std::string_view kPrefixCache =
    "use --prefix-cache SIZE|off (serve and batch share beginnings unless told off)";
constexpr std::string_view kKvFormat = "use --kv-format f32|bf16|f16|q4|q8";
constexpr std::string_view kFormat =
    "use --format f32|bf16|f16|q8|q8_1|q4_1|q4 (bfloat16: --format bf16)";
constexpr std::string_view kQuantize =
    "use --format q8|q8_1|q4_1|q4, or give a GGUF file that is quantised already";
constexpr std::string_view kNewTokens =
    "use --max-tokens N (generate) or max_tokens in the request";
constexpr std::string_view kPerRequest = "it is a field of each request here; see docs/HTTP_API.md";
constexpr std::string_view kPenalty =
    "use --repetition-penalty X (generate) or repetition_penalty in the request";
constexpr std::string_view kTls = "let a reverse proxy in front do TLS";
constexpr std::string_view kGpu =
    "use --gpus 0,1,... (GPUs that share every layer), or --ranks N on a CPU";
constexpr std::string_view kPipeline =
    "use --stages N (processes that have some layers each, started by mpirun or srun)";
constexpr std::string_view kCopies =
    "start one for each copy of the model: behind a proxy (serve), or as `spillway work`";
constexpr std::string_view kNotNeeded = "leave it out: nothing like it is needed here";
constexpr std::string_view kTemplate =
    "the template is the model's own (chat_template.jinja beside its config.json)";
constexpr std::string_view kNone = "there is no such thing here yet; leave it out";
constexpr std::string_view kNoGrammar = "grammars and JSON schemas are not here yet; leave it out";
constexpr std::string_view kNoDraft =
    "drafts are of the sequence's own n-grams, not of another model: use --draft ngram";
constexpr std::string_view kDraftTokens = "use --draft-tokens N with --draft ngram";
constexpr std::string_view kNoLora = "adapters are not here yet; merge them into the weights";
constexpr std::string_view kPositions = "it is read from the model's config.json or GGUF metadata";
constexpr std::string_view kLog = "the log is on stderr; redirect it (2> FILE)";
constexpr std::string_view kLogLevel = "use --log-level debug|info|warning|error (serve)";
constexpr std::string_view kNoRequestLines =
    "use --log-level warning (serve), which writes no line for each request";
constexpr std::string_view kThreads = "use --threads N";
constexpr std::string_view kPrompt = "use --prompt TEXT (generate)";
constexpr std::string_view kSystem = "use --system TEXT with --chat (generate)";
constexpr std::string_view kInput = "use --input FILE (batch)";
constexpr std::string_view kOutput = "use --output FILE (batch)";
constexpr std::string_view kServedName = "use --served-model-name NAME";
constexpr std::string_view kShift =
    "the nearest is --kv-rule window|h2o, which keeps a part of the cache";

constexpr ForeignName kFlags[] = {
    // The model and its formats
    {"--model", kModel},
    {"-m", kModel},
    {"--model-path", kModel},
    {"--tokenizer", "the tokenizer is read from the model's own directory or GGUF file"},
    {"--tokenizer-mode", kNotNeeded},
    {"--revision", kOnDisk},
    {"--download-dir", kOnDisk},
    {"--hf-repo", kOnDisk},
    {"-hf", kOnDisk},
    {"--hf-file", kOnDisk},
    {"--hf-token", kOnDisk},
    {"--model-url", kOnDisk},
    {"-mu", kOnDisk},
    {"--trust-remote-code", kNotNeeded},
    {"--load-format", "use --dummy-weights for random weights; else the format is found out"},
    {"--hf-overrides", kPositions},
    {"--rope-scaling", kPositions},
    {"--rope-theta", kPositions},
    {"--rope-freq-base", kPositions},
    {"--rope-freq-scale", kPositions},
    {"--dtype", kFormat},
    {"--quantization", kQuantize},
    {"-q", kQuantize},
    {"--kv-cache-dtype", kKvFormat},
    {"--cache-type-k", kKvFormat},
    {"--cache-type-v", kKvFormat},
    {"-ctk", kKvFormat},
    {"-ctv", kKvFormat},
    {"--lora", kNoLora},
    {"--enable-lora", kNoLora},
    {"--lora-modules", kNoLora},
    {"--mmproj", "pictures and sound are not here; leave it out"},
    // Sizes and memory
    {"--ctx-size", kLength},
    {"-c", kLength},
    {"--context-length", kLength},
    {"--max-num-seqs", kSequences},
    {"--max-running-requests", kSequences},
    {"--parallel", kSequences},
    {"-np", kSequences},
    {"--batch-size", kSequences},
    {"-b", kSequences},
    {"--ubatch-size", kMicroBatch},
    {"-ub", kMicroBatch},
    {"--gpu-batch-size", kMicroBatch},
    {"--num-gpu-batches", kSequences},
    {"--max-num-batched-tokens", "use --prefill-tokens N (prompt tokens of one pass)"},
    {"--chunked-prefill-size", "use --prefill-tokens N (prompt tokens of one pass)"},
    {"--long-prefill-token-threshold", "use --prefill-tokens N (prompt tokens of one pass)"},
    {"--enable-chunked-prefill", kNotNeeded},
    {"--enable-prefix-caching", kPrefixCache},
    {"--no-enable-prefix-caching", kPrefixCache},
    {"--cache-reuse", kPrefixCache},
    {"--cache-prompt", kPrefixCache},
    {"--cache-ram", kPrefixCache},
    {"--gpu-memory-utilization", "use --device-memory SIZE, such as 16GiB"},
    {"--mem-fraction-static", "use --device-memory SIZE, such as 16GiB"},
    {"--num-gpu-blocks-override", "use --device-memory SIZE, such as 16GiB"},
    {"--block-size", "KV blocks have 16 positions; leave it out"},
    {"--swap-space", "use --host-memory SIZE and --disk-memory SIZE"},
    {"--kv-offloading-size", kHostKv},
    {"--cpu-offload-gb", kWeights},
    {"--n-gpu-layers", kWeights},
    {"--gpu-layers", kWeights},
    {"-ngl", kWeights},
    {"--override-tensor", kWeights},
    {"-ot", kWeights},
    {"--percent", "use --weights, --kv and --activations D,H,K (device, host, disk)"},
    {"--compress-weight", "use --format q4"},
    {"--compress-cache", "use --kv-format q4"},
    {"--offload-dir", "use --disk-dir DIR"},
    {"--no-kv-offload", kKvPlace},
    {"-nkvo", kKvPlace},
    {"--tensor-parallel-size", kGpu},
    {"-tp", kGpu},
    {"--tp-size", kGpu},
    {"--pipeline-parallel-size", kPipeline},
    {"-pp", kPipeline},
    {"--data-parallel-size", kCopies},
    {"-dp", kCopies},
    {"--split-mode", kGpu},
    {"-sm", kGpu},
    {"--tensor-split", kGpu},
    {"-ts", kGpu},
    {"--main-gpu", "use --gpu N"},
    {"-mg", "use --gpu N"},
    {"-dev", "use --device auto|cpu|cuda"},
    {"--mlock", "use --host-memory SIZE; what is in the plan stays in memory"},
    {"--no-mmap", kNotNeeded},
    {"--numa", kNotNeeded},
    {"--flash-attn", kNotNeeded},
    {"-fa", kNotNeeded},
    {"--enforce-eager", kNotNeeded},
    {"--compilation-config", kNotNeeded},
    {"-O", kNotNeeded},
    {"--no-warmup", kNotNeeded},
    {"--context-shift", kShift},
    {"--keep", kShift},
    {"--speculative-config", kNoDraft},
    {"--model-draft", kNoDraft},
    {"-md", kNoDraft},
    {"--speculative-algorithm", kNoDraft},
    {"--num-speculative-tokens", kDraftTokens},
    {"--speculative-num-draft-tokens", kDraftTokens},
    {"--draft-max", kDraftTokens},
    {"--draft-n", kDraftTokens},
    // Serving
    {"--uds", "use --socket PATH"},
    {"--max-num-queued-reqs", "use --queue-max N (sequences)"},
    {"--scheduling-policy", "clients take turns; --priority on|off says who may go before others"},
    {"--alias", kServedName},
    {"-a", kServedName},
    {"--timeout", "use --request-seconds-max N"},
    {"-to", "use --request-seconds-max N"},
    {"--allowed-hosts", "use --allowed-host NAME"},
    {"--cors-allow-origins", "use --allowed-origins ORIGIN"},
    {"--root-path", "let the reverse proxy take the path's beginning off"},
    {"--api-prefix", "let the reverse proxy take the path's beginning off"},
    {"--ssl-keyfile", kTls},
    {"--ssl-certfile", kTls},
    {"--ssl-key-file", kTls},
    {"--ssl-cert-file", kTls},
    {"--threads-http", kNotNeeded},
    {"--cont-batching", kNotNeeded},
    {"-cb", kNotNeeded},
    {"--metrics", kNotNeeded},
    {"--slots", kNotNeeded},
    {"--no-webui", kNotNeeded},
    {"--disable-log-requests", kNoRequestLines},
    {"--disable-uvicorn-access-log", kNoRequestLines},
    {"--enable-log-requests", kNotNeeded},
    {"--disable-log-stats", kNotNeeded},
    {"--uvicorn-log-level", kLogLevel},
    {"--verbosity", kLogLevel},
    {"-lv", kLogLevel},
    {"--verbose", kLogLevel},
    {"-v", kLogLevel},
    {"--log-file", kLog},
    {"--chat-template", kTemplate},
    {"--chat-template-file", kTemplate},
    {"--jinja", kNotNeeded},
    {"--enable-auto-tool-choice", kNone},
    {"--tool-call-parser", kNone},
    {"--reasoning-parser", kNone},
    {"--embedding", kNone},
    {"--embeddings", kNone},
    {"--reranking", kNone},
    {"--grammar", kNoGrammar},
    {"--grammar-file", kNoGrammar},
    {"--json-schema", kNoGrammar},
    {"-j", kNoGrammar},
    {"--generation-config", kPerRequest},
    {"--override-generation-config", kPerRequest},
    {"--max-logprobs", "up to 20 are given; leave it out"},
    // Sampling, prompts and files
    {"-t", kThreads},
    {"-tb", kThreads},
    {"--threads-batch", kThreads},
    {"-s", "use --seed N"},
    {"-p", kPrompt},
    {"-f", "use --prompt-file FILE (generate)"},
    {"--file", "use --prompt-file FILE (generate)"},
    {"-sys", kSystem},
    {"--system-prompt", kSystem},
    {"-cnv", "use --chat (generate)"},
    {"--conversation", "use --chat (generate)"},
    {"-n", kNewTokens},
    {"--n-predict", kNewTokens},
    {"--predict", kNewTokens},
    {"--gen-len", kNewTokens},
    {"--temp", "use --temperature X"},
    {"--repeat-penalty", kPenalty},
    {"--repeat-last-n", kPenalty},
    {"--logit-bias", kPerRequest},
    {"--mirostat", kNone},
    {"-i", kInput},
    {"--input-file", kInput},
    {"-o", kOutput},
    {"--output-file", kOutput},
    {"--base-url", "use --server URL (batch)"},
    {"--url", "use --server URL (batch)"},
};

constexpr std::string_view kGenerate =
    "use spillway generate MODEL --prompt TEXT (--chat: a question, which the model answers)";
constexpr std::string_view kCache =
    "models are files of yours; spillway cache lists what was packed of them";

constexpr ForeignName kCommands[] = {
    {"chat", kGenerate},
    {"complete", kGenerate},
    {"run", kGenerate},
    {"cli", kGenerate},
    {"simple", kGenerate},
    {"server", "use spillway serve MODEL"},
    {"start", "use spillway serve MODEL"},
    {"api_server", "use spillway serve MODEL"},
    {"pull", kOnDisk},
    {"download", kOnDisk},
    {"create", kOnDisk},
    {"list", kCache},
    {"ls", kCache},
    {"ps", kCache},
    {"rm", kCache},
    {"show", "use spillway inspect MODEL"},
    {"info", "use spillway inspect MODEL"},
    {"quantize", "use spillway convert MODEL_DIR OUTPUT.spill --format q8|q8_1|q4_1|q4"},
    {"perplexity", "use spillway eval MODEL --text FILE"},
    {"benchmark", "use spillway bench MODEL"},
    {"throughput", "use spillway bench MODEL"},
    {"completion", "use spillway completions bash|zsh|fish"},
};

std::string hint_in(std::span<const ForeignName> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const ForeignName& known) { return known.name == name; });
  return found == table.end() ? "" : std::string(found->hint);
}

}  // namespace

std::string foreign_flag_hint(std::string_view flag) {
  return hint_in(kFlags, flag);
}

std::string foreign_command_hint(std::string_view command) {
  return hint_in(kCommands, command);
}

}  // namespace spillway
