// The composition root: nothing above it, everything below is given what it needs.
#include <cstdlib>
#include <vector>

#include "server/commands/batch.h"
#include "server/commands/convert.h"
#include "server/commands/generate.h"
#include "server/commands/inspect.h"
#include "server/commands/measure_commands.h"
#include "server/commands/serve_command.h"
#include "server/config/command_line.h"
#include "server/open_model.h"

int main(int count, char** arguments) {
  using namespace spillway;
  const OpenModel open = model_opener();
  std::vector<Command> commands;
  commands.push_back(serve_command(open));
  commands.push_back(batch_command(open));
  commands.push_back(generate_command(open));
  commands.push_back(bench_command());
  commands.push_back(eval_command());
  commands.push_back(convert_command());
  commands.push_back(inspect_command());
  return run_command_line(commands, count, arguments,
                          [](const char* name) { return getenv(name); });
}
