// A blocking HTTP client for tests, down to single bytes: it sends what it is told to, and reads
// answers without hiding how they came. One thread each. Every wait ends after 10 s.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> fields;  // Names in lower case
  std::string body;                           // Chunks joined
  std::vector<std::string> chunks;            // Of a chunked body
  bool complete = false;                      // It had its promised end
};

class HttpClient {
 public:
  // Connects to 127.0.0.1. `receive_bytes` > 0: a receive buffer of about that size. `from`: the
  // client's own address, of 127.0.0.0/8.
  explicit HttpClient(uint16_t port, int receive_bytes = 0, const char* from = nullptr);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // False when the server has closed.
  bool send(std::string_view bytes);

  // A whole answer; status 0 when the connection ended before its head.
  HttpAnswer read_answer();

  // The next chunk of a chunked answer whose head read_head() has read; empty at its end.
  HttpAnswer read_head();
  std::string read_chunk();

  // The server closed or reset, and nothing came before (waits up to `seconds`).
  bool closed_within(double seconds);

  void reset();       // RST
  void half_close();  // FIN

  // Requests with the usual fields.
  HttpAnswer get(const std::string& path);
  HttpAnswer post(const std::string& path, const std::string& body, const std::string& fields = "");

 private:
  bool fill();  // More bytes into buffer_; false at the end
  bool fill_until(std::string_view mark);

  int fd_ = -1;
  std::string buffer_;
};

std::string post_text(const std::string& path, const std::string& body,
                      const std::string& fields = "");

// The data of each event of a stream; fails the test on anything that is no exact event.
std::vector<std::string> sse_data(const std::vector<std::string>& chunks);

}  // namespace spillway
