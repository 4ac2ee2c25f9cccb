#include "server/batches/batch_api.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "offload/io/file.h"
#include "server/api/json_input.h"
#include "server/batches/batch_request.h"
#include "server/http/multipart.h"
#include "server/http/random_id.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDay = 24 * 3600;
constexpr int64_t kInputSeconds = 30 * kDay;  // OpenAI's default for files of batches
constexpr size_t kFileNameBytesMax = 255;

int64_t unix_now() {
  return static_cast<int64_t>(std::time(nullptr));
}

ApiError error_with(int status, const char* code, std::string message, const char* param = "") {
  ApiError error;
  error.status = status;
  error.code = code;
  error.message = std::move(message);
  error.param = param;
  return error;
}

ApiError no_such(const char* what) {
  return error_with(404, "not_found", std::string("There is no such ") + what + ".");
}

// A page of a list begins behind something that is not there.
ApiError no_such_place(const char* what) {
  ApiError error = no_such(what);
  error.param = "after";
  return error;
}

// A status of the stores, where the client did nothing wrong but perhaps ask for too much.
ApiError of_status(const Status& status, const char* what) {
  if (status.code() == Code::kNotFound) return no_such(what);
  if (status.code() == Code::kCapacity) {
    std::string message(status.message());
    if (!message.empty()) message[0] = static_cast<char>(std::toupper(message[0]));
    return error_with(413, "quota_exceeded", message + ".");
  }
  ApiError error = error_with(507, "storage_failed", "The server cannot store this now.");
  error.type = "server_error";
  error.log_detail = status.message();
  return logged(error, "/v1/files");
}

HttpResponse json_response(const Json& json) {
  HttpResponse response;
  response.body = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return response;
}

Json file_object(const StoredFile& file) {
  return {{"id", file.id},
          {"object", "file"},
          {"bytes", file.bytes},
          {"created_at", file.created_at},
          {"expires_at", file.expires_at ? Json(*file.expires_at) : Json()},
          {"filename", file.name},
          {"purpose", file.purpose},
          {"status", "processed"}};
}

// ---- The query of a list ------------------------------------------------------------------------

class Query {
 public:
  explicit Query(std::string_view text) {
    while (!text.empty()) {
      const std::string_view pair = text.substr(0, std::min(text.find('&'), text.size()));
      text.remove_prefix(std::min(pair.size() + 1, text.size()));
      const size_t equals = std::min(pair.find('='), pair.size());
      values_[std::string(pair.substr(0, equals))] = pair.substr(std::min(equals + 1, pair.size()));
    }
  }

  std::string text(const char* name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? "" : std::string(found->second);
  }

  // The number, `otherwise` if it is not there, or an error.
  ApiResult<int64_t> integer(const char* name, int64_t least, int64_t most,
                             int64_t otherwise) const {
    const std::string value = text(name);
    if (value.empty()) return otherwise;
    int64_t number = 0;
    const auto [end, fault] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (fault == std::errc() && end == value.data() + value.size() && number >= least &&
        number <= most) {
      return number;
    }
    return invalid_value(name, "must be a whole number from " + std::to_string(least) + " to " +
                                   std::to_string(most));
  }

 private:
  std::map<std::string, std::string_view> values_;
};

// ---- Uploads ------------------------------------------------------------------------------------

// Reads a form of /v1/files: `purpose`, `file`, and expires_after[anchor] and [seconds].
class UploadSink : public BodySink {
 public:
  UploadSink(FileStore& files, std::string owner, const std::string& boundary)
      : files_(files),
        owner_(std::move(owner)),
        parser_(boundary, {.on_part = [this](const MultipartPart& part) { begin(part); },
                           .on_data = [this](std::string_view data) { take(data); },
                           .on_part_end = [] {}}) {}

  std::optional<ApiError> write(std::string_view bytes) override {
    if (auto error = parser_.feed(bytes)) return error;
    return error_;
  }

  // The file, once the body is there whole. On a worker thread.
  ApiResult<StoredFile> keep() {
    if (auto error = parser_.finish()) return *std::move(error);
    const std::string purpose = field("purpose");
    if (purpose.empty()) return missing_parameter("purpose");
    if (purpose != "batch") {
      return error_with(400, "invalid_purpose", "The purpose must be batch.", "purpose");
    }
    if (!upload_) return missing_parameter("file");
    auto seconds = expiry();
    if (const auto* error = std::get_if<ApiError>(&seconds)) return *error;
    const int64_t now = unix_now();
    auto kept = files_.keep(*std::exchange(upload_, std::nullopt), name_, purpose, now,
                            now + std::get<int64_t>(seconds));
    if (!kept.ok()) return of_status(kept.status(), "file");
    return std::move(kept).value();
  }

