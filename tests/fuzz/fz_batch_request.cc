// The body of POST /v1/batches on any bytes: what is accepted keeps its bounds and survives the
// table of batches; what is refused has a small, valid error.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/check.h"
#include "server/batches/batch_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  constexpr int64_t kNow = 1'700'000'000;
  const auto read =
      read_batch_request(std::string(reinterpret_cast<const char*>(data), size), kNow);
  if (const auto* error = std::get_if<ApiError>(&read)) {
    SPILLWAY_CHECK(error->status == 400);
    SPILLWAY_CHECK(error->json().size() < 16 * 1024 && nlohmann::json::accept(error->json()));
    return 0;
  }
  const BatchRecord& record = std::get<BatchRecord>(read);
  SPILLWAY_CHECK(record.expires_at == 0 || record.expires_at > kNow);
  SPILLWAY_CHECK(record.metadata.size() <= 16);
  const auto again = read_batch_record(batch_record_text(record));
  SPILLWAY_CHECK(again.ok());
  SPILLWAY_CHECK(again->input_file == record.input_file && again->metadata == record.metadata &&
                 again->expires_at == record.expires_at);
  SPILLWAY_CHECK(!batch_object(record)
                      .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                      .empty());
  return 0;
}
