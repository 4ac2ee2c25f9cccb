// `spillway batch --server URL`: hands a file of requests to a server's Batch API, watches it, and
// fetches the results.
//
//   input file -> /v1/files -> /v1/batches -> watched until it has ended -> /v1/files/.../content
//              -> output file
//
// The batch is the server's: it goes on when this command ends, and --batch-id watches it again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/base/status.h"
#include "server/cli/flags/settings.h"

namespace spillway {

struct RemoteBatchFlags {
  std::string server;  // Empty: the batch runs in this process
  std::string api_key;
  std::string api_key_file;
  std::string batch_id;  // Of a batch that is there already
  bool cancel = false;
  std::string completion_window = "none";
  int64_t retry_seconds = 600;
};

// What it has in common with a batch on this machine.
struct RemoteBatchFiles {
  std::string input;
  std::string output;
  bool overwrite = false;
  std::string progress = "auto";
};

// The server's settings. `flags` outlives them.
void add_remote_batch_flags(Settings& settings, RemoteBatchFlags* flags);

// Refuses flags of the command that say how a batch runs on this machine, and those of a server
// where none is named.
Status check_remote_batch_given(const Settings& given, const RemoteBatchFlags& flags);
Status check_remote_batch(const RemoteBatchFlags& flags, const RemoteBatchFiles& files);

struct RemoteBatchOutcome {
  int64_t failed = 0;  // Lines of the output that have an error
};

// Runs it, with its progress and a summary on stderr. Errors: kCancelled, interrupted, and the
// message says how to go on; kInvalidArgument, the server refuses the input, the key or a flag;
// kIoError, the server cannot be reached or the output not written, or the batch ended before its
// time. Main thread; blocks. Installs signal handlers while it runs. `poll_seconds`: between two
// looks at the batch, the first ones come faster.
Result<RemoteBatchOutcome> run_remote_batch(const RemoteBatchFlags& flags,
                                            const RemoteBatchFiles& files, double poll_seconds = 5);

// The url of the first line of an input file, which is the batch's endpoint. kInvalidArgument: it
// is no line of OpenAI's Batch API.
Result<std::string> endpoint_of(const std::string& input);

// The key in a file: the first word of its first line that is not empty and does not begin with
// '#'.
Result<std::string> read_client_key(const std::string& path);

}  // namespace spillway
