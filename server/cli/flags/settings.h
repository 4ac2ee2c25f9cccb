// A command's settings: one table from which flags, environment variables, configuration file, help
// text and --print-config all follow.
//
// The setting "host-memory" is the flag --host-memory, the variable SPILLWAY_HOST_MEMORY and the
// key "host-memory" of a --config file, in that order of precedence. Values of every source go
// through one parser, so a text has one meaning and one check everywhere.
//
// The table is owned by its Command; the fields it writes into must outlive it. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

enum class SettingSource : uint8_t { kDefault, kPlan, kFile, kEnvironment, kFlag };

struct Setting {
  std::string name;     // "host-memory"
  std::string meaning;  // Name of the value in the help: "SIZE"; empty for a switch.
  std::string help;
  std::string group;                                 // Heading in the help
  std::string value;                                 // As text; initially the default
  std::function<Status(const std::string&)> assign;  // Checks the text and stores the value
  SettingSource source = SettingSource::kDefault;
  bool repeats = false;   // A repeated flag adds to the list, comma-separated
  std::string of = {};    // The setting that this one qualifies: see qualify()
  std::string twin = {};  // Another name of the same thing: see same()
  // Its value is never printed, and an empty variable is an error: for any other setting it means
  // "not set", for a key it would mean that no key is required.
  bool secret = false;
  // Of a secret: what is said where the value stands on the command line, which everyone sees; ""
  // if there is nothing in it to hide. Empty: what goes for a key.
  std::function<std::string(const std::string& value)> exposure = {};

  bool is_switch() const { return meaning.empty(); }
  std::string environment_name() const;  // "SPILLWAY_HOST_MEMORY"
};

// The parts between commas, empty ones included: "" has one, "a," two.
std::vector<std::string> split_list(const std::string& text);

class Settings {
 public:
  // Sets the help's heading for all settings that are added from now on.
  void group(std::string title) { group_ = std::move(title); }

  // Each add_* takes the default from the field. `meaning` and `help` are help texts.
  void add_text(std::string name, std::string* field, std::string meaning, std::string help);
  void add_texts(std::string name, std::vector<std::string>* field, std::string meaning,
                 std::string help);  // Comma-separated; a flag may come several times
  void add_switch(std::string name, bool* field, std::string help);
  void add_integer(std::string name, int64_t* field, int64_t least, int64_t most, std::string help);
  void add_integer(std::string name, std::optional<int64_t>* field, int64_t least, int64_t most,
                   std::string help);
  // REQUIRES: `least` is not negative.
  void add_count(std::string name, size_t* field, int64_t least, int64_t most, std::string help);
  void add_seed(std::string name, uint64_t* field, std::string help);
  void add_seed(std::string name, std::optional<uint64_t>* field, std::string help);
  void add_real(std::string name, double* field, double least, double most, std::string help);
  void add_size(std::string name, std::optional<uint64_t>* field_bytes, std::string help);

  // The value must be one of `choices`; an enum's are found by position.
  void add_choice(std::string name, std::string* field, std::vector<std::string> choices,
                  std::string help);

  // For kinds of values that no other add_*() covers.
  void add(Setting setting);

  // `names` qualify `owner`: a source's values of them hold as long as no stronger source gives the
  // owner another value than this source had. (A plan's kv-heavy is about its kv-rule; with
  // --kv-rule window beside the plan it means nothing.) REQUIRES: all exist.
  void qualify(std::string_view owner, const std::vector<std::string_view>& names);

  // Two names of one thing: a source's value of either holds as long as no stronger source gives
  // the other. That one source gives both is for the command to judge. REQUIRES: both exist.
  void same(std::string_view one, std::string_view other);

  const std::vector<Setting>& all() const { return settings_; }
  const Setting* find(std::string_view name) const;

  // Stores a value and its source. A refusal names the place: "--block: ...", "SPILLWAY_BLOCK:
  // ...", "FILE: block: ...". REQUIRES: the name exists.
  Status set(std::string_view name, const std::string& value, SettingSource source,
             const std::string& place);

 private:
  std::string group_;
  std::vector<Setting> settings_;
};

// The sources of values.
struct SettingInputs {
  std::map<std::string, std::string> flags;  // By setting; a switch that is given is "true"
  std::function<const char*(const char*)> environment;  // getenv, or a test's stand-in
  std::string config_file;                              // Empty: none
  std::function<bool(std::string_view)> known;          // Whether any command has this setting
};

// Fills the settings by precedence. A key of the file that only another command knows is skipped;
// one that no command knows is refused. Reads the file.
Status resolve(Settings& settings, const SettingInputs& inputs);

// The text of a JSON file (--config, --plan), at most 1 MiB. `place` names it in errors.
Result<std::string> read_json_text(const std::string& path, const std::string& place);

// 8, "8GiB", true, [20, 80, 0] as a flag's text. kInvalidArgument, at `place`, for anything else.
Result<std::string> setting_text(const nlohmann::json& value, const std::string& place);

// The text of --print-config: name, value and source.
std::string describe(const Settings& settings);

}  // namespace spillway
