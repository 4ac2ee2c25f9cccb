// The OpenAPI document: it has the routes that there are and no others, and the fields that it
// names are read.
#include "server/api/openapi.h"

#include <catch2/catch.hpp>
#include <set>

#include "server/api/chat_parse.h"
#include "tests/server/api/api_support.h"

namespace spillway::openapi_test {
namespace {

Json document_of(TestServer& test) {
  const HttpAnswer answer = HttpClient(test.server->port()).get("/openapi.json");
  REQUIRE(answer.status == 200);
  return Json::parse(answer.body);
}

TEST_CASE("the document has every route and no other") {
  TestServer test;
  const Json document = document_of(test);
  std::set<std::string> described, there;
  for (const auto& [path, operations] : document["paths"].items()) {
    for (const auto& [method, operation] : operations.items()) {
      std::string upper = method;
      for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      described.insert(upper + " " + path.substr(0, path.find('{')));
    }
  }
  const Router router = make_router(test.api, Access{});
  for (const Route& route : router.routes()) {
    there.insert(route.method + " " + route.path.substr(0, route.path.find('{')));
  }
  CHECK(described == there);
}

TEST_CASE("every reference of the document leads somewhere") {
  TestServer test;
  const Json document = document_of(test);
  const auto check = [&](const auto& self, const Json& at) -> void {
    if (at.is_object() && at.contains("$ref")) {
      const auto pointer = at["$ref"].get<std::string>();
      INFO(pointer);
      CHECK(document.contains(Json::json_pointer(pointer.substr(1))));
    }
    if (at.is_structured()) {
      for (const Json& below : at) self(self, below);
    }
  };
  check(check, document);
}

// A value that a schema allows.
Json value_of(const Json& schema) {
  if (schema.contains("anyOf")) return value_of(schema["anyOf"][0]);
  if (schema.contains("const")) return schema["const"];
  if (schema.contains("enum")) return schema["enum"][0];
  const Json& types = schema["type"];
  const std::string type = types.is_array() ? types[0] : types;
  if (type == "boolean") return false;
  if (type == "string") return "a";
  if (type == "object") return Json::object();
  if (type == "array") return schema.contains("items") ? Json{value_of(schema["items"])} : Json();
  return schema.value("minimum", Json(1));
}

TEST_CASE("every field of the document is read, and a value from its range is right") {
  TestServer test;
  ApiContext context = test.api.context;
  context.limits.strict_params = true;
  const Json document = document_of(test);
  for (const bool chat : {false, true}) {
    const Json& schema =
        document["components"]["schemas"][chat ? "ChatCompletionRequest" : "CompletionRequest"];
    for (const auto& [name, field] : schema["properties"].items()) {
      INFO(name);
      Json body;
      if (chat) {
        body["messages"] = {{{"role", "user"}, {"content", "hi"}}};
      } else {
        body["prompt"] = "hi";
      }
      // What stands only beside others.
      if (name == "stream_options") body["stream"] = true;
      if (name.starts_with("kv_")) body["kv_rule"] = "window";
      if (name == "kv_heavy" || name == "kv_snap") body["kv_rule"] = "snap";
      if (name != "messages") body[name] = value_of(field);
      const auto parsed =
          chat ? parse_chat(body.dump(), context) : parse_completion(body.dump(), context);
      if (const auto* error = std::get_if<ApiError>(&parsed)) FAIL(error->message);
    }
    CHECK(schema["properties"].size() > 40);
  }
}

TEST_CASE("values outside of the ranges of the document are refused") {
  TestServer test;
  const Json document = document_of(test);
  const Json& properties = document["components"]["schemas"]["CompletionRequest"]["properties"];
  int tried = 0;
  for (const auto& [name, field] : properties.items()) {
    for (const char* bound : {"minimum", "maximum"}) {
      if (!field.contains(bound)) continue;
      INFO(name << " " << bound);
      Json body = {{"prompt", "hi"}, {"kv_rule", "snap"}};
      const double edge = field[bound].get<double>();
      const double beyond = edge + (bound[1] == 'i' ? -1 : 1);
      if (field["type"][0] == "integer") {
        body[name] = static_cast<int64_t>(beyond);
      } else {
        body[name] = beyond;
      }
      const auto parsed = parse_completion(body.dump(), test.api.context);
      REQUIRE(std::holds_alternative<ApiError>(parsed));
      CHECK(std::get<ApiError>(parsed).status == 400);
      ++tried;
    }
  }
  CHECK(tried > 30);
}

}  // namespace
}  // namespace spillway::openapi_test
