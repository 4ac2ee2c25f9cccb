#include "server/cli/cache/cache.h"

#include <chrono>
#include <cstdio>
#include <memory>

#include "kernels/base/quote.h"
#include "kernels/base/units.h"
#include "offload/cache_contents.h"
#include "offload/io/spill_file.h"
#include "offload/model_source.h"
#include "server/cli/cache/cache_report.h"

namespace spillway {

namespace {

bool prunes(const CacheFlags& flags) {
  const bool limits = flags.bytes_max || flags.unused_seconds_max || flags.dry_run;
  return flags.action == "prune" || (flags.action.empty() && limits);
}

int64_t now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// What prune was asked for and could not do.
Status shortcoming(const PruneResult& result, const CacheLimits& limits) {
  if (!result.failures.empty()) {
    const std::string more = result.failures.size() == 1
                                 ? ""
                                 : " (and " + std::to_string(result.failures.size() - 1) +
                                       " more that could not be removed)";
    return {result.failures.front().code(), std::string(result.failures.front().message()) + more};
  }
  if (!limits.bytes_max || result.bytes_left <= *limits.bytes_max) return {};
  return {Code::kCapacity, format_bytes(result.bytes_left) + " are in use by running processes, " +
                               format_bytes(result.bytes_left - *limits.bytes_max) +
                               " more than --max-size; run it again when they have ended"};
}

}  // namespace

Status validate(const CacheFlags& flags) {
  if (!flags.action.empty() && flags.action != "list" && flags.action != "prune") {
    return invalid_argument(in_quotes(flags.action) + " is neither list nor prune");
  }
  if (flags.action == "list" && (flags.bytes_max || flags.unused_seconds_max || flags.dry_run)) {
    return invalid_argument(
        "list removes nothing; --max-size, --older-than and --dry-run go with prune");
  }
  return {};
}

Status run_cache(const CacheFlags& flags, const std::string& directory) {
  CacheReport report;
  report.now_ns = now_ns();
  report.dry_run = flags.dry_run;
  const bool prune = prunes(flags);
  SPILLWAY_ASSIGN_OR_RETURN(report.contents, list_cache(directory, !prune));
  if (const Result<uint64_t> free = free_disk_bytes(directory); free.ok()) {
    report.free_bytes = free.value();
  }
  Status status;
  if (prune) {
    const CacheLimits limits{flags.bytes_max, flags.unused_seconds_max};
    report.pruned = prune_cache(report.contents, limits, report.now_ns, flags.dry_run);
    status = shortcoming(*report.pruned, limits);
  }
  const std::string text = flags.json ? json_of(report) : text_of(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return status;
}

Command cache_command() {
  auto flags = std::make_shared<CacheFlags>();
  Command command;
  command.name = "cache";
  command.summary = "list the packed models in the cache folder, and remove unused ones";
  command.description =
      "Model directories and GGUF files are packed into the cache folder on their first use "
      "($SPILLWAY_CACHE, else $XDG_CACHE_HOME/spillway, else ~/.cache/spillway). `cache list` says "
      "what lies there; `cache prune` removes what interrupted conversions left, and packed models "
      "by --max-size and --older-than. What is removed is packed again when it is needed. A file "
      "that a running spillway uses, or that the cache did not make, is never removed.";
  command.arguments = {{"ACTION",
                        "list (the default) or prune (the default with a limit)",
                        &flags->action,
                        true,
                        {"list", "prune"}}};
  Settings& settings = command.settings;
  settings.group("Cache");
  settings.add_size("max-size", &flags->bytes_max,
                    "remove the least recently used packed models until the others take no more");
  Setting older;
  older.name = "older-than";
  older.meaning = "AGE";
  older.help = "remove packed models that were not used for so long: 30d (or 30), 12h, 2w";
  older.assign = [flags](const std::string& text) -> Status {
    SPILLWAY_ASSIGN_OR_RETURN(flags->unused_seconds_max, parse_age(text));
    return {};
  };
  settings.add(std::move(older));
  settings.add_switch("dry-run", &flags->dry_run, "say what would be removed, and remove nothing");
  settings.add_switch("json", &flags->json, "print one JSON object");
  command.check = [flags] { return validate(*flags); };
  command.run = [flags] {
    const Result<std::string> directory = default_cache_directory();
    return report("cache",
                  directory.ok() ? run_cache(*flags, directory.value()) : directory.status());
  };
  return command;
}

}  // namespace spillway
