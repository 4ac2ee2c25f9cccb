#include "server/cli/serve/listen_flags.h"

#include <charconv>
#include <utility>

#include "kernels/base/quote.h"

namespace spillway {
namespace {

Result<mode_t> mode_of(const std::string& text) {
  unsigned mode = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, mode, 8);
  if (error != std::errc() || rest != end || text.size() < 3 || mode > 0777) {
    return invalid_argument(in_quotes(text) + " is no mode of a file such as 0600 or 0660");
  }
  // Clients need to write to a socket to connect to it; so does this server to look whether it is
  // still listened at.
  if ((mode & 0600) != 0600) {
    return invalid_argument(in_quotes(text) +
                            " keeps the server itself out; begin it with 06 or 07");
  }
  return static_cast<mode_t>(mode);
}

Setting socket_mode_setting(mode_t* field) {
  Setting setting;
  setting.name = "socket-mode";
  setting.meaning = "MODE";
  setting.help = "permissions of --socket in octal; 0660: its group may ask, too";
  setting.value = "0600";
  setting.assign = [field](const std::string& text) -> Status {
    SPILLWAY_ASSIGN_OR_RETURN(*field, mode_of(text));
    return {};
  };
  return setting;
}

bool is_origin(const std::string& text) {
  const size_t scheme = text.find("://");
  return scheme != std::string::npos && scheme > 0 && scheme + 3 < text.size() &&
         text.find('/', scheme + 3) == std::string::npos;
}

// Of a name without scheme, port and path.
bool is_host_name(const std::string& text) {
  return !text.empty() && text.find_first_of("/:@?# ") == std::string::npos;
}

}  // namespace

void add_listen_flags(Settings& settings, ListenFlags* flags) {
  settings.add_text("host", &flags->host, "ADDRESS", "the address to listen on");
  settings.add_integer("port", &flags->port, 0, 65535,
                       "the port to listen on; 0: any free one. With --socket there is none unless "
                       "it is given");
  settings.add_text("socket", &flags->socket, "PATH",
                    "a Unix socket to listen on, removed at the end; one that was left behind is "
                    "replaced");
  settings.add(socket_mode_setting(&flags->socket_mode));
  settings.add_texts("allowed-host", &flags->allowed_hosts, "NAME",
                     "without API keys: a name of this server that requests may ask for, beside IP "
                     "addresses, localhost and --host; *: any");
  settings.add_texts("allowed-origins", &flags->allowed_origins, "ORIGIN",
                     "web pages that may ask, such as https://example.org; *: all");
}

Status validate(const ListenFlags& flags) {
  for (const std::string& origin : flags.allowed_origins) {
    if (origin == "*" || is_origin(origin)) continue;
    return invalid_argument("--allowed-origins: " + in_quotes(origin) +
                            " is no origin such as https://example.org, nor *");
  }
  for (const std::string& name : flags.allowed_hosts) {
    if (is_host_name(name)) continue;
    return invalid_argument("--allowed-host: " + in_quotes(name) +
                            " is no name such as gpu.example.org (without scheme and port), nor *");
  }
  return {};
}

Status settle(const Settings& given, ListenFlags* flags) {
  const auto is_default = [&](const char* name) {
    return given.find(name)->source == SettingSource::kDefault;
  };
  if (flags->socket.empty()) {
    if (is_default("socket-mode")) return {};
    return invalid_argument("--socket-mode is of --socket PATH, which is not given");
  }
  flags->tcp = !is_default("port");
  if (flags->tcp || is_default("host")) return {};
  return invalid_argument(
      "--host means nothing beside --socket alone; add --port 8000 to listen on both, or leave it "
      "out");
}

Result<std::vector<HttpListener>> open_listeners(const ListenFlags& flags) {
  std::vector<HttpListener> listeners;
  if (flags.tcp) {
    SPILLWAY_ASSIGN_OR_RETURN(HttpListener listener,
                              HttpListener::bind(flags.host, static_cast<uint16_t>(flags.port)));
    listeners.push_back(std::move(listener));
  }
  if (!flags.socket.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(HttpListener listener,
                              HttpListener::bind_socket(flags.socket, flags.socket_mode));
    listeners.push_back(std::move(listener));
  }
  return listeners;
}

}  // namespace spillway
