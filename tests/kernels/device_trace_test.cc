// Streams of a traced device leave a span for every op.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "tests/support/recording_trace.h"

namespace spillway::device_trace_test {
namespace {

using test::RecordingTrace;

TEST_CASE("ops of a traced stream stand on the track of its label") {
  const auto device = open_cpu_device(1).value();
  const auto untraced = device->new_stream("before");
  RecordingTrace trace;
  device->set_trace(&trace);
  const auto other = device->new_stream("other");
  const auto stream = device->new_stream("compute");

  float in[3 * 2] = {1, 2, 3, 4, 5, 6}, out[3 * 2];
  const ConvertArgs args{.in = dense_matrix(reinterpret_cast<std::byte*>(in), DType::kF32, 3, 2),
                         .out = dense_matrix(reinterpret_cast<std::byte*>(out), DType::kF32, 3, 2)};
  convert_rows(*untraced, args);
  CHECK(trace.spans.empty());
  convert_rows(*stream, args);
  stream->copy(reinterpret_cast<std::byte*>(out), reinterpret_cast<std::byte*>(in), 8);

  CHECK(trace.tracks == std::vector<std::string>{"other", "compute"});
  REQUIRE(trace.spans.size() == 2);
  for (const RecordingTrace::Span& span : trace.spans) {
    CHECK(span.track == stream->track());
    CHECK(span.end >= span.start);
  }
  CHECK(trace.spans[0].name == "convert");
  CHECK(trace.spans[0].value_name == "rows");
  CHECK(trace.spans[0].value == 3);
  CHECK(trace.spans[1].name == "copy");
  CHECK(trace.spans[1].value == 8);
}

}  // namespace
}  // namespace spillway::device_trace_test
