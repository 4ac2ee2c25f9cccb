// An address that is bound but not yet served, so that `serve` knows before it loads a model
// whether the address is available: a TCP port, or a Unix socket. Move-only; one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "kernels/base/status.h"

namespace spillway {

// The file of a Unix socket, removed with this object unless another process has put its own there.
class SocketFile {
 public:
  SocketFile() = default;
  // Of the socket that lies at `path` now.
  explicit SocketFile(std::string path);
  SocketFile(SocketFile&& other) noexcept;
  SocketFile& operator=(SocketFile&& other) noexcept;
  ~SocketFile();

  const std::string& path() const { return path_; }  // Empty: none

 private:
  void remove();

  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

class HttpListener {
 public:
  // Binds host and port; `port` 0 picks a free one. Clients are refused until HttpServer::start.
  // Errors name which of the two to change: the host is unknown or no address of this machine
  // (kInvalidArgument), the port is taken or needs privileges (kIoError).
  static Result<HttpListener> bind(const std::string& host, uint16_t port);

  // Makes a Unix socket at `path` with these permissions (such as 0600), and queues clients from
  // then on. A socket that nobody listens at any more, as a killed server leaves it, is replaced.
  // Errors: the path is too long, or something else lies there (kInvalidArgument); another process
  // listens there, or the folder cannot be written to (kIoError); there is no folder (kNotFound).
  static Result<HttpListener> bind_socket(const std::string& path, mode_t mode);

  HttpListener(HttpListener&& other) noexcept;
  HttpListener& operator=(HttpListener&& other) = delete;
  ~HttpListener();

  uint16_t port() const { return port_; }      // 0: a Unix socket
  std::string url() const;                     // "http://127.0.0.1:8000", "unix:/run/spillway.sock"
  bool loopback() const { return loopback_; }  // Only this machine can reach it.

  // Begins to queue clients. The caller owns the socket from then on; its file, if it has one, is
  // take_file()'s.
  Result<int> listen();
  SocketFile take_file() { return std::move(file_); }

 private:
  HttpListener() = default;

  int fd_ = -1;
  uint16_t port_ = 0;
  std::string host_text_;
  bool loopback_ = false;
  SocketFile file_;
};

}  // namespace spillway
