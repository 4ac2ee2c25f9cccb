// Accepts the clients of one listening socket, TCP or Unix. On the network thread, but for its
// making before that runs. Only the server's own .cc files include this.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>

namespace spillway {

class Acceptor {
 public:
  // An accepted client: its socket, which the callee owns, the socket's address family, and its
  // address without the port; over a Unix socket "unix:" and the number of the process's user.
  using Taker = std::function<void(int fd, int family, const std::string& client)>;

  // Takes ownership of `fd`, which listens.
  Acceptor(boost::asio::io_context& io, int fd, Taker take_in);

  // Accepts clients until close(). REQUIRES: this outlives what `io` runs.
  void start();
  void close();

 private:
  void accept_waiting();

  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer pause_;
  const Taker take_in_;
};

}  // namespace spillway
