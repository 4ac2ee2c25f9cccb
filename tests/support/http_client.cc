#include "tests/support/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/patience.h"

namespace spillway {
namespace {

constexpr int kWaitMilliseconds = static_cast<int>(1000 * test::kPatience);

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

HttpAnswer parse_head(const std::string& head) {
  HttpAnswer answer;
  answer.status = std::stoi(head.substr(9, 3));
  size_t at = head.find("\r\n") + 2;
  while (at < head.size() - 2) {
    const size_t end = head.find("\r\n", at);
    const size_t colon = head.find(": ", at);
    answer.fields[lower(head.substr(at, colon - at))] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  return answer;
}

}  // namespace

HttpClient::HttpClient(uint16_t port, int receive_bytes, const char* from) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_bytes > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (from != nullptr) {
    address.sin_addr.s_addr = inet_addr(from);
    REQUIRE(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    close(fd_);
    fd_ = -1;
  }
}

HttpClient::~HttpClient() {
  if (fd_ >= 0) close(fd_);
}

bool HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool HttpClient::fill() {
  if (fd_ < 0) return false;
  pollfd wait{fd_, POLLIN, 0};
  if (poll(&wait, 1, kWaitMilliseconds) <= 0) return false;
  char bytes[65536];
  const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
  if (count <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(count));
  return true;
}

bool HttpClient::fill_until(std::string_view mark) {
  while (buffer_.find(mark) == std::string::npos) {
    if (!fill()) return false;
  }
  return true;
}

HttpAnswer HttpClient::read_head() {
  if (!fill_until("\r\n\r\n")) return {};
  const size_t end = buffer_.find("\r\n\r\n") + 4;
  HttpAnswer answer = parse_head(buffer_.substr(0, end));
  buffer_.erase(0, end);
  return answer;
}

std::string HttpClient::read_chunk() {
  if (!fill_until("\r\n")) return {};
  const size_t line = buffer_.find("\r\n");
  const size_t size = std::stoul(buffer_.substr(0, line), nullptr, 16);
  while (buffer_.size() < line + 2 + size + 2) {
    if (!fill()) return {};
  }
  std::string payload = buffer_.substr(line + 2, size);
  buffer_.erase(0, line + 2 + size + 2);
  return payload;
}

HttpAnswer HttpClient::read_answer() {
  HttpAnswer answer = read_head();
  if (answer.status == 100) answer = read_head();
  if (answer.fields.contains("content-length")) {
    const size_t size = std::stoul(answer.fields["content-length"]);
    while (buffer_.size() < size && fill()) {
    }
    answer.complete = buffer_.size() >= size;
    answer.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
  } else if (answer.fields.contains("transfer-encoding")) {
    while (fill_until("\r\n")) {
      const bool last = buffer_.starts_with("0\r\n");
      const std::string payload = read_chunk();
      if (payload.empty()) {
        answer.complete = last;
        break;
      }
      answer.body += payload;
      answer.chunks.push_back(payload);
    }
  } else if (answer.status != 0) {
    while (fill()) {
    }
    answer.body = std::move(buffer_);
    answer.complete = true;
  }
  return answer;
}

bool HttpClient::closed_within(double seconds) {
  if (!buffer_.empty()) return false;
  pollfd wait{fd_, POLLIN, 0};
  if (poll(&wait, 1, static_cast<int>(seconds * 1000)) <= 0) return false;
  char byte = 0;
  return recv(fd_, &byte, 1, 0) <= 0;
}

void HttpClient::reset() {
  const linger now{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd_);
  fd_ = -1;
}

void HttpClient::half_close() {
  shutdown(fd_, SHUT_WR);
}

HttpAnswer HttpClient::get(const std::string& path) {
  send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  return read_answer();
}

HttpAnswer HttpClient::post(const std::string& path, const std::string& body,
                            const std::string& fields) {
  send(post_text(path, body, fields));
  return read_answer();
}

std::string post_text(const std::string& path, const std::string& body, const std::string& fields) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         fields + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::vector<std::string> sse_data(const std::vector<std::string>& chunks) {
  std::vector<std::string> data;
  for (const std::string& chunk : chunks) {
    INFO(chunk);
    REQUIRE(chunk.starts_with("data: "));
    REQUIRE(chunk.ends_with("\n\n"));
    const std::string inner = chunk.substr(6, chunk.size() - 8);
    REQUIRE(inner.find('\n') == std::string::npos);
    data.push_back(inner);
  }
  return data;
}

}  // namespace spillway
