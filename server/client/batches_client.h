// OpenAI's Batch API from the client's side, with tries repeated where that may help. One thread;
// calls block. Texts that a server sends are made harmless to terminals.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/client/patient_caller.h"

namespace spillway {

// A batch as its server describes it.
struct RemoteBatch {
  std::string id;
  std::string status;  // "validating", "in_progress", "completed", ...
  std::string input_file;
  std::string output_file;  // Empty: none
  std::string error_file;
  std::string detail;                            // Why it does not go on just now; empty: it does
  std::vector<std::string> faults;               // Why its input was refused: "line 7: ..."
  int64_t total = 0, completed = 0, failed = 0;  // Lines
  int64_t prompt_tokens = 0, generated_tokens = 0;

  bool ended() const;  // Nothing follows
};

class BatchesClient {
 public:
  explicit BatchesClient(PatientCaller caller) : caller_(std::move(caller)) {}

  // Sends the file `path`, and returns its id. `show` is told of the bytes sent and of all.
  // kInvalidArgument: it is no regular file, or the server refuses it; kCorruption: it became
  // shorter meanwhile.
  Result<std::string> upload(const std::string& path,
                             const std::function<void(uint64_t, uint64_t)>& show);

  // Starts a batch over a file of upload(). Whether a batch was made is looked up where the answer
  // is lost, so that there are never two.
  Result<RemoteBatch> create(const std::string& file, const std::string& endpoint,
                             const std::string& window);

  Result<RemoteBatch> retrieve(const std::string& id);
  Result<RemoteBatch> cancel(const std::string& id);

  // Writes the contents of a file to the new file `path`, whole or with an error.
  Status download(const std::string& file, const std::string& path,
                  const std::function<void(uint64_t)>& show);

  Status pause(double seconds) const { return caller_.pause(seconds); }
  const ServerAddress& address() const { return caller_.address(); }

 private:
  // kNotFound: there is none.
  Result<RemoteBatch> batch_over(const std::string& file);

  PatientCaller caller_;
};

// The error of an answer: what was asked for, status, code and message. kInvalidArgument where the
// caller has to change something, else kIoError.
Status error_of(const HttpReply& reply, const std::string& what);

}  // namespace spillway
