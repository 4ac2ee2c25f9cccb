#include "server/cli/batch/batch_identity.h"

#include <xxhash.h>

#include <cstdio>
#include <optional>
#include <utility>

namespace spillway {
namespace {

std::string amount_text(const std::optional<KvAmount>& amount) {
  if (!amount) return "default";
  return to_string(*amount);
}

std::string format_text(const std::optional<Format>& format) {
  return format ? std::string(format_name(*format)) : "default";
}

}  // namespace

JournalHead result_settings(const EngineFlags& flags) {
  JournalHead head = {{"seed", std::to_string(flags.seed)},
                      {"format", format_text(flags.format)},
                      {"kv-format", format_text(flags.kv_format)},
                      {"kv-rule", flags.kv_rule},
                      {"kv-heavy", amount_text(flags.kv_heavy)},
                      {"kv-recent", amount_text(flags.kv_recent)},
                      {"kv-sink", std::to_string(flags.kv_sink.value_or(0))},
                      {"kv-ratio-of", flags.kv_ratio_of},
                      {"device", flags.device},
                      {"version", SPILLWAY_VERSION}};
  // Only where it is given, so that a run without it keeps its id and its journal.
  if (flags.kv_keep) head.emplace_back("kv-keep", to_string(*flags.kv_keep));
  if (flags.kv_snap != "mean") head.emplace_back("kv-snap", flags.kv_snap);
  return head;
}

JournalHead batch_head_of(const std::string& input_hash, const std::optional<std::string>& identity,
                          const JournalHead& settings) {
  JournalHead head = {{"input", input_hash}};
  if (identity) head.emplace_back("model", *identity);
  head.insert(head.end(), settings.begin(), settings.end());
  return head;
}

std::string run_id_of(const JournalHead& head) {
  std::string all;
  for (const auto& [name, value] : head) all += name + "=" + value + "\n";
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(all.data(), all.size())));
  return text;
}

}  // namespace spillway
