// What is known of one request when it is over, for the log and the metrics: who asked for what,
// the answer's status, whether it was sent whole, and what the handler says of its work.
//
// A request is over when its answer has been written, or its connection has ended, and its handler
// has let go of it: so the tokens of an answer that nobody waited for are known, too. The
// connection and the exchange each hold the record until then; the last one's letting go is the
// report. Thread rule: the network thread, on which also the report is made (that of a handler
// which outlives the server: on the thread that lets go).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace spillway {

// What a handler knows of the sequences that it ran for a request.
struct RequestWork {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;     // Of these: not computed
  int64_t generated_tokens = 0;  // All choices
  double queue_seconds = 0;      // Until admitted to the block; of several sequences the longest
  std::optional<double> first_token;  // steady_seconds() at the first token of any; none: no token
  const char* finish_reason = "";     // stop, length, abort or error: vLLM's finished_reason
  std::string error;                  // Code of the error that a stream ended with; empty: none
};

struct RequestReport {
  std::string id;      // As in the answer's x-request-id
  std::string key;     // Name of the API key; empty: the server asks for none, or it was refused
  std::string client;  // Address
  std::string method;  // Empty: the head could not be read
  std::string path;    // As it was sent, without the query
  std::string route;   // The route's pattern: "/v1/models/{*}"; empty: none was chosen
  int status = 0;      // 0: nothing of the answer was sent
  std::string error;   // Code of the error that was answered; empty: none
  bool whole = false;  // The answer was written to its end; else the connection ended before
  double began = 0;    // steady_seconds() when the head was read
  double seconds = 0;  // Until the answer was written, or the connection ended
  std::optional<RequestWork> work;
};

using RequestObserver = std::function<void(const RequestReport&)>;

class RequestRecord {
 public:
  // `observer`: may be null. `socket`: the client's. `head`: null if it could not be read.
  RequestRecord(std::shared_ptr<const RequestObserver> observer, int socket,
                const HttpRequest* head);
  ~RequestRecord();  // The report
  RequestRecord(const RequestRecord&) = delete;
  RequestRecord& operator=(const RequestRecord&) = delete;

  // `client`: the address that a trusted proxy sent the request for.
  void forwarded_for(std::string client);
  void routed(std::string_view route, std::string key_name);
  void answered(int status, std::string_view error, std::string_view id);
  void worked(RequestWork work);
  void ended(bool whole);

 private:
  const std::shared_ptr<const RequestObserver> observer_;
  RequestReport report_;
};

}  // namespace spillway