 private:
  void begin(const MultipartPart& part) {
    in_file_ = part.name == "file";
    if (!in_file_) {
      field_ = part.name;
      fields_[field_].clear();
      return;
    }
    if (upload_) return fail(invalid_value("file", "must not be given twice"));
    name_ = part.filename.value_or("upload.jsonl").substr(0, kFileNameBytesMax);
    auto begun = files_.begin(owner_);
    if (!begun.ok()) return fail(of_status(begun.status(), "file"));
    upload_.emplace(std::move(begun).value());
  }

  void take(std::string_view data) {
    if (error_) return;
    if (in_file_) {
      if (const Status status = upload_->append(data); !status.ok()) {
        fail(of_status(status, "file"));
      }
      return;
    }
    std::string& value = fields_[field_];
    if (value.size() + data.size() > MultipartLimits().value_bytes_max) {
      return fail(invalid_value("form", "has a field that is too long"));
    }
    value += data;
  }

  void fail(ApiError error) {
    if (!error_) error_ = std::move(error);
  }

  std::string field(const char* name) const {
    const auto found = fields_.find(name);
    return found == fields_.end() ? "" : found->second;
  }

  ApiResult<int64_t> expiry() const {
    const std::string anchor = field("expires_after[anchor]");
    const std::string seconds = field("expires_after[seconds]");
    if (anchor.empty() && seconds.empty()) return kInputSeconds;
    if (anchor != "created_at") {
      return invalid_value("expires_after[anchor]", "must be created_at");
    }
    return Query("expires_after[seconds]=" + seconds)
        .integer("expires_after[seconds]", kExpiryLeast, kExpiryMost, kInputSeconds);
  }

  FileStore& files_;
  const std::string owner_;
  MultipartParser parser_;
  std::map<std::string, std::string> fields_;
  std::string field_, name_;
  bool in_file_ = false;
  std::optional<FileStore::Upload> upload_;
  std::optional<ApiError> error_;
};

// ---- Batches ------------------------------------------------------------------------------------

// The batch that a body asks for.
ApiResult<BatchRecord> read_batch(const std::string& body, const std::string& owner,
                                  BatchApi& api) {
  auto read = read_batch_request(body, unix_now());
  if (auto* error = std::get_if<ApiError>(&read)) return std::move(*error);
  BatchRecord record = std::get<BatchRecord>(std::move(read));
  const auto found = api.files.find(owner, record.input_file);
  if (!found.ok()) {
    ApiError error = of_status(found.status(), "file");
    error.param = "input_file_id";
    return error;
  }
  if (found->purpose != "batch") {
    return error_with(400, "invalid_purpose", "The file's purpose is not batch.", "input_file_id");
  }
  record.id = "batch_" + random_hex(24);
  record.owner = owner;
  return record;
}

// The object of a batch; of the one that runs now with what has been done since its record.
Json object_now(BatchRecord record, const BatchApi& api) {
  const BatchWorker::Progress progress = api.worker.progress();
  const bool runs = progress.id == record.id && !is_final(record.state);
  if (runs) {
    record.completed = progress.completed;
    record.failed = progress.failed;
    record.prompt_tokens = progress.prompt_tokens;
    record.generated_tokens = progress.generated_tokens;
    record.cached_tokens = progress.cached_tokens;
  }
  Json object = batch_object(record);
  if (runs) {
    const double left = progress.seconds_left;
    object["x_progress"] = {{"lines_done", progress.completed + progress.failed},
                            {"tokens_per_s", progress.tokens_per_second},
                            {"eta_s", left < 0 ? Json() : Json(left)}};
  }
  return object;
}

// ---- Handlers -----------------------------------------------------------------------------------

using Handler = ApiResult<HttpResponse> (*)(BatchApi&, const HttpRequest&,
                                            const std::string& owner);

ApiResult<HttpResponse> create_file(BatchApi&, const HttpRequest& request, const std::string&) {
  auto kept = static_cast<UploadSink&>(*request.sink).keep();
  if (auto* error = std::get_if<ApiError>(&kept)) return std::move(*error);
  return json_response(file_object(std::get<StoredFile>(kept)));
}

