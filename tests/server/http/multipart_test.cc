// multipart/form-data: parts, their contents, and each way of being wrong.
#include "server/http/multipart.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace spillway::multipart_test {
namespace {

struct Read {
  std::vector<MultipartPart> parts;
  std::vector<std::string> contents;
  std::string error;
  bool complete = false;
};

Read read(const std::string& body, size_t step = 1000, const MultipartLimits& limits = {}) {
  Read found;
  MultipartParser parser("XyZ",
                         {.on_part =
                              [&](const MultipartPart& part) {
                                found.parts.push_back(part);
                                found.contents.emplace_back();
                              },
                          .on_data = [&](std::string_view data) { found.contents.back() += data; },
                          .on_part_end = [&] { found.contents.back() += "|"; }},
                         limits);
  for (size_t at = 0; at < body.size() && found.error.empty(); at += step) {
    if (const auto error = parser.feed(std::string_view(body).substr(at, step))) {
      found.error = error->message;
      CHECK(error->status == 400);
      CHECK(error->code == "invalid_multipart");
    }
  }
  found.complete = parser.complete();
  if (found.error.empty()) {
    if (const auto error = parser.finish()) found.error = error->message;
  }
  return found;
}

const std::string kUpload =
    "--XyZ\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
    "--XyZ\r\nContent-Type: application/octet-stream\r\n"
    "content-disposition: form-data; name=\"file\"; filename=\"my \\\"in\\\".jsonl\"\r\n\r\n"
    "{\"a\":1}\r\n--XyY\r\n\r\n--XyZ--\r\n";

TEST_CASE("an upload's parts come as they are, however their bytes arrive") {
  for (const size_t step : {1, 2, 3, 7, 1000}) {
    INFO(step);
    const Read found = read(kUpload, step);
    CHECK(found.error == "");
    CHECK(found.complete);
    REQUIRE(found.parts.size() == 2);
    CHECK(found.parts[0].name == "purpose");
    CHECK_FALSE(found.parts[0].filename.has_value());
    CHECK(found.contents[0] == "batch|");
    CHECK(found.parts[1].name == "file");
    CHECK(found.parts[1].filename == "my \"in\".jsonl");
    CHECK(found.contents[1] == "{\"a\":1}\r\n--XyY\r\n|");
  }
}

TEST_CASE("preamble, padding, an empty part and an epilogue are nothing special") {
  const Read found = read(
      "hello\r\n--XyZ \t\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n--XyZ--\r\nbye\r\n"
      "--XyZ\r\n");
  CHECK(found.error == "");
  CHECK(found.contents == std::vector<std::string>{"|"});
}

TEST_CASE("what is no form is refused with the reason") {
  const std::string head = "--XyZ\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n";
  const std::pair<std::string, const char*> cases[] = {
      {"", "without a last boundary"},
      {"hello", "without a last boundary"},
      {head + "text", "within a part"},
      {"--XyZ-\r\n", "goes on behind its end"},
      {"--XyZx\r\n", "goes on behind its end"},
      {"--XyZ\r\n\r\nx\r\n--XyZ--", "no Content-Disposition"},
      {"--XyZ\r\nContent-Type: a\r\n\r\nx\r\n--XyZ--", "no Content-Disposition"},
      {"--XyZ\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\n", "form-data with a name"},
      {"--XyZ\r\nContent-Disposition: form-data\r\n\r\n", "form-data with a name"},
      {"--XyZ\r\nContent-Disposition: form-data; name=\"\"\r\n\r\n", "form-data with a name"},
      {"--XyZ\r\nContent-Disposition: form-data; name=\"a\r\n\r\n", "form-data with a name"},
      {"--XyZ\r\nContent-Disposition: form-data; name=\"a\" x\r\n\r\n", "form-data with a name"},
      {"--XyZ\r\nContent-Disposition: form-data; name=a\r\n folded\r\n\r\n", "is no field"},
      {"--XyZ\r\nno field\r\n\r\n", "is no field"},
      {"--XyZ\r\nContent-Disposition: form-data; name=a\r\nContent-Disposition: form-data; "
       "name=b\r\n\r\n",
       "two Content-Dispositions"}};
  for (const auto& [body, wanted] : cases) {
    for (const size_t step : {1, 1000}) {
      INFO(body);
      CHECK_THAT(read(body, step).error, Catch::Contains(wanted));
    }
  }
}

TEST_CASE("the limits of a form hold at their edge") {
  MultipartLimits limits;
  limits.parts_max = 2;
  limits.head_bytes_max = 60;
  const std::string part = "--XyZ\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n";
  CHECK(read(part + part + "--XyZ--", 5, limits).error == "");
  CHECK_THAT(read(part + part + part + "--XyZ--", 5, limits).error,
             Catch::Contains("more than 2 parts"));
  const auto with_head_of = [](size_t bytes) {
    const std::string head = "\r\nContent-Disposition: form-data; name=a";
    return "--XyZ" + head + std::string(bytes - head.size(), 'a') + "\r\n\r\nx\r\n--XyZ--";
  };
  CHECK(read(with_head_of(60), 1, limits).error == "");
  CHECK_THAT(read(with_head_of(61), 1, limits).error, Catch::Contains("longer than 60 bytes"));
  CHECK_THAT(read(with_head_of(61), 1000, limits).error, Catch::Contains("longer than 60 bytes"));
  CHECK_THAT(read("--XyZ" + std::string(100, ' '), 1, limits).error, Catch::Contains("too long"));
}

TEST_CASE("only form-data with a valid boundary is read") {
  CHECK(multipart_boundary("multipart/form-data; boundary=abc") == "abc");
  CHECK(multipart_boundary("Multipart/Form-Data; charset=utf-8; Boundary=\"a b\"") == "a b");
  for (const char* type :
       {"", "application/json", "multipart/mixed; boundary=a", "multipart/form-data",
        "multipart/form-data; boundary=", "multipart/form-data; boundary=\"a ",
        "multipart/form-data; boundary=\"a \"", "multipart/form-data; boundary=\"a\\\"\"",
        "multipart/form-data; boundary=\"a\r\""}) {
    INFO(type);
    CHECK_FALSE(multipart_boundary(type).has_value());
  }
  CHECK(multipart_boundary("multipart/form-data; boundary=" + std::string(70, 'a')).has_value());
  CHECK_FALSE(multipart_boundary("multipart/form-data; boundary=" + std::string(71, 'a')));
}

}  // namespace
}  // namespace spillway::multipart_test
