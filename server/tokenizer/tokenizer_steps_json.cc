#include "server/tokenizer/tokenizer_steps_json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "kernels/base/json_reader.h"
#include "server/tokenizer/character_classes.h"
#include "server/tokenizer/text_pattern.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr size_t kContentBytesMax = 4096;

std::string shown(const json& value) {
  constexpr size_t kShown = 80;
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

// Calls `read` with each step of `entry` and its type, and takes "Sequence" apart. `list`: the
// field that holds a sequence's steps.
template <class Read>
Status each_step(const json& entry, const char* list, Read read) {
  if (!entry.is_object()) return invalid_argument(shown(entry) + " is not an object with a type");
  JsonReader reader(entry, "step");
  const std::string type = reader.string("type", 64);
  if (reader.failed()) return reader.status();
  if (type != "Sequence") return read(entry, type).at(type);
  reader.only({"type", list});
  const json& steps = reader.array(list, kStepsMax);
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  for (const json& step : steps) SPILLWAY_RETURN_IF_ERROR(each_step(step, list, read));
  return {};
}

template <class Step>
Status add(Step step, std::vector<Step>* steps) {
  if (steps->size() >= kStepsMax) {
    return invalid_argument("there are more than " + std::to_string(kStepsMax) + " steps");
  }
  steps->push_back(std::move(step));
  return {};
}

Status not_supported() {
  return invalid_argument("this kind of step is not supported");
}

bool is_one_character(const std::string& text) {
  if (text.empty()) return false;
  size_t next = 0;
  next_character(text, &next);
  return next == text.size();
}

// "pattern": {"String": "..."} or {"Regex": "..."}
PatternText read_pattern(JsonReader& reader) {
  PatternText pattern;
  const json& entry = reader.object("pattern");
  if (reader.failed()) return pattern;
  JsonReader inner(entry, "pattern");
  inner.only({"String", "Regex"});
  pattern.literal = inner.has("String");
  pattern.text = inner.string(pattern.literal ? "String" : "Regex", kPatternBytesMax);
  if (inner.failed() || entry.size() != 1 || pattern.text.empty()) {
    reader.fail("pattern is " + shown(entry) + ", not a String or a Regex");
  }
  return pattern;
}

SplitBehavior read_behavior(JsonReader& reader) {
  const std::string name = reader.string_or("behavior", 64, "Isolated");
  for (const auto& [known, behavior] : {std::pair{"Removed", SplitBehavior::kRemoved},
                                        {"Isolated", SplitBehavior::kIsolated},
                                        {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                        {"MergedWithNext", SplitBehavior::kMergedWithNext},
                                        {"Contiguous", SplitBehavior::kContiguous}}) {
    if (name == known) return behavior;
  }
  reader.fail("behavior is " + shown(name) + ", which is not supported");
  return SplitBehavior::kIsolated;
}

// Files older than prepend_scheme say add_prefix_space.
PrependScheme read_prepend_scheme(JsonReader& reader) {
  const bool add_prefix_space = reader.boolean_or("add_prefix_space", true);
  const std::string name =
      reader.string_or("prepend_scheme", 64, add_prefix_space ? "always" : "never");
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name != "never") reader.fail("prepend_scheme is " + shown(name) + ", which is not supported");
  return PrependScheme::kNever;
}

std::string read_replacement(JsonReader& reader) {
  std::string replacement = reader.string_or("replacement", 4, "\xE2\x96\x81");
  if (!is_one_character(replacement)) reader.fail("replacement is not one character");
  return replacement;
}

Status add_normalizer_step(const json& entry, const std::string& type,
                           std::vector<NormalizerStep>* steps) {
  using Kind = NormalizerStep::Kind;
  JsonReader reader(entry, "field");
  reader.find("type");
  NormalizerStep step;
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = type == "NFC"    ? Kind::kNfc
                : type == "NFD"  ? Kind::kNfd
                : type == "NFKC" ? Kind::kNfkc
                                 : Kind::kNfkd;
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    step.content = reader.string("prepend", kContentBytesMax);
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    step.pattern = read_pattern(reader);
    step.content = reader.string("content", kContentBytesMax);
  } else if (type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.left = reader.boolean_or("strip_left", true);
    step.right = reader.boolean_or("strip_right", true);
  } else {
    return not_supported();
  }
  reader.refuse_unknown();
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return add(std::move(step), steps);
}

void read_byte_level(JsonReader& reader, PreTokenizerStep* step) {
  step->kind = PreTokenizerStep::Kind::kByteLevel;
  step->add_prefix_space = reader.boolean_or("add_prefix_space", false);
  step->use_regex = reader.boolean_or("use_regex", true);
  reader.find("trim_offsets");  // Of offsets, which nobody asks for
}

