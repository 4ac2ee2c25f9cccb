// The emulation itself: that it runs what a device would run, and finds what a device would punish.
// And the host side of the CUDA device over a runtime that does everything as late as it can.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cuda/cuda_context.h"
#include "kernels/ops.h"
#include "tests/support/cuda_emulation.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/random_data.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::emulation_test {
namespace {

using test::DeviceArray;

TEST_CASE("warp collectives exchange what every lane gave, in any order of lanes") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    emulation::set_seed(seed);
    std::vector<float> sums(64);
    std::vector<unsigned> votes(64);
    emulation::run_grid(dim3(1), dim3(64), 0, [&] {
      const unsigned thread = threadIdx.x;
      float x = static_cast<float>(thread);
      for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
      sums[thread] = x;
      votes[thread] = __ballot_sync(0xffffffffu, thread % 3 == 0);
    });
    for (unsigned thread = 0; thread < 64; ++thread) {
      CHECK(sums[thread] == (thread < 32 ? 496.0f : 1520.0f));
      for (unsigned lane = 0; lane < 32; ++lane) {
        const bool voted = (thread / 32 * 32 + lane) % 3 == 0;
        CHECK(((votes[thread] >> lane & 1) == 1) == voted);
      }
    }
  }
}

TEST_CASE("a stream waits for another stream's event, whatever runs first") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    fake_cudart::set_seed(seed);
    const auto device = open_cuda_device(0).value();
    const auto copies = device->new_stream("copy"), compute = device->new_stream("compute");
    const std::vector<float> in = test::random_floats(40, seed);
    const Buffer a = device->allocate(Memory::kDevice, 160).value();
    const Buffer b = device->allocate(Memory::kDevice, 160).value();
    copies->copy(a.data(), reinterpret_cast<const std::byte*>(in.data()), 160);
    const Event there = copies->record();
    compute->wait(there);
    normalize(*compute, {.in = dense_matrix(a.data(), DType::kF32, 1, 40),
                         .out = dense_matrix(b.data(), DType::kF32, 1, 40)});
    const Event computed = compute->record();
    std::vector<float> out(40);
    copies->wait(computed);
    copies->copy(reinterpret_cast<std::byte*>(out.data()), b.data(), 160);
    const Event back = copies->record();
    REQUIRE(back.wait().ok());
    CHECK(back.done());
    CHECK(computed.done());
    const auto expected = scalar::normalize(NormKind::kLayerNorm, 1e-5f, in, {}, {}, 1, 40);
    CHECK(test::relative_error(out, expected) < 2e-5);
  }
  CHECK(fake_cudart::leaks() == 0);
}

TEST_CASE("a copy may happen before its source is filled, or after, whatever the host does") {
  int early = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    fake_cudart::set_seed(seed);
    const auto device = open_cuda_device(0).value();
    const auto stream = device->new_stream("copy");
    const Buffer there = device->allocate(Memory::kDevice, 64).value();
    std::vector<std::byte> source(64, std::byte{1}), back(64);
    stream->copy(there.data(), source.data(), 64);
    std::fill(source.begin(), source.end(), std::byte{2});
    stream->copy(back.data(), there.data(), 64);
    REQUIRE(stream->record().wait().ok());
    early += back[0] == std::byte{1} ? 1 : 0;
  }
  CHECK(early >= 4);
  CHECK(early <= 10);
}

TEST_CASE("shared memory that a kernel has not written is no number, in every block") {
#ifndef __SANITIZE_ADDRESS__
  std::vector<float> found;
  emulation::run_grid(dim3(3), dim3(1), 0, [&] {
    __shared__ float memory[2];
    found.push_back(memory[1]);
    memory[1] = 1;
  });
  REQUIRE(found.size() == 3);
  for (const float x : found) CHECK(std::isnan(x));
#endif
}

TEST_CASE("asking for an event that has not happened spoils no later launch") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    fake_cudart::set_seed(seed);
    const auto device = open_cuda_device(0).value();
    const auto stream = device->new_stream("compute");
    const std::vector<float> in = test::random_floats(4000, 1);
    const DeviceArray<float> x(*device, *stream, in);
    const DeviceArray<float> out(*device, *stream, in);
    for (int i = 0; i < 5; ++i) {
      normalize(*stream, {.in = x.matrix(4, 1000), .out = out.matrix(4, 1000)});
      (void)stream->record().done();
    }
    CHECK(stream->record().wait().ok());
  }
}

