#include "server/client/batches_client.h"

#include <fcntl.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/quote.h"
#include "offload/io/file.h"
#include "server/http/random_id.h"

namespace spillway {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
constexpr size_t kShownBytesMax = 600;

// A server's text in one line of ours.
std::string plain(std::string_view text) {
  std::string out(text.substr(0, kShownBytesMax));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  }
  return out + (text.size() > kShownBytesMax ? "..." : "");
}

Json parsed(const std::string& body) {
  return Json::parse(body, nullptr, /*allow_exceptions=*/false);
}

std::string text_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t number_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

Json member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_object() ? *found : Json::object();
}

// An id goes into paths of later calls and into names of files, so it must be a plain word.
std::string id_of(const Json& object, const char* name) {
  const std::string id = text_of(object, name);
  return is_safe_name(id) && id.front() != '.' ? id : "";
}

Status no_batch_api(const ServerAddress& address) {
  return {Code::kIoError, address.text +
                              " does not answer as a server with files and batches "
                              "does: it is another program, or an older one"};
}

RemoteBatch batch_of(const Json& json) {
  RemoteBatch batch;
  batch.id = id_of(json, "id");
  batch.status = text_of(json, "status");
  batch.input_file = id_of(json, "input_file_id");
  batch.output_file = id_of(json, "output_file_id");
  batch.error_file = id_of(json, "error_file_id");
  batch.detail = plain(text_of(json, "x_status_detail"));
  const Json counts = member(json, "request_counts");
  batch.total = number_of(counts, "total");
  batch.completed = number_of(counts, "completed");
  batch.failed = number_of(counts, "failed");
  const Json usage = member(json, "usage");
  batch.prompt_tokens = number_of(usage, "input_tokens");
  batch.generated_tokens = number_of(usage, "output_tokens");
  const Json faults = member(json, "errors").value("data", Json::array());
  for (const Json& fault : faults.is_array() ? faults : Json::array()) {
    if (!fault.is_object()) continue;
    const int64_t line = number_of(fault, "line");
    batch.faults.push_back((line > 0 ? "line " + std::to_string(line) + ": " : "") +
                           plain(text_of(fault, "message")));
  }
  return batch;
}

Result<RemoteBatch> read_batch(const HttpReply& reply, const ServerAddress& address,
                               const std::string& what) {
  if (reply.status != 200) return error_of(reply, what);
  const Json json = parsed(reply.body);
  if (!json.is_object()) return no_batch_api(address);
  RemoteBatch batch = batch_of(json);
  if (batch.id.empty() || batch.status.empty()) return no_batch_api(address);
  return batch;
}

// The form of an upload around the contents of the file.
struct Form {
  explicit Form(std::string_view name) : boundary("spillway-" + random_hex(32)) {
    std::string shown;
    for (const char c : name) {
      const bool bad = c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ' || c == 0x7f;
      shown += bad ? '_' : c;
    }
    begin = "--" + boundary +
            "\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--" + boundary +
            "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + shown +
            "\"\r\nContent-Type: application/jsonl\r\n\r\n";
    end = "\r\n--" + boundary + "--\r\n";
  }

  const std::string boundary;
  std::string begin, end;
};

// The form with a file in it, piece by piece.
BodyPieces pieces_of(const Form& form, const File& file, uint64_t file_bytes,
                     const std::function<void(uint64_t, uint64_t)>& show) {
  BodyPieces pieces;
  pieces.bytes = form.begin.size() + file_bytes + form.end.size();
  auto step = std::make_shared<int>(0);
  auto offset = std::make_shared<uint64_t>(0);
  pieces.next = [&form, &file, file_bytes, &show, step, offset]() -> Result<std::string> {
    if (*step == 0) {
      *step = file_bytes > 0 ? 1 : 2;
      return form.begin;
    }
    if (*step == 2) return form.end;
    std::string piece(std::min(kPieceBytes, file_bytes - *offset), '\0');
    SPILLWAY_RETURN_IF_ERROR(
        file.read(*offset, std::as_writable_bytes(std::span(piece.data(), piece.size()))));
    *offset += piece.size();
    if (show) show(*offset, file_bytes);
    if (*offset == file_bytes) *step = 2;
    return piece;
  };
  return pieces;
}

}  // namespace

bool RemoteBatch::ended() const {
  return status == "completed" || status == "failed" || status == "expired" ||
         status == "cancelled";
}

Status error_of(const HttpReply& reply, const std::string& what) {
  const Json json = parsed(reply.body);
  const Json error = json.is_object() ? member(json, "error") : Json::object();
  const std::string code = plain(text_of(error, "code"));
  std::string message = plain(text_of(error, "message"));
  if (message.empty()) message = "the answer does not say why";
  std::string text = what + ": the server answers " + std::to_string(reply.status) +
                     (code.empty() ? "" : " " + code) + ": " + message;
  if (reply.status == 401) text += " (--api-key-file FILE, or SPILLWAY_API_KEY)";
  if (reply.status == 404 && code == "unknown_url") {
    text += " (a server has no files and batches with --batch-dir off)";
  }
  const bool callers = reply.status >= 400 && reply.status < 500 && reply.status != 429;
  return {callers ? Code::kInvalidArgument : Code::kIoError, text};
}

