// Comparing, printing and walking over values, as Python does it. Every walk pays its steps: a
// value that is shared many times can look exponentially larger than it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/chat/jinja_run.h"

namespace spillway::jinja {

bool equal(Run& run, const Value& left, const Value& right);
// left < right; fails where Python has no order.
bool less(Run& run, const Value& left, const Value& right);
bool contains(Run& run, const Value& item, const Value& container);

// Whether a value can be a key of a dict; false after an error, too.
bool is_hashable(Run& run, const Value& value);
// The place of a key, or null; fails on a key that cannot be hashed. The second form also looks for
// it in a dict being made.
const Value* find_entry(Run& run, const Dict& dict, const Value& key, bool* hashable);
Value* find_entry(Run& run, Dict& dict, const Value& key);

// Appends str(value), or repr(value), to `out`, and pays for the bytes. Fails where Python prints
// an address.
void print(Run& run, const Value& value, std::string* out);
void print_quoted(Run& run, const Value& value, std::string* out);
std::string to_text(Run& run, const Value& value);

// All items of what can be iterated over; an iterator is used up. Fails where Python does.
std::vector<Value> items_of(Run& run, const Value& value);
// len(), or -1 for what has none.
int64_t length_of(const Value& value);

}  // namespace spillway::jinja
