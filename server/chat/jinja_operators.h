// Python's operators, subscripts and slices over values; fail where Python raises, and on integers
// beyond int64.
#pragma once

#include "server/chat/jinja_ast.h"
#include "server/chat/jinja_run.h"

namespace spillway::jinja {

Value binary(Run& run, Op op, const Value& left, const Value& right);
bool compare(Run& run, Op op, const Value& left, const Value& right);
Value negated(Run& run, const Value& value, bool positive);

// value[start:stop:step]; null: left out.
Value sliced(Run& run, const Value& value, const Value* start, const Value* stop,
             const Value* step);

}  // namespace spillway::jinja
