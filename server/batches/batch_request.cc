#include "server/batches/batch_request.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/api/json_input.h"
#include "server/api/text.h"

namespace spillway {
namespace {

constexpr int64_t kJsonValuesMax = 1000;
constexpr std::pair<char, int64_t> kUnits[] = {{'m', 60}, {'h', 3600}, {'d', 24 * 3600}};

// Seconds of "24h", "90m", "7d"; 0 for "none"; empty: it is none of these.
std::optional<int64_t> window_seconds(const std::string& window) {
  if (window == "none") return 0;
  int64_t number = 0;
  const char* const last = window.data() + window.size();
  const auto [end, fault] = std::from_chars(window.data(), last, number);
  if (fault != std::errc() || number < 1 || number > 10'000 || last - end != 1) return {};
  for (const auto& [unit, seconds] : kUnits) {
    if (*end == unit) return number * seconds;
  }
  return {};
}

void read_metadata(FieldReader& fields, BatchRecord* record) {
  const nlohmann::json* metadata = fields.find("metadata");
  if (metadata == nullptr) return;
  if (!metadata->is_object()) return fields.fail(invalid_type("metadata", "an object"));
  if (metadata->size() > 16) {
    return fields.fail(invalid_value("metadata", "must not have more than 16 pairs"));
  }
  for (const auto& [key, value] : metadata->items()) {
    if (!value.is_string()) return fields.fail(invalid_type("metadata", "an object of strings"));
    if (count_characters(key) > 64 || count_characters(value.get_ref<const std::string&>()) > 512) {
      return fields.fail(invalid_value(
          "metadata", "must have keys of at most 64 characters and values of at most 512"));
    }
    record->metadata.emplace_back(key, value.get<std::string>());
  }
}

void read_output_expiry(FieldReader& fields, BatchRecord* record) {
  const nlohmann::json* expiry = fields.find("output_expires_after");
  if (expiry == nullptr) return;
  if (!expiry->is_object()) return fields.fail(invalid_type("output_expires_after", "an object"));
  FieldReader inner(*expiry);
  const auto anchor = inner.string("anchor");
  const auto seconds = inner.integer("seconds", kExpiryLeast, kExpiryMost);
  if (inner.failed() || anchor != "created_at" || !seconds) {
    return fields.fail(
        invalid_value("output_expires_after",
                      "must have the anchor created_at and seconds from 3600 to 2592000"));
  }
  record->output_seconds = seconds;
}

}  // namespace

ApiResult<BatchRecord> read_batch_request(const std::string& body, int64_t now) {
  auto parsed = parse_body(body, kJsonValuesMax);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  FieldReader fields(std::get<nlohmann::json>(parsed));
  BatchRecord record;
  const auto file = fields.string("input_file_id");
  const auto endpoint = fields.string("endpoint");
  const auto window = fields.string("completion_window");
  read_metadata(fields, &record);
  read_output_expiry(fields, &record);
  if (!file) fields.fail(missing_parameter("input_file_id"));
  if (!endpoint) fields.fail(missing_parameter("endpoint"));
  if (!window) fields.fail(missing_parameter("completion_window"));
  if (fields.failed()) return fields.error();
  if (*endpoint != "/v1/completions" && *endpoint != "/v1/chat/completions") {
    return invalid_value("endpoint", "must be /v1/completions or /v1/chat/completions");
  }
  const auto seconds = window_seconds(*window);
  if (!seconds) {
    return invalid_value("completion_window", "must be a time such as 24h, 90m or 7d, or none");
  }
  record.input_file = *file;
  record.endpoint = *endpoint;
  record.window = *window;
  record.entered[static_cast<size_t>(BatchState::kValidating)] = now;
  record.expires_at = *seconds == 0 ? 0 : now + *seconds;
  return record;
}

}  // namespace spillway
