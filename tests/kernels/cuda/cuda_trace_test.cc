// Streams of a traced CUDA device leave a span for every op and copy, on the device's clock.
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/ops.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/random_data.h"
#include "tests/support/recording_trace.h"
#include "tests/support/test_devices.h"

namespace spillway::cuda_trace_test {
namespace {

using test::DeviceArray;
using test::RecordingTrace;

void check_order(const RecordingTrace& trace, Trace::Track track, double from, double to) {
  double before = from;
  for (const RecordingTrace::Span& span : trace.spans) {
    if (span.track != track) continue;
    // Milliseconds come in float32: a microsecond is lost here and there.
    CHECK(span.start >= before - 1e-5);
    CHECK(span.end >= span.start);
    before = span.end;
  }
  CHECK(before <= to + 1e-5);
}

TEST_CASE("work of a traced CUDA stream stands on its track, in its order and at its time") {
  RecordingTrace trace;
  const double start = steady_seconds();
  {
    const auto device = open_cuda_device(0).value();
    const auto untraced = device->new_stream("before");
    device->set_trace(&trace);
    auto compute = device->new_stream("compute"), copies = device->new_stream("copies");
    CHECK(trace.tracks == std::vector<std::string>{"compute", "copies"});
    const std::vector<float> in = test::random_floats(2000, 1);
    const DeviceArray<float> x(*device, *untraced, in), out(*device, *untraced, in);
    const auto work = [&](Stream& stream) {
      normalize(stream, {.in = x.matrix(4, 500), .out = out.matrix(4, 500)});
    };
    work(*untraced);
    // More than are kept uncollected.
    for (int i = 0; i < 400; ++i) work(*compute);
    copies->copy(reinterpret_cast<std::byte*>(out.data()), reinterpret_cast<std::byte*>(x.data()),
                 80);
    REQUIRE(compute->record().wait().ok());
    CHECK_FALSE(trace.spans.empty());  // Before the stream ends
    REQUIRE(copies->record().wait().ok());
    work(*compute);   // Collected when the stream ends,
    compute.reset();  // which it does before the memory goes.
    CHECK(untraced->record().wait().ok());
  }
  const double end = steady_seconds();
  size_t norms = 0, copied = 0;
  for (const RecordingTrace::Span& span : trace.spans) {
    if (span.track == Trace::Track{0}) {
      CHECK(span.name == "normalize");
      CHECK(span.value_name == "rows");
      CHECK(span.value == 4);
      ++norms;
    } else {
      CHECK(span.name == "copy");
      CHECK(span.value == 80);
      ++copied;
    }
  }
  CHECK(norms == 401);
  CHECK(copied == 1);
  check_order(trace, Trace::Track{0}, start, end);
  check_order(trace, Trace::Track{1}, start, end);
  CHECK(fake_cudart::leaks() == 0);
}

TEST_CASE("a device lost in mid-trace leaves the spans before, and no event behind") {
  RecordingTrace trace;
  {
    const auto device = open_cuda_device(0).value();
    device->set_trace(&trace);
    const auto stream = device->new_stream("compute");
    const Buffer memory = device->allocate(Memory::kDevice, 64).value();
    const std::vector<std::byte> bytes(64);
    stream->copy(memory.data(), bytes.data(), 64);
    REQUIRE(stream->record().wait().ok());
    CHECK(trace.spans.size() == 1);
    fake_cudart::fail_copy(0);
    stream->copy(memory.data(), bytes.data(), 64);
    CHECK(stream->record().wait().code() == Code::kDeviceLost);
    stream->copy(memory.data(), bytes.data(), 64);
  }
  fake_cudart::fail_copy(-1);
  CHECK(trace.spans.size() == 1);
  CHECK(fake_cudart::leaks() == 0);
}

}  // namespace
}  // namespace spillway::cuda_trace_test
