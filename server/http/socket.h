// What the kernel is told and asked about a client's socket. Any thread.
#pragma once

#include <string>

namespace spillway {

// A half-open peer must not keep its place, or cause work, for ever: one that is silent for
// `seconds`, or half as long again, is probed, four times, and as long after that without an answer
// the socket has an error. A socket that knows no such option is left as it is.
void probe_when_silent(int fd, int seconds);

// The address of the socket's other end: "192.0.2.7", "2001:db8::1", or "unix". Empty: it has left
// already.
std::string peer_address(int fd);

}  // namespace spillway