void read_split(JsonReader& reader, PreTokenizerStep* step) {
  step->kind = PreTokenizerStep::Kind::kSplit;
  step->pattern = read_pattern(reader);
  step->behavior = read_behavior(reader);
  step->invert = reader.boolean_or("invert", false);
}

void read_metaspace(JsonReader& reader, PreTokenizerStep* step) {
  step->kind = PreTokenizerStep::Kind::kMetaspace;
  step->replacement = read_replacement(reader);
  step->prepend = read_prepend_scheme(reader);
  step->split = reader.boolean_or("split", true);
  reader.find("str_rep");  // The replacement again, in older files
}

Status add_pre_tokenizer_step(const json& entry, const std::string& type,
                              std::vector<PreTokenizerStep>* steps) {
  using Kind = PreTokenizerStep::Kind;
  JsonReader reader(entry, "field");
  reader.find("type");
  PreTokenizerStep step;
  if (type == "ByteLevel") {
    read_byte_level(reader, &step);
  } else if (type == "Split") {
    read_split(reader, &step);
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    step.individual_digits = reader.boolean_or("individual_digits", false);
  } else if (type == "Metaspace") {
    read_metaspace(reader, &step);
  } else if (type == "Whitespace" || type == "WhitespaceSplit") {
    step.kind = type == "Whitespace" ? Kind::kWhitespace : Kind::kWhitespaceSplit;
  } else if (type == "Punctuation") {
    step.kind = Kind::kPunctuation;
    step.behavior = read_behavior(reader);
  } else {
    return not_supported();
  }
  reader.refuse_unknown();
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return add(std::move(step), steps);
}

void read_strip(JsonReader& reader, DecoderStep* step) {
  step->kind = DecoderStep::Kind::kStrip;
  step->content = reader.string("content", 4);
  step->start = static_cast<int32_t>(reader.integer("start", 0, 1024));
  if (reader.integer("stop", 0, INT32_MAX) != 0) {
    reader.fail("stop is not 0: text cannot be streamed when its end may be taken away");
  }
  if (!reader.failed() && (step->content.size() != 1)) {
    reader.fail("content is " + shown(step->content) + ", not one ASCII character");
  }
}

Status add_decoder_step(const json& entry, const std::string& type,
                        std::vector<DecoderStep>* steps) {
  using Kind = DecoderStep::Kind;
  JsonReader reader(entry, "field");
  reader.find("type");
  DecoderStep step;
  if (type == "ByteLevel") {
    PreTokenizerStep unused;  // The fields are those of the pre-tokenizer and mean nothing here.
    read_byte_level(reader, &unused);
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    step.pattern = read_pattern(reader);
    step.content = reader.string("content", kContentBytesMax);
  } else if (type == "ByteFallback" || type == "Fuse") {
    step.kind = type == "Fuse" ? Kind::kFuse : Kind::kByteFallback;
  } else if (type == "Strip") {
    read_strip(reader, &step);
  } else if (type == "Metaspace") {
    PreTokenizerStep metaspace;
    read_metaspace(reader, &metaspace);
    step.kind = Kind::kMetaspace;
    step.content = metaspace.replacement;
    step.prepended = metaspace.prepend != PrependScheme::kNever;
  } else {
    return not_supported();
  }
  reader.refuse_unknown();
  SPILLWAY_RETURN_IF_ERROR(reader.status());
  return add(std::move(step), steps);
}

}  // namespace

Result<std::vector<NormalizerStep>> read_normalizer(const json& entry) {
  std::vector<NormalizerStep> steps;
  if (entry.is_null()) return steps;
  SPILLWAY_RETURN_IF_ERROR(
      each_step(entry, "normalizers", [&](const json& step, const std::string& type) {
        return add_normalizer_step(step, type, &steps);
      }));
  return steps;
}

Result<std::vector<PreTokenizerStep>> read_pre_tokenizer(const json& entry) {
  std::vector<PreTokenizerStep> steps;
  if (entry.is_null()) return steps;
  SPILLWAY_RETURN_IF_ERROR(
      each_step(entry, "pretokenizers", [&](const json& step, const std::string& type) {
        return add_pre_tokenizer_step(step, type, &steps);
      }));
  return steps;
}

Result<std::vector<DecoderStep>> read_decoder(const json& entry) {
  std::vector<DecoderStep> steps;
  SPILLWAY_RETURN_IF_ERROR(
      each_step(entry, "decoders", [&](const json& step, const std::string& type) {
        return add_decoder_step(step, type, &steps);
      }));
  return steps;
}

}  // namespace spillway
