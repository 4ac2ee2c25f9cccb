// MultipartParser on any body: what it reads does not depend on how the bytes were split, it keeps
// no more than its limits, and a body that was read to its end has whole parts. The first line is
// the Content-Type, the two bytes behind it choose the splits.
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/check.h"
#include "server/http/multipart.h"

namespace spillway {
namespace {

struct PartsReading {
  std::string parts;
  bool failed = false;
  bool complete = false;
  friend bool operator==(const PartsReading&, const PartsReading&) = default;
};

template <class Step>
PartsReading read_parts(const std::string& boundary, std::string_view bytes, Step step) {
  PartsReading reading;
  bool open = false;
  MultipartLimits limits;
  limits.parts_max = 4;
  limits.head_bytes_max = 256;
  MultipartParser parser(boundary,
                         {.on_part =
                              [&](const MultipartPart& part) {
                                SPILLWAY_CHECK(!open && !part.name.empty());
                                open = true;
                                reading.parts +=
                                    "[" + part.name + "|" + part.filename.value_or("\n") + "]";
                              },
                          .on_data =
                              [&](std::string_view data) {
                                SPILLWAY_CHECK(open && !data.empty());
                                reading.parts += data;
                              },
                          .on_part_end =
                              [&] {
                                SPILLWAY_CHECK(open);
                                open = false;
                                reading.parts += "\nend\n";
                              }},
                         limits);
  while (!bytes.empty() && !reading.failed) {
    const size_t count = std::min<size_t>(step(), bytes.size());
    reading.failed = parser.feed(bytes.substr(0, count)).has_value();
    bytes.remove_prefix(count);
  }
  reading.complete = parser.complete();
  SPILLWAY_CHECK(!reading.complete || !open);
  SPILLWAY_CHECK(reading.failed || reading.complete == !parser.finish().has_value());
  if (reading.failed) reading.parts.clear();  // How far it came depends on the splits.
  return reading;
}

}  // namespace
}  // namespace spillway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(text.find('\n'), text.size());
  const auto boundary = multipart_boundary(text.substr(0, line));
  text.remove_prefix(std::min(line + 1, text.size()));
  if (!boundary || text.size() < 2) return 0;
  SPILLWAY_CHECK(!boundary->empty() && boundary->size() <= 70);
  const size_t first = 1 + static_cast<uint8_t>(text[0]) % 9;
  const size_t second = 1 + static_cast<uint8_t>(text[1]) % 30;
  text.remove_prefix(2);
  bool odd = false;
  const PartsReading split =
      read_parts(*boundary, text, [&] { return (odd = !odd) ? first : second; });
  const PartsReading whole = read_parts(*boundary, text, [&] { return text.size() + 1; });
  SPILLWAY_CHECK(split == whole);
  return 0;
}
