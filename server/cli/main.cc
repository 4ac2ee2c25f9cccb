// The composition root: it builds the commands and gives each what it needs.
#include <malloc.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <vector>

#include "kernels/base/trace_losses.h"
#include "server/cli/batch/batch.h"
#include "server/cli/bench/bench.h"
#include "server/cli/cache/cache.h"
#include "server/cli/convert/convert.h"
#include "server/cli/eval/eval.h"
#include "server/cli/flags/command_line.h"
#include "server/cli/flags/hints.h"
#include "server/cli/flags/own_commands.h"
#include "server/cli/generate/generate.h"
#include "server/cli/inspect/inspect.h"
#include "server/cli/plan/plan.h"
#include "server/cli/profile/profile.h"
#include "server/cli/queue/queue.h"
#include "server/cli/serve/serve.h"
#include "server/cli/work/work.h"

namespace {

// Makes freed large allocations return to the kernel. By default glibc comes to keep pieces of up
// to 32 MiB, and more would be resident than --host-memory counts.
void return_large_memory() {
#ifdef M_MMAP_THRESHOLD
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

// If output could not be written it is lost, so no command has succeeded. One place for all of
// them; standard output's error flag stays set until here. (std::cout writes through it.)
int status_of_output(int status) {
  std::cout.flush();
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return status;
  const int error = errno;
  std::fprintf(stderr, "spillway: writing to standard output failed%s%s; what it printed is lost\n",
               error == 0 ? "" : ": ", error == 0 ? "" : std::strerror(error));
  return status == spillway::kExitSuccess ? spillway::kExitFailure : status;
}

// A trace is written when the last object in it is destroyed, after the command's own status was
// settled; the file and its losses were reported then.
int status_of_traces(int status) {
  if (spillway::incomplete_traces() == 0) return status;
  return status == spillway::kExitSuccess ? spillway::kExitFailure : status;
}

}  // namespace

int main(int count, char** arguments) {
  using namespace spillway;
  return_large_memory();
  // Writing beyond a limit on file sizes is an error of that write, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  // Likewise writing to a pipe without a reader: a server must survive the end of its log's reader.
  std::signal(SIGPIPE, SIG_IGN);
  const OpenModel open = model_opener();
  std::vector<Command> commands;
  commands.push_back(serve_command(open));
  commands.push_back(batch_command(open));
  commands.push_back(queue_command());
  commands.push_back(work_command(open));
  commands.push_back(generate_command(open));
  commands.push_back(bench_command());
  commands.push_back(eval_command());
  commands.push_back(profile_command());
  commands.push_back(plan_command());
  commands.push_back(convert_command());
  commands.push_back(inspect_command());
  commands.push_back(cache_command());
  commands.push_back(help_command(&commands));
  commands.push_back(version_command());
  commands.push_back(completions_command(&commands));
  const int status = run_command_line(
      commands, count, arguments, [](const char* name) { return getenv(name); },
      unknown_variables(commands, environ));
  return status_of_output(status_of_traces(status));
}
