// `spillway work`: answers rows of the jobs in a database (`spillway queue`), beside as many
// others.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "scheduler/journal.h"
#include "server/cli/common/served_model.h"
#include "server/cli/flags/command_line.h"
#include "server/cli/serve/listen_flags.h"

namespace spillway {

struct WorkFlags {
  std::string database;
  std::vector<std::string> served_model_names;  // None: the model's own
  std::string name;                             // Empty: host and process
  bool until_done = false;
  double lease_seconds = 60;
  double drain_seconds = 20;
  int64_t answers_bytes_max = int64_t{128} << 20;  // As of `spillway batch`
  int64_t health_port = -1;                        // -1: none
  std::string health_host = "127.0.0.1";
};

// Arguments of run_work() besides the flags.
struct WorkSetup {
  bool shares_beginnings = true;  // --prefix-cache is not off
  JournalHead settings;           // All flags that change results, by name; their seed is the job's
  std::string kv_rule;
  std::string model;  // Its path; not there for a shape's name
  std::function<Result<ServedModel>(const OpenFor&)> open;
};

Status validate(const WorkFlags& flags);

// Works until a signal ends it, which is OK, or with `until_done` until there is nothing left to
// do. Main thread; blocks. Installs signal handlers while it runs.
Status run_work(const WorkFlags& flags, const WorkSetup& setup);

Command work_command(const OpenModel& open);

}  // namespace spillway
