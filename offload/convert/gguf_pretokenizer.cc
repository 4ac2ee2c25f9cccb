#include "offload/convert/gguf_pretokenizer.h"

namespace spillway {

namespace {

// Patterns as the original tokenizer.json of each model has them.
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr GgufPretokenizer kOfGpt2 = {};
constexpr GgufPretokenizer kOfNeoX = {.pattern = {}, .nfc = true};
constexpr GgufPretokenizer kOfStarCoder = {.pattern = {}, .digits = true};
constexpr GgufPretokenizer kOfLlama3 = {.pattern = kLlama3, .ignore_merges = true, .add_bos = true};
constexpr GgufPretokenizer kOfGpt4 = {.pattern = kLlama3};
constexpr GgufPretokenizer kOfQwen2 = {.pattern = kQwen2, .nfc = true};
constexpr GgufPretokenizer kOfTekken = {.pattern = kTekken, .ignore_merges = true, .add_bos = true};
constexpr GgufPretokenizer kOfGpt4o = {.pattern = kGpt4o};

struct Entry {
  std::string_view name;
  const GgufPretokenizer* pretokenizer;
};

constexpr Entry kEntries[] = {
    {"", &kOfGpt2},
    {"default", &kOfGpt2},
    {"gpt-2", &kOfGpt2},
    {"gpt2", &kOfGpt2},
    {"phi-2", &kOfGpt2},
    {"olmo", &kOfNeoX},
    {"mpt", &kOfNeoX},
    {"gpt-neox", &kOfNeoX},
    {"gptneox", &kOfNeoX},
    {"smollm", &kOfStarCoder},
    {"starcoder", &kOfStarCoder},
    {"refact", &kOfStarCoder},
    {"llama-bpe", &kOfLlama3},
    {"llama3", &kOfLlama3},
    {"llama-v3", &kOfLlama3},
    {"smaug-bpe", &kOfGpt4},
    {"dbrx", &kOfGpt4},
    {"qwen2", &kOfQwen2},
    {"deepseek-r1-qwen", &kOfQwen2},
    {"tekken", &kOfTekken},
    {"gpt-4o", &kOfGpt4o},
};

}  // namespace

const GgufPretokenizer* gguf_pretokenizer(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.pretokenizer;
  }
  return nullptr;
}

}  // namespace spillway
