// An answer that is an error of the API, as a test expects it.
#pragma once

#include <catch2/catch.hpp>

#include "tests/server/api/api_support.h"

namespace spillway::test {

inline void check_error(const HttpAnswer& answer, int status, const char* type, const char* code) {
  INFO(answer.body);
  CHECK(answer.status == status);
  CHECK(answer.complete);
  CHECK(answer.fields.at("content-type") == "application/json");
  CHECK_FALSE(answer.fields.at("x-request-id").empty());
  const Json error = Json::parse(answer.body)["error"];
  CHECK(error["type"] == type);
  CHECK(error["code"] == code);
  CHECK(error.contains("param"));
  CHECK(error["message"].is_string());
}

}  // namespace spillway::test
