#include "server/cli/cache/cache_report.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "kernels/base/units.h"
#include "server/cli/common/console.h"

namespace spillway {

using nlohmann::json;

namespace {

double seconds_since(int64_t then_ns, int64_t now_ns) {
  return std::max(0.0, static_cast<double>(now_ns - then_ns) / 1e9);
}

std::string_view state_name(OriginState state) {
  switch (state) {
    case OriginState::kUnknown:
      return "unknown";
    case OriginState::kUnchanged:
      return "unchanged";
    case OriginState::kChanged:
      return "changed";
    case OriginState::kGone:
      return "gone";
  }
  return "?";
}

// "2026-05-04T17:03:21Z".
std::string utc(int64_t time_ns) {
  const auto seconds = static_cast<std::time_t>(time_ns / 1'000'000'000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

// A name or path from a file or a folder: must not control the terminal.
std::string shown(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return text;
}

// What a packed file was made from, and whether it is used again.
std::string origin_text(const CachedModel& model) {
  const std::string from = "made from " + (model.origin.empty() ? "what was not noted by an older "
                                                                  "version"
                                                                : shown(model.origin));
  switch (model.origin_state) {
    case OriginState::kChanged:
      return from + ", which has changed: it is packed anew when it is used";
    case OriginState::kGone:
      return from + ", which is not there any more";
    case OriginState::kUnchanged:
    case OriginState::kUnknown:
      return from;
  }
  return from;
}

std::string files_text(size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string model_text(const CachedModel& model, int64_t now_ns) {
  const bool good = model.damage.empty();
  const std::string used = "used " + format_age(seconds_since(model.used_ns, now_ns)) + " ago";
  std::string text =
      text_line("%9s  %-5s %-22s %s%s", format_bytes(model.bytes).c_str(),
                good ? std::string(format_name(model.format)).c_str() : "?", used.c_str(),
                good ? shown(model.name).c_str() : "damaged", model.in_use ? ", in use now" : "");
  text += "           " + shown(model.path) + "\n";
  text += "           " + (good ? origin_text(model) : shown(model.damage)) + "\n";
  return text;
}

std::string list_text(const CacheReport& report) {
  const CacheContents& contents = report.contents;
  std::string text = shown(contents.directory) + ": " +
                     files_text(contents.models.size(), "packed model") + ", " +
                     format_bytes(contents.bytes());
  if (report.free_bytes) text += "; " + format_bytes(*report.free_bytes) + " are free there";
  text += "\n";
  // The last used first: what goes first is at the end of a long list, in sight.
  for (size_t i = contents.models.size(); i-- > 0;) {
    text += model_text(contents.models[i], report.now_ns);
  }
  for (const PartialFile& file : contents.partial) {
    text += text_line("%9s  ", format_bytes(file.bytes).c_str());
    text.pop_back();
    text += (file.in_use ? "being written: " : "left by an interrupted conversion: ") +
            shown(file.path) + "\n";
  }
  for (const CachedProfile& profile : contents.profiles) {
    text += text_line("%9s  ", format_bytes(profile.bytes).c_str());
    text.pop_back();
    text += "hardware profile: " + shown(profile.path) + "\n";
  }
  return text;
}

std::string prune_text(const CacheReport& report) {
  const PruneResult& pruned = *report.pruned;
  std::string text;
  uint64_t bytes = 0;
  for (const RemovedFile& file : pruned.removed) {
    bytes += file.bytes;
    text += (report.dry_run ? "would remove " : "removed ") + shown(file.path) + ", " +
            format_bytes(file.bytes) + "\n";
  }
  for (const std::string& path : pruned.in_use) text += "in use: " + shown(path) + "\n";
  return text + shown(report.contents.directory) + ": " +
         files_text(pruned.removed.size(), "file") + (report.dry_run ? " to remove" : " removed") +
         ", " + format_bytes(bytes) + "; " + format_bytes(pruned.bytes_left) +
         (report.dry_run ? " would be left\n" : " left\n");
}

json json_of_model(const CachedModel& model, int64_t now_ns) {
  json object = {{"path", model.path},
                 {"bytes", model.bytes},
                 {"last_used", utc(model.used_ns)},
                 {"unused_seconds", seconds_since(model.used_ns, now_ns)},
                 {"in_use", model.in_use}};
  if (!model.damage.empty()) {
    object["damage"] = model.damage;
    return object;
  }
  object["model"] = model.name;
  object["format"] = format_name(model.format);
  object["layout"] = layout_name(model.layout);
  object["checkpoint"] = model.origin.empty() ? json() : json(model.origin);
  object["checkpoint_state"] = state_name(model.origin_state);
  return object;
}

}  // namespace

std::string text_of(const CacheReport& report) {
  return report.pruned ? prune_text(report) : list_text(report);
}

std::string json_of(const CacheReport& report) {
  json root = {{"directory", report.contents.directory}};
  if (report.pruned) {
    json removed = json::array();
    for (const RemovedFile& file : report.pruned->removed) {
      removed.push_back({{"path", file.path}, {"bytes", file.bytes}});
    }
    root["dry_run"] = report.dry_run;
    root["removed"] = std::move(removed);
    root["in_use"] = report.pruned->in_use;
    root["bytes"] = report.pruned->bytes_left;
    json failures = json::array();
    for (const Status& failure : report.pruned->failures) {
      failures.push_back(std::string(failure.message()));
    }
    root["failures"] = std::move(failures);
  } else {
    json models = json::array(), partial = json::array(), profiles = json::array();
    for (const CachedModel& model : report.contents.models) {
      models.push_back(json_of_model(model, report.now_ns));
    }
    for (const PartialFile& file : report.contents.partial) {
      partial.push_back({{"path", file.path}, {"bytes", file.bytes}, {"in_use", file.in_use}});
    }
    for (const CachedProfile& profile : report.contents.profiles) {
      profiles.push_back({{"path", profile.path}, {"bytes", profile.bytes}});
    }
    root["models"] = std::move(models);
    root["partial"] = std::move(partial);
    root["profiles"] = std::move(profiles);
    root["bytes"] = report.contents.bytes();
    root["free_bytes"] = report.free_bytes ? json(*report.free_bytes) : json();
  }
  return root.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace spillway
