// Attributes, subscripts and methods of values, as Jinja's immutable sandbox gives them to a
// template: an attribute that Python's type has but templates may not use is undefined; a method
// that Python has and the subset has not is an error.
#pragma once

#include <string>
#include <string_view>

#include "server/chat/jinja_run.h"

namespace spillway::jinja {

// value.name: a method, else an entry.
Value attribute(Run& run, const Value& value, const std::string& name);
// value[key]: an entry, else a method.
Value item(Run& run, const Value& value, const Value& key);
// Calls method `name` of `self`, as attribute() found it.
Value call_method(Run& run, const Value& self, const std::string& name, const Arguments& arguments);

}  // namespace spillway::jinja
