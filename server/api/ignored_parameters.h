// The names in a request's body that mean nothing here: refused, or ignored and told to the client.
// Values, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/json_input.h"
#include "server/http/message.h"

namespace spillway {

struct IgnoredParameters {
  std::vector<std::string> names;  // At most 32
  int64_t more = 0;                // Further ones, and those that no header can carry
};

// The names that `fields` was never asked for. With `strict` the first of them is an error, and one
// of our own (kv_...) always.
IgnoredParameters read_ignored(FieldReader& fields, bool strict);

// The header x-ignored-parameters: "foo, bar, +2". Nothing when nothing was ignored.
HttpFields ignored_fields(const IgnoredParameters& ignored);

}  // namespace spillway
