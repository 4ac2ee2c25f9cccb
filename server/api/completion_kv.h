// The KV rule of one request: kv_rule, kv_heavy, kv_recent, kv_sink and kv_ratio_of, as the flags
// --kv-rule etc. have them.
#pragma once

#include "policy/kv_rule.h"
#include "server/api/json_input.h"

namespace spillway {

// `base`: the rule of requests that say nothing. Errors stay in `fields`.
KvRuleChoice read_kv_rule(FieldReader& fields, const KvRule& base);

}  // namespace spillway