ApiResult<HttpResponse> list_files(BatchApi& api, const HttpRequest& request,
                                   const std::string& owner) {
  const Query query(request.query);
  FileStore::Page page;
  auto limit = query.integer("limit", 1, 10'000, 10'000);
  if (auto* error = std::get_if<ApiError>(&limit)) return std::move(*error);
  page.limit = std::get<int64_t>(limit);
  const std::string order = query.text("order");
  if (!order.empty() && order != "asc" && order != "desc") {
    return invalid_value("order", "must be asc or desc");
  }
  page.ascending = order == "asc";
  page.after = query.text("after");
  page.purpose = query.text("purpose");
  const auto listing = api.files.list(owner, page);
  if (listing.status().code() == Code::kNotFound) return no_such_place("file");
  if (!listing.ok()) return of_status(listing.status(), "file");
  Json data = Json::array();
  for (const StoredFile& file : listing->files) data.push_back(file_object(file));
  const bool any = !listing->files.empty();
  return json_response({{"object", "list"},
                        {"data", std::move(data)},
                        {"first_id", any ? Json(listing->files.front().id) : Json()},
                        {"last_id", any ? Json(listing->files.back().id) : Json()},
                        {"has_more", listing->more}});
}

ApiResult<HttpResponse> retrieve_file(BatchApi& api, const HttpRequest& request,
                                      const std::string& owner) {
  const auto file = api.files.find(owner, request.parameters[0]);
  if (!file.ok()) return of_status(file.status(), "file");
  return json_response(file_object(file.value()));
}

// A file's contents, read as the client takes them.
class FileSource : public BodySource {
 public:
  FileSource(File file, uint64_t bytes) : file_(std::move(file)), bytes_(bytes) {}

  uint64_t bytes() const override { return bytes_; }
  Result<std::string> next() override {
    constexpr uint64_t kPiece = uint64_t{256} << 10;
    std::string piece(std::min(kPiece, bytes_ - offset_), '\0');
    if (piece.empty()) return piece;
    SPILLWAY_RETURN_IF_ERROR(
        file_.read(offset_, std::as_writable_bytes(std::span(piece.data(), piece.size()))));
    offset_ += piece.size();
    return piece;
  }

 private:
  const File file_;
  const uint64_t bytes_;
  uint64_t offset_ = 0;
};

ApiResult<HttpResponse> file_content(BatchApi& api, const HttpRequest& request,
                                     const std::string& owner) {
  const auto found = api.files.find(owner, request.parameters[0]);
  if (!found.ok()) return of_status(found.status(), "file");
  Result<File> file = File::open_to_read(api.files.path_of(found->id));
  if (!file.ok()) return of_status(file.status(), "file");
  HttpResponse response;
  response.content_type = "application/octet-stream";
  response.source =
      std::make_shared<FileSource>(std::move(file).value(), static_cast<uint64_t>(found->bytes));
  return response;
}

ApiResult<HttpResponse> delete_file(BatchApi& api, const HttpRequest& request,
                                    const std::string& owner) {
  const std::string& id = request.parameters[0];
  bool in_use = false;
  api.batches.for_each_unfinished([&](const BatchRecord& batch) {
    in_use = batch.owner == owner && batch.input_file == id;
    return !in_use;
  });
  if (in_use) return error_with(409, "file_in_use", "A batch that has not ended needs this file.");
  if (const Status removed = api.files.remove(owner, id); !removed.ok()) {
    return of_status(removed, "file");
  }
  return json_response({{"id", id}, {"object", "file"}, {"deleted", true}});
}

ApiResult<HttpResponse> create_batch(BatchApi& api, const HttpRequest& request,
                                     const std::string& owner) {
  auto read = read_batch(request.body, owner, api);
  if (auto* error = std::get_if<ApiError>(&read)) return std::move(*error);
  const BatchRecord& record = std::get<BatchRecord>(read);
  // Results are not refused when they are written, so it is here that a full store ends more.
  if (const Status room = api.files.check_room(owner); !room.ok()) return of_status(room, "file");
  int64_t unfinished = 0;
  api.batches.for_each_unfinished([&](const BatchRecord& other) {
    if (other.owner == owner) ++unfinished;
    return unfinished < api.unfinished_max;
  });
  if (unfinished >= api.unfinished_max) {
    return error_with(429, "too_many_batches",
                      "You have " + std::to_string(unfinished) +
                          " batches that have not ended, the most that may be; wait for one, or "
                          "cancel one.");
  }
  if (const Status added = api.batches.add(record); !added.ok()) return of_status(added, "batch");
  api.worker.wake();
  return json_response(batch_object(record));
}

