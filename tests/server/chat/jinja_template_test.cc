// Templates against what Jinja2 renders with transformers' settings
// (scripts/oracle/make_chat_golden.py), constructs that are refused by name, and hostile templates,
// which end at a limit.
#include "server/chat/jinja_template.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/places.h"

namespace spillway::jinja_template_test {
namespace {

using Json = nlohmann::ordered_json;

std::string home() {
  return test::source_directory() + "/tests/golden/chat/";
}

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// 2024-07-26 13:05:09, a Friday.
std::tm golden_time() {
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 13;
  now.tm_min = 5;
  now.tm_sec = 9;
  now.tm_wday = 5;
  now.tm_yday = 207;
  return now;
}

Result<std::string> render(const std::string& text, const Json& variables = Json::object(),
                           const JinjaLimits& limits = {}) {
  const auto parsed = JinjaTemplate::parse(text);
  if (!parsed.ok()) return parsed.status();
  return parsed.value().render(variables, limits, golden_time());
}

std::string error_of(const std::string& text, const JinjaLimits& limits = {}) {
  const auto result = render(text, {{"x", "y"}, {"l", {3, 1, 2}}}, limits);
  INFO(text.substr(0, 200));
  REQUIRE_FALSE(result.ok());
  CHECK(result.status().code() == Code::kInvalidArgument);
  return std::string(result.status().message());
}

std::string repeat(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

TEST_CASE("published chat templates render as Jinja does") {
  const Json conversations = Json::parse(read(home() + "conversations.json"));
  std::istringstream lines(read(home() + "rendered.jsonl"));
  size_t templates = 0, refused = 0;
  for (std::string line; std::getline(lines, line); ++templates) {
    const Json golden = Json::parse(line);
    const std::string name = golden["template"];
    const std::string text = read(home() + "templates/" + name + ".jinja");
    REQUIRE(golden["outputs"].size() == conversations.size());
    for (size_t i = 0; i < conversations.size(); ++i) {
      const auto result = render(text, conversations[i]);
      INFO(name << ", conversation " << i << ": " << result.status().message());
      REQUIRE(result.ok() != golden["outputs"][i].is_null());
      if (result.ok()) CHECK(result.value() == golden["outputs"][i].get<std::string>());
      refused += result.ok() ? 0 : 1;
    }
  }
  CHECK(templates == 21);
  CHECK(refused > 50);
}

TEST_CASE("snippets of every construct render as Jinja does, or are refused as there") {
  std::istringstream lines(read(home() + "snippets.jsonl"));
  std::string line;
  REQUIRE(std::getline(lines, line));
  const Json variables = Json::parse(line)["variables"];
  size_t count = 0, refused = 0;
  for (; std::getline(lines, line); ++count) {
    const Json golden = Json::parse(line);
    const auto result = render(golden["t"], variables);
    INFO(line << "\n" << result.status().message());
    REQUIRE(result.ok() == golden.contains("o"));
    if (result.ok()) CHECK(result.value() == golden["o"].get<std::string>());
    refused += result.ok() ? 0 : 1;
  }
  CHECK(count > 1200);
  CHECK(refused > 300);
}

TEST_CASE("what Jinja has and the subset has not is refused by its name and line") {
  const std::pair<const char*, const char*> cases[] = {
      {"\n{{ x|batch(2) }}", "line 2: the filter 'batch'"},
      {"{{ x|format(1) }}", "the filter 'format'"},
      {"{{ l|map('batch', 2)|list }}", "the filter 'batch'"},
      {"\n\n{{ x is sameas x }}", "line 3: the test 'sameas'"},
      {"{{ l|select('sameas', 1)|list }}", "the test 'sameas'"},
      {"{% include 'a' %}", "the statement 'include'"},
      {"{% import 'a' as b %}", "the statement 'import'"},
      {"{% from 'a' import b %}", "the statement 'from'"},
      {"{% extends 'a' %}", "the statement 'extends'"},
      {"{% block a %}{% endblock %}", "the statement 'block'"},
      {"{% call f() %}{% endcall %}", "the statement 'call'"},
      {"{% with a = 1 %}{% endwith %}", "the statement 'with'"},
      {"{% do x %}", "the statement 'do'"},
      {"{% autoescape true %}{% endautoescape %}", "the statement 'autoescape'"},
      {"{% for i in l recursive %}{% endfor %}", "a recursive loop"},
      {"{% for i in l %}{{ loop.changed(i) }}{% endfor %}", "'changed' of a LoopContext"},
      {"{% for i in l %}{% macro f() %}{% endmacro %}{% endfor %}", "a macro inside of a loop"},
      {"{% macro f() %}{{ varargs }}{% endmacro %}", "the name varargs"},
      {"{% macro f() %}{{ caller() }}{% endmacro %}", "the name caller"},
      {"{{ cycler(1) }}", "the name cycler"},
      {"{{ range(*l) }}", "arguments with * or **"},
      {"{{ range(**x) }}", "arguments with * or **"},
      {"{{ x.format(1) }}", "'format' of a str"},
      {"{{ x.encode() }}", "'encode' of a str"},
      {"{{ l.index(1) }}", "'index' of a list"},
      {"{{ {}.copy() }}", "'copy' of a dict"},
      {"{{ '%s' % x }}", "formatting with %"},
      {"{{ x[1, 2] }}", "a subscript with several parts"},
      {"{{ (x|safe) ~ '<' }}", "the filter safe"},
      {"{{ range(3)[::2] }}", "a slice of range()"},
      {"{{ l|map('string') }}", "an iterator cannot be printed"},
      {"{{ range }}", "printing a function"},
      {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
      {"{{ 99999999999999999999 }}", "too large"},
      {"{{ '\\N{DASH}' }}", "the escape \\N"},
      {"{% set loop = 1 %}", "cannot assign to loop"},
  };
  for (const auto& [text, wanted] : cases) {
    INFO(text);
    CHECK(error_of(text).find(wanted) != std::string::npos);
  }
}

TEST_CASE("an error names the line and the cause") {
  CHECK(error_of("a\n{% if l %}\n  {{ l.nope.more }}\n{% endif %}") ==
        "line 3: a list has no attribute 'nope'");
  CHECK(error_of("\n{{ raise_exception('Roles must alternate\\n') }}") ==
        "line 2: the template refuses this: 'Roles must alternate\\x0a'");
  CHECK(error_of("{{ nope.more }}") == "line 1: 'nope' is undefined");
  CHECK(error_of("{{ 1 + 'a' }}") == "line 1: + of a int and a str is not possible");
  CHECK(error_of("{% if x %}\n") ==
        "line 1: expected elif or else or endif, not the end of the template");
  CHECK(error_of("\xff") == "the template is not UTF-8");
}

TEST_CASE("a template that nests without end is refused, not a crash") {
  const std::pair<const char*, const char*> pairs[] = {
      {"(", ")"}, {"[", "]"}, {"{1:", "}"}, {"x[", "]"}, {"f(", ")"}, {"- ", ""}, {"not ", ""}};
  for (const auto& [open, close] : pairs) {
    INFO(open);
    error_of("{{ " + repeat(open, 20'000) + "1" + repeat(close, 20'000) + " }}");
  }
  for (const char* chain : {"+x", "~x+x", ".x", "[0]", "()", "|trim", " or x", "**x", " if x"}) {
    INFO(chain);
    error_of("{{ nope" + repeat(chain, 20'000) + " }}");
  }
  error_of(repeat("{% if x %}", 10'000) + repeat("{% endif %}", 10'000));
  error_of(repeat("{% for a in l %}", 10'000) + repeat("{% endfor %}", 10'000));
  error_of("{% set " + repeat("(", 20'000) + "a = 1 %}");
  error_of(repeat("x", kJinjaTemplateBytesMax + 1));
  error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  CHECK(render("{% if x %}" + repeat("{% elif x %}", 5000) + "{% else %}a{% endif %}").value() ==
        "a");
}

TEST_CASE("values that nest or repeat without end are refused at a limit") {
  const char* hostile[] = {
      "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% endfor "
      "%}",
      "{% set ns = namespace(a={}) %}{% for i in range(100000) %}{% set ns.a = {'k': ns.a} %}{% "
      "endfor %}",
      "{% set ns = namespace(a='ab') %}{% for i in range(64) %}{% set ns.a = ns.a ~ ns.a %}{% "
      "endfor %}",
      "{% set ns = namespace(a=[1]) %}{% for i in range(64) %}{% set ns.a = ns.a + ns.a %}{% "
      "endfor %}",
      "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% "
      "endfor %}{{ ns.a }}",
      "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% "
      "endfor %}{{ ns.a|tojson }}",
      "{% set ns = namespace(a=(1,), b=(1,)) %}{% for i in range(60) %}{% set ns.a = (ns.a, ns.a) "
      "%}"
      "{% set ns.b = (ns.b, ns.b) %}{% endfor %}{{ ns.a == ns.b }}",
      "{% set ns = namespace(a=(1,)) %}{% for i in range(60) %}{% set ns.a = (ns.a, ns.a) %}{% "
      "endfor %}{{ {ns.a: 1} }}",
      "{{ 'a' * 9000000000000000000 }}",
      "{{ [1] * 9000000000000000000 }}",
      "{{ ('a' * 1000000).replace('a', 'b' * 1000) }}",
      "{{ ('a' * 1000000).replace('', 'b' * 1000) }}",
      "{{ ('b' * 1000).join('a' * 1000000) }}",
      "{{ range(100000)|list * 100000 }}",
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{% for i in range(100000) if false %}{% endfor %}{% for i in range(100000) %}{{ "
      "range(100000) }}{% endfor %}",
      "{% for i in range(100000) %}{{ "
      "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 10 }}{% endfor %}",
      "{% set a = 'a' * 4000000 %}{% for i in range(100000) %}{{ 'b' in a }}{% endfor %}",
      "{% set a = 'a' * 4000000 %}{% for i in range(100000) %}{{ a[i] == 'b' }}{% endfor %}",
      "{% set a = range(100000)|list %}{% for i in range(100000) %}{{ 'b' in a }}{% endfor %}",
      "{{ range(100000)|map('string')|unique|list|length }}",
      "{{ ('ab' * 500000).rsplit('ba' * 100000 ~ 'c') }}",
      "{{ ('a' * 1000000)|indent('b' * 1000000)|length }}{{ ('a\n' * 1000000)|indent('b' * "
      "1000000)|length }}",
      "{{ range(0, 9000000000000000000) }}",
      "{{ 2 ** 9000000000000000000 }}",
      "{% macro f(a) %}{{ a }}{% endmacro %}{% set ns = namespace(a='ab') %}"
      "{% for i in range(64) %}{% set ns.a = f(ns.a ~ ns.a) %}{% endfor %}",
  };
  for (const char* text : hostile) error_of(text);
  JinjaLimits few;
  few.output_bytes = 10;
  CHECK(error_of("{{ 'a' * 11 }}", few) == "line 1: the text is longer than is allowed");
  CHECK(render("{{ 'a' * 10 }}", Json::object(), few).value() == std::string(10, 'a'));
  few = {};
  few.steps = 100;
  CHECK(error_of("{% for i in range(90) %}{{ i }}{% endfor %}", few).find("more steps") !=
        std::string::npos);
}

TEST_CASE("rings of namespaces are taken apart") {
  // Under AddressSanitizer a ring that stays is a leak.
  CHECK(render("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = [b] %}"
               "{% for i in [a] %}{% set a.loop = loop %}{% endfor %}{{ a.loop.index }}")
            .value() == "1");
  const auto chain = render(
      "{% set ns = namespace() %}{% for i in range(50000) %}{% set ns.a = namespace(a=ns.a) %}{% "
      "endfor %}x");
  CHECK(chain.value() == "x");
}

TEST_CASE("variables keep their order and types, and hold any text") {
  const Json variables =
      Json::parse(R"({"z": {"b": 1, "a": 2.0, "c": [true, null, "\u0000\"é"]}})");
  CHECK(render("{{ z }}|{{ z|tojson }}", variables).value() ==
        "{'b': 1, 'a': 2.0, 'c': [True, None, '\\x00\"é']}|{\"b\": 1, \"a\": 2.0, \"c\": [true, "
        "null, "
        "\"\\u0000\\\"é\"]}");
  CHECK_FALSE(render("x", Json::array()).ok());
  CHECK_FALSE(render("x", {{"n", UINT64_MAX}}).ok());
  Json deep = 1;
  for (int i = 0; i < 200; ++i) deep = Json::array({deep});
  CHECK_FALSE(render("x", {{"n", deep}}).ok());
}

TEST_CASE("one template serves many threads' renderings") {
  const JinjaTemplate parsed =
      JinjaTemplate::parse("{{ now }}{{ strftime_now('%Y') | length }}").value();
  CHECK(parsed.render({{"now", 1}}).value() == "14");  // By the clock
  CHECK(parsed.render({{"now", "a"}}).value() == "a4");
}

}  // namespace
}  // namespace spillway::jinja_template_test
