#include "server/batches/batch_line.h"

#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "server/api/chat_parse.h"
#include "server/api/json_input.h"

namespace spillway {

namespace {

constexpr size_t kCustomIdBytesMax = 512;

// Reads only the fields of the envelope; the body is left to parse_completion() or parse_chat().
void read_envelope(nlohmann::json& object, BatchLine* line, std::string* prompt) {
  FieldReader fields(object);
  const auto id = fields.string("custom_id");
  if (id && id->size() > kCustomIdBytesMax) {
    fields.fail(invalid_value("custom_id", "must have at most 512 bytes"));
  } else {
    line->custom_id = id;
  }
  const nlohmann::json* body = &object;
  if (object.contains("body") || object.contains("method") || object.contains("url")) {
    if (fields.string("method").value_or("POST") != "POST") {
      fields.fail(invalid_value("method", "must be POST"));
    }
    line->url = fields.string("url");
    const std::string url = line->url.value_or("/v1/completions");
    line->chat = url == "/v1/chat/completions";
    if (!line->chat && url != "/v1/completions") {
      fields.fail(invalid_value("url", "must be /v1/completions or /v1/chat/completions"));
    }
    body = fields.find("body");
    if (body == nullptr) {
      fields.fail(missing_parameter("body"));
    } else if (!body->is_object()) {
      fields.fail(invalid_type("body", "an object"));
    }
  } else {
    object.erase("custom_id");
    line->chat = object.contains("messages") && !object.contains("prompt");
  }
  if (fields.failed()) {
    line->error = fields.error();
    return;
  }
  const auto seed = body->find("seed");
  line->seeded = seed != body->end() && !seed->is_null() && *seed != -1;
  line->body = body->dump();
  if (prompt == nullptr) return;
  const auto found = body->find(line->chat ? "messages" : "prompt");
  if (found == body->end()) return;
  *prompt = found->is_string() ? found->get<std::string>() : found->dump();
}

// Rewords an error about a request's body, since here the JSON reader read the whole line.
ApiError about_line(ApiError error) {
  for (const std::string_view body : {"The body ", "'body' "}) {
    if (error.message.compare(0, body.size(), body) != 0) continue;
    error.message.replace(0, body.size(), "The line ");
    error.param.clear();
  }
  return error;
}

uint64_t mixed(uint64_t value) {  // The finaliser of SplitMix64.
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

uint64_t row_seed(uint64_t run_seed, int64_t line, int64_t prompt) {
  const uint64_t row = mixed(run_seed + 0x9e3779b97f4a7c15u) ^ static_cast<uint64_t>(line);
  return mixed(mixed(row) + static_cast<uint64_t>(prompt));
}

std::string quoted_json(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string envelope(const std::string& run_id, const BatchLine& line, int status,
                     const std::string& body, const std::string& error) {
  const std::string id = run_id + "_" + std::to_string(line.number);
  return "{\"id\":\"batch_req_" + id +
         "\",\"custom_id\":" + (line.custom_id ? quoted_json(*line.custom_id) : "null") +
         ",\"response\":{\"status_code\":" + std::to_string(status) + ",\"request_id\":\"req_" +
         id + "\",\"body\":" + body + "},\"error\":" + error + "}";
}

}  // namespace

BatchLine read_batch_line(const InputLine& line, const ApiContext& context, std::string* prompt) {
  BatchLine read;
  if (prompt != nullptr) prompt->clear();
  read.number = line.number;
  if (line.too_long) {
    read.error = ApiError();
    read.error->message = "The line is longer than 1 MiB.";
    read.error->code = "line_too_long";
    return read;
  }
  auto parsed = parse_body(line.text, context.limits.json_values_max);
  if (auto* error = std::get_if<ApiError>(&parsed)) {
    read.error = about_line(std::move(*error));
  } else {
    read_envelope(std::get<nlohmann::json>(parsed), &read, prompt);
  }
  return read;
}

ApiResult<CompletionCall> parse_batch_line(const BatchLine& line, const ApiContext& context,
                                           uint64_t run_seed) {
  ApiResult<CompletionCall> parsed =
      line.chat ? parse_chat(line.body, context) : parse_completion(line.body, context);
  auto* call = std::get_if<CompletionCall>(&parsed);
  if (call == nullptr) return parsed;
  if (call->stream) {
    return invalid_value("stream", "must be false in a batch: the answer is a line of the output");
  }
  if (call->timeout_seconds > 0) {
    return invalid_value("timeout",
                         "must not be set in a batch: a line has no time of its own. Over HTTP the "
                         "batch's completion_window limits the time of all its lines");
  }
  for (size_t i = 0; !line.seeded && i < call->requests.size(); ++i) {
    const int64_t prompt = static_cast<int64_t>(i) / call->samples;
    const auto sample = static_cast<int32_t>(static_cast<int64_t>(i) % call->samples);
    call->requests[i].sampling.seed = sample_seed(row_seed(run_seed, line.number, prompt), sample);
  }
  return parsed;
}

bool CustomIds::check(BatchLine* line) {
  if (!line->custom_id) return false;
  const XXH128_hash_t hash = XXH3_128bits(line->custom_id->data(), line->custom_id->size());
  if (seen_.emplace(hash.low64, hash.high64).second || line->error) return false;
  refuse_repeated_id(line);
  return true;
}

void refuse_repeated_id(BatchLine* line) {
  if (line->error) return;
  line->error = invalid_value("custom_id", "is that of an earlier line, too");
  line->error->code = "duplicate_custom_id";
  line->body.clear();
}

ApiError crashed_row() {
  ApiError error;
  error.status = 500;
  error.type = "server_error";
  error.code = "row_crashed";
  error.message =
      "The program crashed with this request running, and again with nothing else running; it was "
      "not tried again.";
  return error;
}

void IgnoredNames::add(const CompletionCall& call) {
  constexpr size_t kNamesMax = 8;
  if (call.ignored.empty() && call.ignored_more == 0) return;
  ++lines_;
  for (const std::string& name : call.ignored) {
    if (names_.size() < kNamesMax) names_.insert(name);
  }
}

std::string IgnoredNames::text() const {
  if (lines_ == 0) return "";
  std::string names;
  for (const std::string& name : names_) names += (names.empty() ? "" : ", ") + name;
  if (names.empty()) names = "(names that are no plain words)";
  return std::to_string(lines_) +
         (lines_ == 1 ? " line has parameters" : " lines have parameters") +
         " that mean nothing here: " + names;
}

std::string answer_line(const std::string& run_id, const BatchLine& line,
                        const std::string& answer_json) {
  return envelope(run_id, line, 200, answer_json, "null");
}

std::string error_line(const std::string& run_id, const BatchLine& line, const ApiError& error) {
  // Some readers look at the status code, others at `error`; set both.
  const std::string brief =
      "{\"code\":" + quoted_json(error.code.empty() ? error.type : error.code) +
      ",\"message\":" + quoted_json(error.message) + "}";
  return envelope(run_id, line, error.status, error.json(), brief);
}

CompletionHead batch_head(const std::string& run_id, const BatchLine& line, int64_t created) {
  return {(line.chat ? "chatcmpl-" : "cmpl-") + run_id + "-" + std::to_string(line.number),
          created};
}

}  // namespace spillway
