// A device whose memory runs out in mid-run: the work that needed it fails and says so, once; what
// comes after goes on.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <catch2/catch.hpp>

#include "kernels/cuda/cuda_context.h"
#include "kernels/ops.h"
#include "server/runtime.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/golden.h"
#include "tests/support/random_data.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::out_of_memory_test {
namespace {

using test::CollectingSink;
using test::DeviceArray;

constexpr size_t kUnlimited = size_t{1} << 40;

// Leaves so much device memory to be had.
class MemoryLeft {
 public:
  explicit MemoryLeft(size_t bytes) {
    const size_t taken = kUnlimited - open_cuda_device(0).value()->memory().free_bytes;
    fake_cudart::limit_memory(taken + bytes);
  }
  ~MemoryLeft() { fake_cudart::limit_memory(kUnlimited); }
  MemoryLeft(const MemoryLeft&) = delete;
  MemoryLeft& operator=(const MemoryLeft&) = delete;
};

TEST_CASE("a device without memory for cuBLAS fails that work alone") {
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("compute");
  auto& context = *static_cast<cuda::CudaContext*>(stream->native());
  for (const cublasStatus_t why : {CUBLAS_STATUS_NOT_INITIALIZED, CUBLAS_STATUS_ALLOC_FAILED}) {
    fake_cudart::refuse_blas(why);
    CHECK(context.blas() == nullptr);
    fake_cudart::refuse_blas(CUBLAS_STATUS_SUCCESS);
    const Status status = stream->record().wait();
    INFO(status.message());
    CHECK(status.code() == Code::kCapacity);
    CHECK_THAT(std::string(status.message()), Catch::Contains("starting cuBLAS"));
    CHECK(stream->record().wait().ok());
  }
  CHECK(context.blas() != nullptr);
}

TEST_CASE("a product that cuBLAS does not have fails alone, and the device goes on") {
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("compute");
  const auto product = [&](DType type) {
    const test::PackedMatrix packed(device->matrix_layout(plain_format(type)), plain_format(type),
                                    test::random_floats(16 * 64, 1), 16, 64, 16);
    const test::DeviceMatrix weight(*device, *stream, packed);
    const DeviceArray<uint16_t> in(*device, *stream, std::vector<uint16_t>(9 * 64));
    const DeviceArray<float> out(*device, *stream, std::vector<float>(9 * 16));
    const MatrixView rows = dense_matrix(reinterpret_cast<std::byte*>(in.data()), type, 9, 64);
    linear(*stream, {.in = rows, .weight = weight.matrix(), .out = out.matrix(9, 16)});
    return stream->record().wait();
  };
  for (const cublasStatus_t why : {CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_INVALID_VALUE,
                                   CUBLAS_STATUS_ARCH_MISMATCH, CUBLAS_STATUS_INTERNAL_ERROR}) {
    fake_cudart::refuse_products(CUDA_R_16BF, why);
    const Status status = product(DType::kBF16);
    INFO(status.message());
    CHECK(status.code() == Code::kInfeasible);
    CHECK_THAT(std::string(status.message()), Catch::Contains("a matrix product"));
    CHECK(product(DType::kF16).ok());
    fake_cudart::refuse_products(CUDA_R_16BF, CUBLAS_STATUS_SUCCESS);
    CHECK(product(DType::kBF16).ok());
  }
}

TEST_CASE("work without scratch memory fails alone") {
  {
    const auto device = open_cuda_device(0).value();
    const auto stream = device->new_stream("compute");
    auto& context = *static_cast<cuda::CudaContext*>(stream->native());
    const std::vector<float> in = test::random_floats(40, 1), ones(40, 1.0f);
    const DeviceArray<float> x(*device, *stream, in), out(*device, *stream, ones);
    const NormArgs norm{.in = x.matrix(1, 40), .out = out.matrix(1, 40)};
    const MemoryLeft left(size_t{64} << 10);

    const Event before = stream->record();
    CHECK(context.scratch(size_t{1} << 20) == nullptr);
    normalize(*stream, norm);  // Skipped, as if it needed what was not computed.
    const Event behind = stream->record(), later = stream->record();
    CHECK(before.wait().ok());
    const Status status = behind.wait();
    INFO(status.message());
    CHECK(status.code() == Code::kCapacity);
    CHECK(status.message().find("scratch memory") != std::string_view::npos);
    CHECK(out.read() == ones);

    CHECK(context.scratch(4096) != nullptr);
    normalize(*stream, norm);
    CHECK(stream->record().wait().ok());
    const auto expected = scalar::normalize(NormKind::kLayerNorm, 1e-5f, in, {}, {}, 1, 40);
    CHECK(test::relative_error(out.read(), expected) < 2e-5);
    // Whoever held an event of what was skipped hears of it, however late.
    CHECK(later.wait().code() == Code::kCapacity);
    const auto other = device->new_stream("other");
    other->wait(later);
    CHECK(other->record().wait().code() == Code::kCapacity);
    CHECK(other->record().wait().ok());
  }
  CHECK(fake_cudart::leaks() == 0);
}

TEST_CASE("no kernel is blamed for memory that could not be had") {
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("compute");
  const DeviceArray<float> x(*device, *stream, test::random_floats(40, 1));
  const MemoryLeft left(4096);
  CHECK(device->allocate(Memory::kDevice, 8192).status().code() == Code::kCapacity);
  normalize(*stream, {.in = x.matrix(1, 40), .out = x.matrix(1, 40)});
  CHECK(stream->record().wait().ok());
}

struct Answer {
  Finish finish;
  std::vector<int32_t> tokens;
};
Answer ask(Runtime& runtime, size_t prompt_tokens) {
  Request request;
  request.prompt = std::vector<int32_t>(prompt_tokens, 7);
  request.max_tokens = 4;
  request.ignore_eos = true;
  const auto sink = std::make_shared<CollectingSink>();
  REQUIRE(runtime.scheduler().submit(request, sink).ok());
  const Finish finish = sink->wait();
  return {finish, sink->tokens};
}

TEST_CASE("a request too large for the memory that is left ends, and the next ones are answered") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  EngineFlags flags;
  flags.device = "cuda";
  // So that a long prompt's layers need more memory, to expand weights in, than a short one's.
  flags.format = Format::kQ4;
  flags.block = 4;
  flags.weights = GENERATE(TierPercent{100, 0, 0}, TierPercent{30, 40, 30});
  flags.kv = {30, 40, 30};
  flags.activations = {40, 30, 30};
  flags.host_memory_bytes = flags.device_memory_bytes = uint64_t{1} << 30;
  const auto runtime = Runtime::open(checkpoint, flags, {}).value();
  const Answer first = ask(*runtime, 5);
  REQUIRE(first.finish.status.ok());
  const MemoryLeft left(0);
  for (int i = 0; i < 2; ++i) {
    const Answer large = ask(*runtime, kFewRows + 8);
    INFO(large.finish.status.message());
    CHECK(large.finish.status.code() == Code::kCapacity);
    CHECK(runtime->scheduler().stats().healthy);
    const Answer small = ask(*runtime, 5);
    INFO(small.finish.status.message());
    CHECK(small.finish.status.ok());
    CHECK(small.tokens == first.tokens);
  }
}

}  // namespace
}  // namespace spillway::out_of_memory_test