Result<std::string> BatchesClient::upload(const std::string& path,
                                          const std::function<void(uint64_t, uint64_t)>& show) {
  SPILLWAY_ASSIGN_OR_RETURN(const File file, File::open_to_read(path));
  SPILLWAY_ASSIGN_OR_RETURN(const FileStamp stamp, file.stamp());
  const Form form(path.substr(path.rfind('/') + 1));
  const auto make = [&]() -> Result<HttpCall> {
    HttpCall call;
    call.method = "POST";
    call.path = "/v1/files";
    call.content_type = "multipart/form-data; boundary=" + form.boundary;
    call.pieces = pieces_of(form, file, stamp.bytes, show);
    return call;
  };
  SPILLWAY_ASSIGN_OR_RETURN(const HttpReply reply, caller_.call(make));
  if (reply.status != 200) return error_of(reply, "sending " + path);
  const Json json = parsed(reply.body);
  const std::string id = json.is_object() ? id_of(json, "id") : "";
  if (id.empty()) return no_batch_api(address());
  SPILLWAY_ASSIGN_OR_RETURN(const FileStamp after, file.stamp());
  if (!(after == stamp)) {
    return corruption(path + " was written to while it was sent; run the command again");
  }
  return id;
}

Result<RemoteBatch> BatchesClient::batch_over(const std::string& file) {
  SPILLWAY_ASSIGN_OR_RETURN(const HttpReply reply,
                            caller_.call(HttpCall{.path = "/v1/batches?limit=100"}));
  if (reply.status != 200) return error_of(reply, "listing batches");
  const Json json = parsed(reply.body);
  const Json list = json.is_object() ? json.value("data", Json::array()) : Json::array();
  for (const Json& one : list.is_array() ? list : Json::array()) {
    if (one.is_object() && id_of(one, "input_file_id") == file) return batch_of(one);
  }
  return not_found("no batch over " + file);
}

Result<RemoteBatch> BatchesClient::create(const std::string& file, const std::string& endpoint,
                                          const std::string& window) {
  HttpCall call;
  call.method = "POST";
  call.path = "/v1/batches";
  call.content_type = "application/json";
  call.body =
      Json{{"input_file_id", file}, {"endpoint", endpoint}, {"completion_window", window}}.dump(
          -1, ' ', false, Json::error_handler_t::replace);
  call.to_its_end = true;
  const PatientCaller::Options& options = caller_.options();
  const double until = steady_seconds() + options.patience_seconds;
  for (double pause = options.first_pause_seconds;;
       pause = std::min(2 * pause, options.pause_seconds_max)) {
    SPILLWAY_ASSIGN_OR_RETURN(const HttpReply reply, caller_.call(call, /*once=*/true));
    if (!PatientCaller::may_have_arrived(reply)) {
      return read_batch(reply, address(), "starting the batch");
    }
    // The file is of this call alone, so that a batch over it can only be the one that was asked
    // for. (A server behind a proxy that waited no longer may still be making it.)
    SPILLWAY_RETURN_IF_ERROR(caller_.pause(pause));
    Result<RemoteBatch> made = batch_over(file);
    if (made.ok() || made.status().code() != Code::kNotFound) return made;
    if (steady_seconds() >= until) {
      if (reply.status != 0) return error_of(reply, "starting the batch");
      return Status(Code::kIoError, reply.trouble);
    }
  }
}

Result<RemoteBatch> BatchesClient::retrieve(const std::string& id) {
  SPILLWAY_ASSIGN_OR_RETURN(const HttpReply reply,
                            caller_.call(HttpCall{.path = "/v1/batches/" + id}));
  return read_batch(reply, address(), "asking for " + id);
}

Result<RemoteBatch> BatchesClient::cancel(const std::string& id) {
  HttpCall call;
  call.method = "POST";
  call.path = "/v1/batches/" + id + "/cancel";
  call.content_type = "application/json";
  SPILLWAY_ASSIGN_OR_RETURN(const HttpReply reply, caller_.call(call));
  return read_batch(reply, address(), "cancelling " + id);
}

Status BatchesClient::download(const std::string& file, const std::string& path,
                               const std::function<void(uint64_t)>& show) {
  File target;
  uint64_t written = 0;
  const auto make = [&]() -> Result<HttpCall> {  // Each try begins anew.
    SPILLWAY_ASSIGN_OR_RETURN(target, File::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644));
    written = 0;
    HttpCall call;
    call.path = "/v1/files/" + file + "/content";
    call.take = [&](std::string_view bytes) -> Status {
      SPILLWAY_RETURN_IF_ERROR(target.write(written, std::as_bytes(std::span(bytes))));
      written += bytes.size();
      if (show) show(written);
      return {};
    };
    return call;
  };
  SPILLWAY_ASSIGN_OR_RETURN(const HttpReply reply, caller_.call(make));
  return reply.status == 200 ? Status() : error_of(reply, "fetching " + file);
}

}  // namespace spillway
