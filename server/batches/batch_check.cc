#include "server/batches/batch_check.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "server/api/json_input.h"
#include "server/batches/batch_line.h"

namespace spillway {
namespace {

constexpr int64_t kLinesBetweenStops = 256;

BatchFault fault_of(const ApiError& error, int64_t line) {
  const bool no_json = error.code == "invalid_json" || error.code == "duplicate_key" ||
                       (error.code == "invalid_type" && error.param.empty());
  return {no_json ? "invalid_json_line" : error.code, error.message, error.param, line};
}

std::optional<BatchFault> check_line(const InputLine& text, BatchLine* line,
                                     const std::string& endpoint, const ApiContext& context,
                                     CustomIds& ids, std::vector<std::string>* models) {
  const auto fault = [&](const char* code, std::string message, const char* param) {
    return BatchFault{code, std::move(message), param, text.number};
  };
  *line = read_batch_line(text, context);
  if (line->error) {
    BatchFault found = fault_of(*line->error, text.number);
    if (found.param == "method") found.code = "invalid_method";
    if (found.param == "url") found.code = "invalid_url";
    return found;
  }
  if (!line->custom_id || line->custom_id->empty()) {
    return fault("missing_required_parameter", "The line has no custom_id.", "custom_id");
  }
  if (ids.check(line)) {
    return fault("duplicate_custom_id", "The custom_id is that of an earlier line, too.",
                 "custom_id");
  }
  if (!line->url) return fault("missing_required_parameter", "The line has no url.", "url");
  if (*line->url != endpoint) {
    return fault("mismatched_url", "The url is not the batch's endpoint, " + endpoint + ".", "url");
  }
  const auto body = nlohmann::json::parse(line->body);
  FieldReader fields(body);
  const auto name = fields.string("model");
  const bool streams = fields.flag("stream", false);
  if (fields.failed()) return fault_of(fields.error(), text.number);
  const auto& served = context.model_names;
  if (name && std::find(served.begin(), served.end(), *name) == served.end()) {
    return fault("model_not_found", model_not_found(served).message, "body.model");
  }
  if (name && std::find(models->begin(), models->end(), *name) == models->end()) {
    models->push_back(*name);
  }
  if (streams)
    return fault("stream_not_allowed", "A line of a batch cannot stream.", "body.stream");
  // A wrong one is the line's error when it runs; 0 asks for no limit.
  const nlohmann::json* timeout = fields.find("timeout");
  if (timeout != nullptr && timeout->is_number() && timeout->get<double>() > 0) {
    return fault("timeout_not_allowed",
                 "A line of a batch has no timeout of its own; the batch's completion_window "
                 "limits the time of all its lines.",
                 "body.timeout");
  }
  return std::nullopt;
}

}  // namespace

Result<BatchCheck> check_batch(BatchInput& input, const std::string& endpoint,
                               const ApiContext& context, int64_t lines_max,
                               const std::function<bool()>& stop) {
  BatchCheck check;
  CustomIds ids;
  InputLine text;
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, input.next(&text));
    if (!found) break;
    if (++check.summary.rows % kLinesBetweenStops == 0 && stop()) {
      return Status(Code::kCancelled, "interrupted");
    }
    check.summary.last_row = text.number;
    if (check.faults.size() >= kBatchFaultsMax) continue;
    BatchLine line;
    if (auto fault = check_line(text, &line, endpoint, context, ids, &check.models)) {
      check.faults.push_back(*std::move(fault));
    }
  }
  check.summary.hash = input.hash();
  input.rewind();
  if (check.summary.rows == 0) {
    check.faults.push_back({"empty_file", "The input file has no lines.", "input_file_id", 0});
  } else if (check.summary.rows > lines_max) {
    check.faults.insert(check.faults.begin(),
                        {"too_many_requests",
                         "The input file has " + std::to_string(check.summary.rows) +
                             " lines; a batch has at most " + std::to_string(lines_max) + ".",
                         "input_file_id", 0});
    if (check.faults.size() > kBatchFaultsMax) check.faults.pop_back();
  }
  return check;
}

}  // namespace spillway
