// `spillway queue`: jobs in a PostgreSQL database that any number of `spillway work` share. Hands
// files in, says how far they are, fetches results.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "server/cli/flags/command_line.h"

namespace spillway {

struct QueueFlags {
  std::string action;
  std::string database;
  std::string input, output, model;
  std::string format, kv_format, kv_rule;
  std::optional<int64_t> job;
  uint64_t seed = 0;
  int64_t priority = 0;
  int64_t attempts = 5;
  std::optional<double> deadline_seconds;
  bool force = false, overwrite = false, wait = false, json = false;
  int64_t retry_seconds = 60;
  std::string progress = "auto";
};

// The setting --database, of `queue` and `work`. Its value is never shown: it may hold a password.
Setting database_setting(std::string* field);

// Refuses what is missing or does not go with the action.
Status validate(const QueueFlags& flags);

// Main thread; blocks. Prints on stdout what was asked for. Installs signal handlers while it runs.
// Errors as of server/queue/queue_jobs.h; kIoError: the database could not be reached in
// retry_seconds.
Status run_queue(const QueueFlags& flags);

Command queue_command();

}  // namespace spillway
