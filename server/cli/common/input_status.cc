#include "server/cli/common/input_status.h"

#include "server/cli/flags/command_line.h"

namespace spillway {

int report_input(std::string_view command, const Status& status) {
  const int exit_status = report(command, status);
  return status.code() == Code::kCorruption ? kExitUsage : exit_status;
}

}  // namespace spillway
