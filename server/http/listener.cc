#include "server/http/listener.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "kernels/base/quote.h"

namespace spillway {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kBacklog = 4096;

Status refusal(const error_code& ec, const std::string& host, uint16_t port) {
  const std::string what = "listen on " + host + ":" + std::to_string(port) + ": " + ec.message();
  if (ec == asio::error::address_in_use) return {Code::kIoError, what + "; choose another --port"};
  if (ec == asio::error::access_denied) {
    return {Code::kIoError, what + "; choose a --port of 1024 or more"};
  }
  if (ec == boost::system::errc::address_not_available) {
    return invalid_argument(what + "; --host must be an address of this machine");
  }
  return {Code::kIoError, what};
}

// ---- Unix sockets -------------------------------------------------------------------------------

class OwnFd {
 public:
  explicit OwnFd(int fd) : fd_(fd) {}
  ~OwnFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  OwnFd(const OwnFd&) = delete;
  OwnFd& operator=(const OwnFd&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());  // Zeros follow.
  return address;
}

int connect_to(int fd, const sockaddr_un& address) {
  const int failed = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  return failed == 0 ? 0 : errno;
}

// Removes a socket at `path` that nobody listens at; refuses everything else that lies there.
Status clear_place(const std::string& path) {
  struct stat found {};
  const std::string place = "--socket " + path;
  if (::lstat(path.c_str(), &found) != 0) {
    return errno == ENOENT ? Status() : io_error(place, errno);
  }
  if (!S_ISSOCK(found.st_mode)) {
    return invalid_argument(place + ": something that is no socket lies there; name another path");
  }
  const OwnFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (probe.get() < 0) return io_error("make a socket", errno);
  const int error = connect_to(probe.get(), address_of(path));
  if (error == 0 || error == EAGAIN) {  // EAGAIN: its queue is full.
    return {Code::kIoError,
            place + ": another process listens there; end it, or name another path"};
  }
  if (error != ECONNREFUSED) return io_error(place, error);
  return ::unlink(path.c_str()) == 0 || errno == ENOENT ? Status()
                                                        : io_error("remove " + path, errno);
}

}  // namespace

SocketFile::SocketFile(std::string path) : path_(std::move(path)) {
  struct stat own {};
  if (::lstat(path_.c_str(), &own) != 0) {
    path_.clear();
    return;
  }
  device_ = own.st_dev;
  inode_ = own.st_ino;
}

SocketFile::SocketFile(SocketFile&& other) noexcept
    : path_(std::exchange(other.path_, {})), device_(other.device_), inode_(other.inode_) {}

SocketFile& SocketFile::operator=(SocketFile&& other) noexcept {
  remove();
  path_ = std::exchange(other.path_, {});
  device_ = other.device_;
  inode_ = other.inode_;
  return *this;
}

SocketFile::~SocketFile() {
  remove();
}

void SocketFile::remove() {
  struct stat found {};
  if (path_.empty() || ::lstat(path_.c_str(), &found) != 0) return;
  if (found.st_dev == device_ && found.st_ino == inode_) ::unlink(path_.c_str());
  path_.clear();
}

Result<HttpListener> HttpListener::bind(const std::string& host, uint16_t port) {
  asio::io_context io;
  error_code ec;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, ec);
  if (ec || found.empty()) return invalid_argument("--host " + host + ": " + ec.message());
  const tcp::endpoint endpoint = *found.begin();
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (ec) return refusal(ec, host, port);
  HttpListener listener;
  listener.port_ = acceptor.local_endpoint(ec).port();
  listener.loopback_ = endpoint.address().is_loopback();
  const std::string text = endpoint.address().to_string();
  listener.host_text_ = endpoint.address().is_v6() ? "[" + text + "]" : text;
  listener.fd_ = acceptor.release(ec);
  if (ec) return refusal(ec, host, port);
  return listener;
}

Result<HttpListener> HttpListener::bind_socket(const std::string& path, mode_t mode) {
  const std::string place = "--socket " + path;
  if (path.empty() || path.find('\0') != std::string::npos) {
    return invalid_argument("--socket: " + in_quotes(path) + " is no path");
  }
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return invalid_argument(place + ": the path has " + std::to_string(path.size()) +
                            " bytes, a socket's may have " +
                            std::to_string(sizeof(sockaddr_un::sun_path) - 1));
  }
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  // Two servers that start at once must not take each other's new socket for one that was left
  // behind. Where the file system has no locks there is only that moment in which they may.
  const OwnFd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.get() < 0) return io_error("--socket: open the folder " + folder, errno);
  (void)::flock(lock.get(), LOCK_EX);
  SPILLWAY_RETURN_IF_ERROR(clear_place(path));
  OwnFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return io_error("make a socket", errno);
  // The file takes the permissions of the socket, less those of the umask: so there is no moment in
  // which it has more than it should. Afterwards it gets what the umask took.
  const sockaddr_un address = address_of(path);
  if (::fchmod(fd.get(), mode) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return io_error(place, errno);
  }
  HttpListener listener;
  listener.file_ = SocketFile(path);
  if (::chmod(path.c_str(), mode) != 0) return io_error(place, errno);
  if (::listen(fd.get(), kBacklog) != 0) return io_error(place, errno);
  listener.loopback_ = true;
  listener.fd_ = fd.release();
  return listener;
}

HttpListener::HttpListener(HttpListener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      port_(other.port_),
      host_text_(std::move(other.host_text_)),
      loopback_(other.loopback_),
      file_(std::move(other.file_)) {}

HttpListener::~HttpListener() {
  if (fd_ >= 0) ::close(fd_);
}

std::string HttpListener::url() const {
  if (port_ == 0) return "unix:" + file_.path();
  return "http://" + host_text_ + ":" + std::to_string(port_);
}

Result<int> HttpListener::listen() {
  // Another server may have listened first: it, too, had bound the address without listening.
  if (::listen(fd_, kBacklog) != 0) {
    return refusal(error_code(errno, boost::system::system_category()), host_text_, port_);
  }
  return std::exchange(fd_, -1);
}

}  // namespace spillway
