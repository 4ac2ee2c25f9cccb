// The one parser and the one reader of JSON that outsiders wrote.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/json_reader.h"
#include "kernels/base/quote.h"
#include "kernels/base/strict_json.h"

namespace spillway::json_reader_test {
namespace {

using nlohmann::json;

std::string refusal(std::string_view text, const JsonLimits& limits = {}) {
  const Result<json> parsed = parse_json_object(text, "f.json", limits);
  return parsed.ok() ? "" : std::string(parsed.status().message());
}

JsonFault fault_of(std::string_view text, const JsonLimits& limits = {}) {
  const auto parsed = parse_strict_json(text, limits);
  REQUIRE(std::holds_alternative<JsonFault>(parsed));
  return std::get<JsonFault>(parsed);
}

std::string lists(int levels) {
  return std::string(static_cast<size_t>(levels), '[') +
         std::string(static_cast<size_t>(levels), ']');
}

TEST_CASE("JSON is read as the library reads it") {
  for (const char* text :
       {R"({})", R"({"a":[1,-2,3.5,true,false,null,"x",{"b":{}},[]],"c":18446744073709551615})",
        " {\n\t\"a\" : 1e3 }\r\n", R"({"\u00e9":"\ud83d\ude00"})"}) {
    const Result<json> parsed = parse_json_object(text, "f.json");
    REQUIRE(parsed.ok());
    CHECK(parsed.value() == json::parse(text));
  }
}

TEST_CASE("JSON that is broken is refused with its line and column") {
  CHECK(refusal("{\n \"a\": nope}") ==
        "f.json: is not valid JSON at line 2, column 8: syntax error while parsing value - invalid "
        "literal");
  CHECK(refusal("") ==
        "f.json: is not valid JSON at line 1, column 1: syntax error while parsing value - "
        "unexpected end of input; expected '[', '{', or a literal");
  CHECK(refusal("{} {}").starts_with("f.json: is not valid JSON at line 1, column 4: syntax"));
  CHECK(refusal(std::string_view("{\"a\":\0}", 7)) ==
        "f.json: is not valid JSON at line 1, column 6: a NUL byte");
  CHECK_THAT(refusal("{\"a\":\"\xff\"}"), Catch::EndsWith("ill-formed UTF-8 byte"));
  CHECK(refusal("{\"" + std::string(100'000, '\xa4')).size() < 200);  // Quotes nothing of it.
  CHECK(refusal("[1]") == "f.json: is not a JSON object");
  CHECK(refusal("{\"a\":[1e999]}") == "f.json: a[0] is a number too large for any field");
  CHECK(refusal("1e999") == "f.json: is not valid JSON at line 1, column 5: a number is too large");
}

TEST_CASE("a name that occurs twice in one object is refused with its path") {
  CHECK(refusal(R"({"a":1,"b":{"a":2,"c":[{"d":1,"d":1}]}})") ==
        "f.json: the key 'b.c[0].d' occurs twice");
  CHECK(fault_of(R"({"a":1,"a":2})").byte == 10);
  // Escapes do not hide a name.
  CHECK(fault_of(R"({"a":1,"\u0061":2})").path == "a");
  CHECK(fault_of("{\"a\\n\":1,\"a\\n\":2}").path == "?");
}

TEST_CASE("JSON is bounded in depth and in values before it is built") {
  CHECK(std::holds_alternative<json>(parse_strict_json(lists(kJsonLevelsMax))));
  const JsonFault deep = fault_of(lists(kJsonLevelsMax + 1));
  CHECK(deep.kind == JsonFault::Kind::kTooDeep);
  CHECK(deep.byte == static_cast<size_t>(kJsonLevelsMax) + 1);
  // The object, the list and its three items.
  const std::string five = R"({"a":[1,"b",{}]})";
  CHECK(refusal(five, {.values = 5}) == "");
  const JsonFault many = fault_of(five, {.values = 4});
  CHECK(many.kind == JsonFault::Kind::kTooManyValues);
  CHECK(many.byte == five.find("{}") + 1);
  // What is never closed ends at the bound, too.
  CHECK(fault_of(std::string(1 << 20, '[')).kind == JsonFault::Kind::kTooDeep);
}

TEST_CASE("comments are part of some JSON and not of other") {
  const char* text = "{ // \"[[\n \"a\": /* { */ 1 }";
  CHECK(refusal(text, {.comments = true}) == "");
  CHECK(refusal(text) != "");
}

TEST_CASE("whole numbers are those that an int64 and a double agree on") {
  CHECK(whole_number(json::parse("1")) == 1);
  CHECK(whole_number(json::parse("-3e2")) == -300);
  CHECK(whole_number(json::parse("1.0")) == 1);
  CHECK(whole_number(json::parse("9223372036854775807")) == INT64_MAX);
  CHECK(whole_number(json::parse("-9223372036854775808")) == INT64_MIN);
  CHECK(whole_number(json::parse("9007199254740992.0")) == int64_t{1} << 53);
  for (const char* text : {"9223372036854775808", "9007199254740994.0", "1.5", "1e40", "\"1\"",
                           "true", "null", "[]"}) {
    CAPTURE(text);
    CHECK_FALSE(whole_number(json::parse(text)));
  }
}

// What a read of {"a": VALUE} says; empty: nothing is wrong.
template <class Read>
std::string said(const char* value, Read read) {
  const json object = json::parse(std::string("{\"a\":") + value + "}");
  JsonReader reader(object, "f.json");
  read(reader);
  return std::string(reader.status().message());
}

TEST_CASE("a field of the wrong type or value is named with what it must be") {
  const auto integer = [](JsonReader& r) { r.integer("a", 1, 8); };
  CHECK(said("8", integer) == "");
  CHECK(said("9", integer) == "f.json: a must be between 1 and 8, not 9");
  CHECK(said("0", integer) == "f.json: a must be between 1 and 8, not 0");
  CHECK(said("1e30", integer) == "f.json: a must be between 1 and 8, not 1e+30");
  CHECK(said("18446744073709551615", integer) ==
        "f.json: a must be between 1 and 8, not 1.84467440737096e+19");
  CHECK(said("1.5", integer) == "f.json: a must be an integer");
  CHECK(said("\"1\"", integer) == "f.json: a must be an integer");
  CHECK(said("null", integer) == "f.json: a is missing");
  const auto number = [](JsonReader& r) { r.number("a", 0.5, 1e18); };
  CHECK(said("0.5", number) == "");
  CHECK(said("0.25", number) == "f.json: a must be between 0.5 and 1e+18, not 0.25");
  CHECK(said("true", number) == "f.json: a must be a number");
  const auto string = [](JsonReader& r) { r.string("a", 3); };
  CHECK(said("\"abc\"", string) == "");
  CHECK(said("\"abcd\"", string) == "f.json: a must have at most 3 bytes, not 4");
  CHECK(said("3", string) == "f.json: a must be a string");
  CHECK(said("1", [](JsonReader& r) { r.boolean_or("a", true); }) ==
        "f.json: a must be true or false");
  CHECK(said("[1,2]", [](JsonReader& r) { r.array("a", 1); }) ==
        "f.json: a must be a list of at most 1 items");
  CHECK(said("[]", [](JsonReader& r) { r.object("a"); }) == "f.json: a must be an object");
  CHECK(said("-1", [](JsonReader& r) { r.unsigned_integer("a"); }) ==
        "f.json: a must be an integer that is not negative");
  CHECK(said("0", [](JsonReader& r) { r.only({"b"}); }) == "f.json: unknown field 'a'");
}

TEST_CASE("the first wrong field is the one that is said, and what follows is defaults") {
  const json object = json::parse(R"({"a":"x","b":"y","c":3})");
  JsonReader reader(object, "f.json");
  CHECK(reader.integer("a", 4, 8) == 4);
  CHECK(reader.string("b", 8).empty());
  CHECK(reader.integer_or("c", 0, 9, 7) == 7);
  CHECK(reader.array("d", 1).empty());
  reader.fail("other");
  CHECK(reader.status().message() == "f.json: a must be an integer");
  const json list = json::array();
  CHECK(JsonReader(list, "f.json").status().message() == "f.json: is not an object");
}

TEST_CASE("fields that may be absent are nothing then, and null is absent") {
  const json object = json::parse(R"({"a":null,"b":2.0})");
  JsonReader reader(object, "f.json");
  CHECK_FALSE(reader.has("a"));
  CHECK_FALSE(reader.find_integer("a", 0, 1));
  CHECK(reader.find("a") == nullptr);
  CHECK(reader.string_or("c", 8, "otherwise") == "otherwise");
  CHECK(reader.find_integer("b", 0, 8) == 2);
  CHECK(reader.number_or("b", 1) == 2);
  CHECK(reader.status().ok());
}

TEST_CASE("names that nothing asked for are listed") {
  const json object = json::parse(R"({"a":1,"z":1,"b":1})");
  JsonReader reader(object, "f.json");
  reader.find("a");
  CHECK(reader.unknown_names() == std::vector<std::string_view>{"b", "z"});
  reader.refuse_unknown();
  CHECK(reader.status().message() == "f.json: unknown field 'b'");
}

TEST_CASE("another version is refused with the one that is read and how to get it") {
  const auto version = [](JsonReader& r) { r.version(3, "a plan", "'make' makes one"); };
  const auto of = [&](const char* text) {
    const json object = json::parse(text);
    JsonReader reader(object, "f.json");
    version(reader);
    return std::string(reader.status().message());
  };
  CHECK(of(R"({"version":3})") == "");
  CHECK(of(R"({"version":4})") ==
        "f.json: is version 4 of a plan, and this program reads version 3; 'make' makes one");
  CHECK(of("{}") == "f.json: version is missing");
}

TEST_CASE("quoted text cannot paint on a terminal") {
  CHECK(in_quotes("a\x1b[1m'\\\n") == R"('a\x1b[1m\x27\x5c\x0a')");
  CHECK(in_quotes(std::string(81, 'a')) == "'" + std::string(80, 'a') + "...'");
}

}  // namespace
}  // namespace spillway::json_reader_test
