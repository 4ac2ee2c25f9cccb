#include "server/http/multipart.h"

#include <algorithm>
#include <utility>

#include "server/http/access.h"

namespace spillway {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr size_t kBoundaryBytesMax = 70;  // RFC 2046, 5.1.1

ApiError invalid(const std::string& what) {
  ApiError error;
  error.message = "The body is no well-formed multipart/form-data: " + what + ".";
  error.code = "invalid_multipart";
  return error;
}

bool is_boundary_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         std::string_view("'()+_,-./:=? ").find(c) != std::string_view::npos;
}

// One parameter of a header's value: `text` begins behind a ';'. Moves past it.
struct Parameter {
  std::string name;  // In lower case
  std::string value;
};
std::optional<Parameter> next_parameter(std::string_view* text) {
  const size_t equals = text->find('=');
  if (equals == std::string_view::npos) return {};
  Parameter found;
  found.name = lower_case(trimmed(text->substr(0, equals)));
  text->remove_prefix(equals + 1);
  while (!text->empty() && (text->front() == ' ' || text->front() == '\t')) text->remove_prefix(1);
  if (text->empty() || text->front() != '"') {
    const size_t end = std::min(text->find(';'), text->size());
    found.value = trimmed(text->substr(0, end));
    text->remove_prefix(end);
  } else {
    text->remove_prefix(1);
    bool closed = false;
    while (!text->empty() && !closed) {
      char c = text->front();
      text->remove_prefix(1);
      closed = c == '"';
      if (closed) break;
      if (c == '\\' && !text->empty() && (text->front() == '"' || text->front() == '\\')) {
        c = text->front();
        text->remove_prefix(1);
      }
      found.value += c;
    }
    if (!closed) return {};
    *text = trimmed(*text);
  }
  if (!text->empty()) {
    if (text->front() != ';') return {};
    text->remove_prefix(1);
  }
  if (found.name.empty()) return {};
  return found;
}

// Reads "form-data; name="file"; filename="a.jsonl""; empty when it is not that.
std::optional<MultipartPart> read_disposition(std::string_view value) {
  const size_t end = std::min(value.find(';'), value.size());
  if (lower_case(trimmed(value.substr(0, end))) != "form-data") return {};
  value.remove_prefix(std::min(end + 1, value.size()));
  MultipartPart part;
  while (!trimmed(value).empty()) {
    const auto parameter = next_parameter(&value);
    if (!parameter) return {};
    if (parameter->name == "name") part.name = parameter->value;
    if (parameter->name == "filename") part.filename = parameter->value;
  }
  if (part.name.empty()) return {};
  return part;
}

}  // namespace

std::optional<std::string> multipart_boundary(std::string_view content_type) {
  const size_t end = std::min(content_type.find(';'), content_type.size());
  if (lower_case(trimmed(content_type.substr(0, end))) != "multipart/form-data") return {};
  content_type.remove_prefix(std::min(end + 1, content_type.size()));
  while (!trimmed(content_type).empty()) {
    const auto parameter = next_parameter(&content_type);
    if (!parameter) return {};
    if (parameter->name != "boundary") continue;
    const std::string& boundary = parameter->value;
    const bool valid = !boundary.empty() && boundary.size() <= kBoundaryBytesMax &&
                       boundary.back() != ' ' &&
                       std::all_of(boundary.begin(), boundary.end(), is_boundary_char);
    return valid ? std::optional(boundary) : std::nullopt;
  }
  return {};
}

MultipartParser::MultipartParser(const std::string& boundary, Events events,
                                 const MultipartLimits& limits)
    : delimiter_("\r\n--" + boundary),
      events_(std::move(events)),
      limits_(limits),
      // The first boundary may stand at the very start, without a line end in front.
      buffer_(kLineEnd) {}

std::optional<ApiError> MultipartParser::feed(std::string_view bytes) {
  if (state_ == State::kEnd) return {};
  buffer_.append(bytes);
  bool more = false;
  while (!more && state_ != State::kEnd) {
    std::optional<ApiError> error;
    if (state_ == State::kBoundary) {
      error = read_boundary(&more);
    } else if (state_ == State::kHead) {
      error = read_head(&more);
    } else {
      more = !skip_or_emit();
    }
    if (error) return error;
  }
  if (state_ == State::kEnd) buffer_.clear();
  return {};
}

// Hands on everything in front of the next delimiter, as far as it is certain.
bool MultipartParser::skip_or_emit() {
  const size_t at = buffer_.find(delimiter_);
  const bool found = at != std::string::npos;
  const size_t certain =
      found ? at : buffer_.size() - std::min(buffer_.size(), delimiter_.size() - 1);
  if (state_ == State::kData && certain > 0) {
    events_.on_data(std::string_view(buffer_).substr(0, certain));
  }
  buffer_.erase(0, found ? at + delimiter_.size() : certain);
  if (!found) return false;
  if (std::exchange(in_part_, false)) events_.on_part_end();
  state_ = State::kBoundary;
  return true;
}

// Behind a delimiter: "--" is the end, a line end begins a part; blanks in front of it are padding.
std::optional<ApiError> MultipartParser::read_boundary(bool* more) {
  if (buffer_.size() < 2) {
    *more = true;
    return {};
  }
  if (buffer_.starts_with("--")) {
    state_ = State::kEnd;
    return {};
  }
  const size_t end = buffer_.find_first_not_of(" \t");
  if (end == std::string::npos || buffer_.size() < end + 2) {
    if (buffer_.size() > limits_.head_bytes_max) return invalid("a boundary's line is too long");
    *more = true;
    return {};
  }
  if (buffer_.compare(end, 2, kLineEnd) != 0) return invalid("a boundary goes on behind its end");
  if (++parts_ > limits_.parts_max) {
    return invalid("it has more than " + std::to_string(limits_.parts_max) + " parts");
  }
  buffer_.erase(0, end);  // The line end stays: the head ends with an empty line behind it.
  state_ = State::kHead;
  return {};
}

std::optional<ApiError> MultipartParser::read_head(bool* more) {
  const size_t end = buffer_.find("\r\n\r\n");
  if (end == std::string::npos || end > limits_.head_bytes_max) {
    // The empty line may be there in part.
    const size_t there =
        end == std::string::npos ? buffer_.size() - std::min<size_t>(3, buffer_.size()) : end;
    if (there > limits_.head_bytes_max) {
      return invalid("the head of a part is longer than " + std::to_string(limits_.head_bytes_max) +
                     " bytes");
    }
    *more = true;
    return {};
  }
  std::optional<MultipartPart> part;
  std::string_view lines = std::string_view(buffer_).substr(0, end);
  while (!lines.empty()) {
    lines.remove_prefix(kLineEnd.size());
    const std::string_view line = lines.substr(0, std::min(lines.find(kLineEnd), lines.size()));
    lines.remove_prefix(line.size());
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || line.front() == ' ' || line.front() == '\t') {
      return invalid("a line of a part's head is no field");
    }
    if (lower_case(line.substr(0, colon)) != "content-disposition") continue;
    if (part) return invalid("a part has two Content-Dispositions");
    part = read_disposition(line.substr(colon + 1));
    if (!part) return invalid("a Content-Disposition is no form-data with a name");
  }
  if (!part) return invalid("a part has no Content-Disposition");
  events_.on_part(*part);
  in_part_ = true;
  buffer_.erase(0, end + 4);
  state_ = State::kData;
  return {};
}

std::optional<ApiError> MultipartParser::finish() const {
  if (complete()) return {};
  return invalid(in_part_ ? "it ends within a part" : "it ends without a last boundary");
}

}  // namespace spillway