// More rows to look up than the ring for small arrays holds: what an op still needs is not
// overwritten by what a later one uploads.
TEST_CASE("arrays of queued ops survive until they are used") {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    fake_cudart::set_seed(seed);
    const auto device = open_cuda_device(0).value();
    const auto stream = device->new_stream("compute");
    auto& context = *static_cast<cuda::CudaContext*>(stream->native());
    std::vector<std::vector<int32_t>> sent;
    std::vector<std::vector<int32_t>> got(60, std::vector<int32_t>(50000));
    for (size_t i = 0; i < got.size(); ++i) {
      sent.emplace_back(got[i].size(), static_cast<int32_t>(i));
      const int32_t* there = context.upload(std::span<const int32_t>(sent[i]));
      stream->copy(reinterpret_cast<std::byte*>(got[i].data()),
                   reinterpret_cast<const std::byte*>(there), got[i].size() * 4);
    }
    REQUIRE(stream->record().wait().ok());
    CHECK(got == sent);
  }
}

TEST_CASE("memory is zero when it is given out, and keeps what it is filled with") {
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("test");
  for (const Memory kind : {Memory::kDevice, Memory::kPinned}) {
    std::vector<std::byte> bytes(1000, std::byte{7});
    const Buffer memory = device->allocate(kind, bytes.size()).value();
    const auto read = [&] {
      stream->copy(bytes.data(), memory.data(), bytes.size());
      REQUIRE(stream->record().wait().ok());
      return bytes;
    };
    CHECK(read() == std::vector<std::byte>(1000));
    const Buffer other = device->allocate(kind, bytes.size()).value();
    const std::vector<std::byte> filled(1000, std::byte{9});
    stream->copy(other.data(), filled.data(), filled.size());
    REQUIRE(stream->record().wait().ok());
    stream->copy(bytes.data(), other.data(), bytes.size());
    REQUIRE(stream->record().wait().ok());
    CHECK(bytes == filled);
  }
}

TEST_CASE("out of device memory is an error that later allocations survive") {
  fake_cudart::limit_memory(size_t{10} << 20);
  const auto device = open_cuda_device(0).value();
  const Status status = device->allocate(Memory::kDevice, size_t{20} << 20).status();
  CHECK(status.code() == Code::kCapacity);
  CHECK(status.message().find("20971520") != std::string_view::npos);
  CHECK(device->allocate(Memory::kDevice, size_t{1} << 20).ok());
  CHECK(device->memory().free_bytes == size_t{10} << 20);
  fake_cudart::limit_memory(size_t{1} << 40);
}

TEST_CASE("a stream without memory for its work skips it and says why") {
  {
    const auto device = open_cuda_device(0).value();
    const auto whole = device->new_stream("whole"), broken = device->new_stream("broken");
    const auto behind = device->new_stream("behind");
    test::DeviceArray<float> out(*device, *whole, std::vector<float>(8, 1.0f));
    test::DeviceArray<float> table(*device, *whole, std::vector<float>(8, 2.0f));
    const size_t taken = (size_t{1} << 40) - device->memory().free_bytes;
    fake_cudart::limit_memory(taken + 4096);
    const WeightSlab slab{reinterpret_cast<const std::byte*>(table.data()), 1};
    const WeightMatrix rows{std::span(&slab, 1), Format::kF32, MatrixLayout::kRows, 1, 8, 1};
    const int32_t row = 0;
    const GatherArgs gather{.table = rows, .rows = std::span(&row, 1), .out = out.matrix(1, 8)};
    gather_rows(*broken, gather);
    // Nor does anything behind it run, on whatever stream.
    const MatrixView matrix = out.matrix(1, 8);
    normalize(*broken, {.in = matrix, .out = matrix});
    behind->wait(broken->record());
    normalize(*behind, {.in = matrix, .out = matrix});
    behind->copy(reinterpret_cast<std::byte*>(out.data()),
                 reinterpret_cast<std::byte*>(table.data()), 32);
    CHECK(behind->record().wait().code() == Code::kCapacity);
    CHECK(broken->record().wait().code() == Code::kCapacity);
    CHECK(out.read() == std::vector<float>(8, 1.0f));
    fake_cudart::limit_memory(size_t{1} << 40);
    // With memory it does the same work.
    gather_rows(*broken, gather);
    CHECK(broken->record().wait().ok());
    CHECK(out.read() == std::vector<float>(8, 2.0f));
  }
  CHECK(fake_cudart::leaks() == 0);
}

TEST_CASE("a lost device poisons its streams, and those that wait for them") {
  {
    const auto device = open_cuda_device(0).value();
    const auto first = device->new_stream("first"), second = device->new_stream("second");
    const Buffer memory = device->allocate(Memory::kDevice, 64).value();
    const std::vector<std::byte> bytes(64);
    fake_cudart::fail_copy(0);
    first->copy(memory.data(), bytes.data(), 64);
    const Event lost = first->record();
    CHECK(lost.wait().code() == Code::kDeviceLost);
    CHECK(lost.done());
    second->wait(lost);
    CHECK(second->record().wait().code() == Code::kDeviceLost);
    fake_cudart::fail_copy(-1);
  }
  CHECK(fake_cudart::leaks() == 0);
}

}  // namespace
}  // namespace spillway::emulation_test