ApiResult<HttpResponse> list_batches(BatchApi& api, const HttpRequest& request,
                                     const std::string& owner) {
  const Query query(request.query);
  auto limit = query.integer("limit", 1, 100, 20);
  if (auto* error = std::get_if<ApiError>(&limit)) return std::move(*error);
  const auto listing = api.batches.list(owner, query.text("after"), std::get<int64_t>(limit));
  if (listing.status().code() == Code::kNotFound) return no_such_place("batch");
  if (!listing.ok()) return of_status(listing.status(), "batch");
  Json data = Json::array();
  for (const BatchRecord& record : listing->batches) data.push_back(object_now(record, api));
  const bool any = !listing->batches.empty();
  return json_response({{"object", "list"},
                        {"data", std::move(data)},
                        {"first_id", any ? Json(listing->batches.front().id) : Json()},
                        {"last_id", any ? Json(listing->batches.back().id) : Json()},
                        {"has_more", listing->more}});
}

ApiResult<HttpResponse> retrieve_batch(BatchApi& api, const HttpRequest& request,
                                       const std::string& owner) {
  auto record = api.batches.find(owner, request.parameters[0]);
  if (!record.ok()) return of_status(record.status(), "batch");
  return json_response(object_now(std::move(record).value(), api));
}

ApiResult<HttpResponse> cancel_batch(BatchApi& api, const HttpRequest& request,
                                     const std::string& owner) {
  const auto found = api.batches.find(owner, request.parameters[0]);
  if (!found.ok()) return of_status(found.status(), "batch");
  std::optional<ApiError> refusal;
  auto changed = api.batches.update(found->id, [&](BatchRecord& record) {
    if (record.state == BatchState::kCancelling) return Status();  // Asked again
    if (!may_follow(record.state, BatchState::kCancelling)) {
      refusal = error_with(409, "batch_not_cancellable",
                           "The batch has ended; its status is " +
                               std::string(batch_state_name(record.state)) + ".");
      return Status();
    }
    record.enter(BatchState::kCancelling, unix_now());
    return Status();
  });
  if (refusal) return *std::move(refusal);
  if (!changed.ok()) return of_status(changed.status(), "batch");
  api.worker.wake();
  return json_response(object_now(std::move(changed).value(), api));
}

struct BatchRoute {
  const char* method;
  const char* path;
  Handler answer;
  bool json_body = false;
};

constexpr BatchRoute kRoutes[] = {
    {"POST", "/v1/files", create_file},
    {"GET", "/v1/files", list_files},
    {"GET", "/v1/files/{}", retrieve_file},
    {"GET", "/v1/files/{}/content", file_content},
    {"DELETE", "/v1/files/{}", delete_file},
    {"POST", "/v1/batches", create_batch, true},
    {"GET", "/v1/batches", list_batches},
    {"GET", "/v1/batches/{}", retrieve_batch},
    {"POST", "/v1/batches/{}/cancel", cancel_batch},
};

std::string owner_of(const BatchApi& api, uint64_t key) {
  return key < api.owners.size() ? api.owners[key] : std::string();
}

BodySinkFactory upload_sinks(BatchApi& api) {
  return [&api](const HttpRequest& head) -> std::variant<std::shared_ptr<BodySink>, ApiError> {
    const auto boundary = multipart_boundary(head.content_type);
    if (!boundary) {
      return error_with(415, "unsupported_media_type",
                        "Files are read from a multipart/form-data with a boundary.");
    }
    return std::shared_ptr<BodySink>(
        std::make_shared<UploadSink>(api.files, owner_of(api, head.api_key), *boundary));
  };
}

}  // namespace

std::string latest_batches(const BatchApi& api, uint64_t api_key) {
  constexpr int64_t kShown = 20;
  Json list = Json::array();
  const auto listing = api.batches.list(owner_of(api, api_key), "", kShown);
  if (listing.ok()) {
    for (const BatchRecord& record : listing->batches) list.push_back(object_now(record, api));
  }
  return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void add_batch_routes(Router& router, BatchApi& api) {
  for (const BatchRoute& route : kRoutes) {
    Route added{route.method, route.path,
                [&api, answer = route.answer](HttpRequest request, const ExchangePtr& exchange) {
                  exchange->post_bulk_work([&api, answer, exchange, moved = std::move(request)] {
                    auto result = answer(api, moved, owner_of(api, moved.api_key));
                    if (const auto* error = std::get_if<ApiError>(&result)) {
                      return exchange->respond(error_response(*error));
                    }
                    exchange->respond(std::get<HttpResponse>(std::move(result)));
                  });
                },
                route.json_body};
    if (route.answer == create_file) added.sink = upload_sinks(api);
    router.add(std::move(added));
  }
}

}  // namespace spillway
