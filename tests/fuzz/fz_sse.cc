// Events of any text: a reader that follows the specification's line rules gets back exactly what
// was sent, and each chunk is framed so that its payload comes out again.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "server/api/answer_json.h"
#include "server/http/message.h"
#include "server/http/sse.h"
#include "tests/support/tiny_shape.h"

namespace spillway {
namespace {

// The data of each event in a stream; lines end with LF only here.
std::vector<std::string> read_events(std::string_view stream) {
  std::vector<std::string> events;
  std::string data;
  while (!stream.empty()) {
    const size_t end = stream.find('\n');
    SPILLWAY_CHECK(end != std::string_view::npos);
    const std::string_view line = stream.substr(0, end);
    stream.remove_prefix(end + 1);
    if (line.empty()) {
      events.push_back(data);
      data.clear();
    } else if (!line.starts_with(':')) {
      SPILLWAY_CHECK(line.starts_with("data: "));
      data += line.substr(6);
    }
  }
  SPILLWAY_CHECK(data.empty());
  return events;
}

std::string unchunk(std::string_view bytes) {
  const size_t line = bytes.find("\r\n");
  SPILLWAY_CHECK(line != std::string_view::npos);
  const size_t size = std::stoul(std::string(bytes.substr(0, line)), nullptr, 16);
  SPILLWAY_CHECK(bytes.size() == line + 2 + size + 2);
  SPILLWAY_CHECK(bytes.ends_with("\r\n"));
  return std::string(bytes.substr(line + 2, size));
}

}  // namespace
}  // namespace spillway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const ModelShape shape = test::make_shape({});
  ApiContext context;
  context.shape = &shape;
  context.model_names = {"m"};
  CompletionCall call;
  call.model = "m";
  call.requests.resize(1);
  ChoiceText piece;
  piece.text.assign(reinterpret_cast<const char*>(data), size);
  const std::string json = answer_chunk({"cmpl-1", 1}, call, context, piece);
  const std::string event = sse_event(json);
  SPILLWAY_CHECK(unchunk(chunk(event)) == event);
  const auto events = read_events(std::string(kSsePing) + event + std::string(kSseDone));
  SPILLWAY_CHECK(events.size() == 3 && events[0].empty());
  SPILLWAY_CHECK(events[1] == json && events[2] == "[DONE]");
  const auto parsed = nlohmann::json::parse(events[1]);
  const auto text = parsed["choices"][0]["text"].get<std::string>();
  // Valid UTF-8 comes back as it is; else the broken bytes alone are replaced.
  const std::string dumped =
      nlohmann::json(piece.text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  SPILLWAY_CHECK(nlohmann::json::parse(dumped).get<std::string>() == text);
  return 0;
}
