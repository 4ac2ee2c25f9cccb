// The filters and tests of the subset.
#pragma once

#include <string>
#include <string_view>

#include "server/chat/jinja_run.h"

namespace spillway::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);

// input | name(arguments). REQUIRES: is_filter(name).
Value filtered(Run& run, const std::string& name, const Value& input, const Arguments& arguments);
// input is name(arguments). REQUIRES: is_test(name).
bool tested(Run& run, const std::string& name, const Value& input, const Arguments& arguments);

// The filters over items: map, select, sort and their like (jinja_item_filters.cc).
Value map_filter(Run& run, const Value& input, const Arguments& arguments);
Value select_filter(Run& run, const std::string& name, const Value& input,
                    const Arguments& arguments);
Value sort_filter(Run& run, const Value& input, const Arguments& arguments);
Value dictsort_filter(Run& run, const Value& input, const Arguments& arguments);
Value unique_filter(Run& run, const Value& input, const Arguments& arguments);
Value join_filter(Run& run, const Value& input, const Arguments& arguments);

}  // namespace spillway::jinja
