// The methods of strings, dicts and loops. call_method() is declared in jinja_attributes.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/chat/jinja_run.h"

namespace spillway::jinja {

// The methods that exist, between blanks.
constexpr std::string_view kStringMethods =
    "strip lstrip rstrip split rsplit splitlines startswith endswith upper lower title capitalize "
    "replace join find rfind count removeprefix removesuffix isdigit isspace";
constexpr std::string_view kDictMethods = "items keys values get";

// str.replace(); `count` below 0: all.
Value replaced(Run& run, const std::string& text, const std::string& old, const std::string& with,
               int64_t count);
// str.join() of what the items print as, or of strings only.
Value joined_text(Run& run, const std::string& separator, const std::vector<Value>& items,
                  bool strings_only);
// The view items(), keys() or values() of a dict.
Value view_of(Run& run, const Dict& dict, Sequence::Form form);

}  // namespace spillway::jinja
