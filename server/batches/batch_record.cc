#include "server/batches/batch_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/strict_json.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, kBatchStates> kNames = {
    "validating", "in_progress", "finalizing", "completed",
    "failed",     "expired",     "cancelling", "cancelled"};
constexpr size_t kTextMax = size_t{1} << 20;

size_t index_of(BatchState state) {
  return static_cast<size_t>(state);
}

Json or_null(int64_t value) {
  return value == 0 ? Json() : Json(value);
}

Json or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json pairs_json(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json json = Json::object();
  for (const auto& [key, value] : pairs) json[key] = value;
  return json;
}

Json fault_json(const BatchFault& fault) {
  return {{"code", fault.code},
          {"message", fault.message},
          {"param", or_null(fault.param)},
          {"line", or_null(fault.line)}};
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string_view batch_state_name(BatchState state) {
  return kNames[index_of(state)];
}

bool is_final(BatchState state) {
  return state == BatchState::kCompleted || state == BatchState::kFailed ||
         state == BatchState::kExpired || state == BatchState::kCancelled;
}

bool may_follow(BatchState from, BatchState to) {
  switch (to) {
    case BatchState::kValidating:
      return false;
    case BatchState::kInProgress:
    case BatchState::kFailed:
      return from == BatchState::kValidating;
    case BatchState::kFinalizing:
      return from == BatchState::kInProgress;
    case BatchState::kCompleted:
      return from == BatchState::kFinalizing;
    case BatchState::kExpired:
      return from == BatchState::kInProgress || from == BatchState::kFinalizing;
    case BatchState::kCancelling:
      return from == BatchState::kValidating || from == BatchState::kInProgress ||
             from == BatchState::kFinalizing;
    case BatchState::kCancelled:
      return from == BatchState::kCancelling;
  }
  return false;
}

void BatchRecord::enter(BatchState next, int64_t now) {
  SPILLWAY_CHECK(may_follow(state, next));
  state = next;
  // A clock that was set back must not make it take less than no time.
  entered[index_of(next)] = std::max(now, *std::max_element(entered.begin(), entered.end()));
}

Json batch_object(const BatchRecord& record) {
  const auto at = [&](BatchState state) { return or_null(record.entered[index_of(state)]); };
  Json errors;
  if (!record.faults.empty()) {
    errors = {{"object", "list"}, {"data", Json::array()}};
    for (const BatchFault& fault : record.faults) errors["data"].push_back(fault_json(fault));
  }
  Json json = {
      {"id", record.id},
      {"object", "batch"},
      {"endpoint", record.endpoint},
      {"model", or_null(record.model)},
      {"errors", std::move(errors)},
      {"input_file_id", record.input_file},
      {"completion_window", record.window},
      {"status", batch_state_name(record.state)},
      {"output_file_id", or_null(record.output_file)},
      {"error_file_id", or_null(record.error_file)},
      {"created_at", record.entered[index_of(BatchState::kValidating)]},
      {"in_progress_at", at(BatchState::kInProgress)},
      {"expires_at", or_null(record.expires_at)},
      {"finalizing_at", at(BatchState::kFinalizing)},
      {"completed_at", at(BatchState::kCompleted)},
      {"failed_at", at(BatchState::kFailed)},
      {"expired_at", at(BatchState::kExpired)},
      {"cancelling_at", at(BatchState::kCancelling)},
      {"cancelled_at", at(BatchState::kCancelled)},
      {"request_counts",
       {{"total", record.total}, {"completed", record.completed}, {"failed", record.failed}}},
      {"usage",
       {{"input_tokens", record.prompt_tokens},
        {"input_tokens_details", {{"cached_tokens", record.cached_tokens}}},
        {"output_tokens", record.generated_tokens},
        {"output_tokens_details", {{"reasoning_tokens", 0}}},
        {"total_tokens", record.prompt_tokens + record.generated_tokens}}},
      {"metadata", record.metadata.empty() ? Json() : pairs_json(record.metadata)}};
  if (!record.detail.empty()) json["x_status_detail"] = record.detail;
  return json;
}

std::string batch_record_text(const BatchRecord& record) {
  Json faults = Json::array();
  for (const BatchFault& fault : record.faults) faults.push_back(fault_json(fault));
  return dump({{"version", 1},
               {"id", record.id},
               {"owner", record.owner},
               {"endpoint", record.endpoint},
               {"input_file", record.input_file},
               {"window", record.window},
               {"metadata", pairs_json(record.metadata)},
               {"output_seconds", record.output_seconds ? Json(*record.output_seconds) : Json()},
               {"state", batch_state_name(record.state)},
               {"entered", record.entered},
               {"expires_at", record.expires_at},
               {"detail", record.detail},
               {"model", record.model},
               {"models", record.models},
               {"identity", record.identity},
               {"faults", std::move(faults)},
               {"output_file", record.output_file},
               {"error_file", record.error_file},
               {"total", record.total},
               {"completed", record.completed},
               {"failed", record.failed},
               {"prompt_tokens", record.prompt_tokens},
               {"cached_tokens", record.cached_tokens},
               {"generated_tokens", record.generated_tokens}});
}

Result<BatchRecord> read_batch_record(std::string_view text) {
  SPILLWAY_ASSIGN_OR_RETURN(const nlohmann::json json, parse_json_object(text, "a batch"));
  JsonReader fields(json, "a batch");
  fields.version(1, "a batch", "use the program that wrote it");
  BatchRecord record;
  record.id = fields.string("id", kTextMax);
  record.owner = fields.string("owner", kTextMax);
  record.endpoint = fields.string("endpoint", kTextMax);
  record.input_file = fields.string("input_file", kTextMax);
  record.window = fields.string("window", kTextMax);
  for (const auto& [key, value] : fields.object("metadata").items()) {
    if (value.is_string()) record.metadata.emplace_back(key, value.get<std::string>());
  }
  record.output_seconds = fields.find_integer("output_seconds", 0, INT64_MAX);
  const std::string state = fields.string("state", kTextMax);
  const auto named = std::find(kNames.begin(), kNames.end(), state);
  if (named == kNames.end()) fields.fail("has no known state");
  const nlohmann::json& entered = fields.array("entered", kBatchStates);
  for (size_t i = 0; i < std::min(entered.size(), kBatchStates); ++i) {
    record.entered[i] = whole_number(entered[i]).value_or(0);
  }
  record.expires_at = fields.integer("expires_at", 0, INT64_MAX);
  record.detail = fields.string_or("detail", kTextMax, "");
  record.model = fields.string_or("model", kTextMax, "");
  if (const auto models = json.find("models"); models != json.end() && models->is_array()) {
    for (const nlohmann::json& name : *models) {
      if (name.is_string()) record.models.push_back(name.get<std::string>());
    }
  }
  record.identity = fields.string_or("identity", kTextMax, "");
  for (const nlohmann::json& fault : fields.array("faults", kBatchFaultsMax)) {
    JsonReader one(fault);
    record.faults.push_back(
        {one.string_or("code", kTextMax, ""), one.string_or("message", kTextMax, ""),
         one.string_or("param", kTextMax, ""), one.integer_or("line", 0, INT64_MAX, 0)});
  }
  record.output_file = fields.string_or("output_file", kTextMax, "");
  record.error_file = fields.string_or("error_file", kTextMax, "");
  record.total = fields.integer("total", 0, INT64_MAX);
  record.completed = fields.integer("completed", 0, INT64_MAX);
  record.failed = fields.integer("failed", 0, INT64_MAX);
  record.prompt_tokens = fields.integer("prompt_tokens", 0, INT64_MAX);
  record.cached_tokens = fields.integer_or("cached_tokens", 0, INT64_MAX, 0);
  record.generated_tokens = fields.integer("generated_tokens", 0, INT64_MAX);
  if (fields.failed()) return corruption(std::string(fields.status().message()));
  record.state = static_cast<BatchState>(named - kNames.begin());
  return record;
}

}  // namespace spillway
