// Checks a request's header block more strictly than Boost.Beast: where two readers could disagree
// about a request's end, it is refused. Pure, any thread.
#pragma once

#include <optional>
#include <string_view>

#include "server/http/error.h"
#include "server/http/key_limits.h"
#include "server/http/limits.h"

namespace spillway {

// `block`: request line and fields up to and including the empty line. Refused: a lone CR or LF,
// folded fields, more than one Content-Length, Transfer-Encoding or Host, no Host in HTTP/1.1, both
// Content-Length and Transfer-Encoding, any coding but exactly "chunked", a coding in HTTP/1.0, an
// expectation but 100-continue, too many fields. Beast checks the remaining syntax.
std::optional<ApiError> check_header_block(std::string_view block, const HttpLimits& limits);

// The value of the first field of this name (in any case) whose line is there to its end; empty:
// there is none. `block`: a request's first lines, which nothing has checked.
std::string_view header_field(std::string_view block, std::string_view name);

// The HTTP-level errors, in the API's shape.
ApiError bad_http_request(std::string_view why);
ApiError header_too_large(const HttpLimits& limits);
ApiError body_too_large(size_t bytes_max);
ApiError body_not_read(const HttpLimits& limits);  // For a route that takes none
ApiError request_too_slow();
ApiError too_many_connections();
ApiError too_many_connections_of(const KeyLimits& key);

}  // namespace spillway
