// Files and batches over HTTP, over a fake scheduler: uploads, lists, every way a batch ends, and a
// server that stops in between.
#include "server/batches/batch_api.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

#include "tests/server/batches/batch_server.h"

namespace spillway::batch_api_test {
namespace {

using test::batch_line;

std::string form(const std::string& content, const std::string& purpose = "batch",
                 const std::string& more = "") {
  return "--b0\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n" + purpose + "\r\n" +
         more +
         "--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n"
         "Content-Type: application/octet-stream\r\n\r\n" +
         content + "\r\n--b0--\r\n";
}

std::string part(const std::string& name, const std::string& value) {
  return "--b0\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n";
}

struct Server : test::BatchServer {
  using BatchServer::BatchServer;

  HttpAnswer ask(const std::string& method, const std::string& target, const std::string& body = "",
                 const std::string& type = "application/json", const std::string& key = "") const {
    HttpClient client(http->port());
    std::string head = method + " " + target + " HTTP/1.1\r\nHost: a\r\n";
    if (!key.empty()) head += "Authorization: Bearer " + key + "\r\n";
    if (!body.empty()) head += "Content-Type: " + type + "\r\n";
    client.send(head + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.read_answer();
  }
  HttpAnswer post_form(const std::string& body, const std::string& key = "") const {
    return ask("POST", "/v1/files", body, "multipart/form-data; boundary=b0", key);
  }
  std::string upload(const std::string& content, const std::string& key = "") const {
    const HttpAnswer answer = post_form(form(content), key);
    INFO(answer.body);
    REQUIRE(answer.status == 200);
    return Json::parse(answer.body)["id"];
  }
  Json create(const std::string& file, const std::string& endpoint = "/v1/completions") const {
    const HttpAnswer answer = ask(
        "POST", "/v1/batches",
        Json{{"input_file_id", file}, {"endpoint", endpoint}, {"completion_window", "24h"}}.dump());
    INFO(answer.body);
    REQUIRE(answer.status == 200);
    return Json::parse(answer.body);
  }
  Json batch(const std::string& id) const {
    return Json::parse(ask("GET", "/v1/batches/" + id).body);
  }
  Json wait(const std::string& id, const std::string& status) const {
    Json object;
    for (int i = 0; i < 1000; ++i) {
      object = batch(id);
      if (object["status"] == status) return object;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    INFO(object.dump());
    FAIL("the batch does not become " << status);
    return object;
  }
  std::vector<Json> lines_of(const Json& id) const {
    const HttpAnswer answer = ask("GET", "/v1/files/" + id.get<std::string>() + "/content");
    REQUIRE(answer.status == 200);
    std::istringstream in(answer.body);
    std::vector<Json> lines;
    for (std::string text; std::getline(in, text);) lines.push_back(Json::parse(text));
    return lines;
  }
};

Json greedy(const std::string& prompt, int tokens = 4) {
  return {{"prompt", prompt}, {"max_tokens", tokens}, {"temperature", 0}};
}

TEST_CASE("the document of the API has the routes of files and batches") {
  Server s;
  const Json document = Json::parse(s.ask("GET", "/openapi.json").body);
  for (std::string route : s.routes) {
    std::string method = route.substr(0, route.find(' '));
    for (char& c : method) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    bool found = false;
    for (const auto& [path, operations] : document["paths"].items()) {
      std::string bare;
      for (size_t at = 0; at < path.size(); ++at) {
        bare += path[at];
        if (path[at] == '{') {
          while (path[at + 1] != '}') ++at;
        }
      }
      if (route.ends_with("{*}")) route.replace(route.size() - 3, 3, "{}");
      found |= route.substr(route.find(' ') + 1) == bare && operations.contains(method);
    }
    INFO(route);
    CHECK(found);
  }
  CHECK(document["components"]["schemas"].contains("Batch"));
}

TEST_CASE("the metrics have batches by state, and the lines of those in progress") {
  Server s;
  const auto of_state = [&](const BatchFigures& figures, const std::string& state) {
    for (const auto& [name, count] : figures.batches) {
      if (name == state) return count;
    }
    FAIL("there is no state " << state);
    return int64_t{0};
  };
  CHECK(s.batches->figures().rows_pending == 0);
  s.engine->hold();
  const std::string id =
      s.create(s.upload(batch_line("a", greedy("x")) + batch_line("b", greedy("y")) +
                        batch_line("c", Json{{"prompt", "z"}, {"max_tokens", 1000}})))["id"];
  REQUIRE(s.engine->wait_submitted(2));
  for (const Request& request : s.engine->seen()) CHECK(request.batch);
  BatchFigures figures = s.batches->figures();
  CHECK(of_state(figures, "in_progress") == 1);
  CHECK(figures.rows_pending + figures.rows_failed == 3);  // The last one is too long to run.
  CHECK(figures.rows_completed == 0);
  Json batch;  // The worker shows how far it is a moment later.
  for (int i = 0; i < 50 * test::kPatience && !batch.contains("x_progress"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    batch = Json::parse(s.ask("GET", "/v1/batches/" + id).body);
  }
  CHECK(batch["x_progress"]["lines_done"] <= 1);
  CHECK(batch["x_progress"].contains("eta_s"));
  CHECK(batch["x_progress"]["tokens_per_s"] == 0.0);
  s.engine->release();
  s.wait(id, "completed");
  figures = s.batches->figures();
  CHECK(of_state(figures, "in_progress") == 0);
  CHECK(of_state(figures, "completed") == 1);
  CHECK(figures.rows_pending == 0);
}

TEST_CASE("a file is handed in, listed, read back and deleted") {
  Server s;
  std::string content;
  for (int i = 0; i < 40'000; ++i) content += "{\"line\":" + std::to_string(i) + "}\n";
  const HttpAnswer answer = s.post_form(
      form(content, "batch",
           part("expires_after[anchor]", "created_at") + part("expires_after[seconds]", "3600")));
  REQUIRE(answer.status == 200);
  const Json file = Json::parse(answer.body);
  CHECK(file["object"] == "file");
  CHECK(file["bytes"] == content.size());
  CHECK(file["filename"] == "in.jsonl");
  CHECK(file["purpose"] == "batch");
  CHECK(file["expires_at"].get<int64_t>() == file["created_at"].get<int64_t>() + 3600);
  const std::string id = file["id"];
  CHECK(Json::parse(s.ask("GET", "/v1/files/" + id).body) == file);
  CHECK(s.ask("GET", "/v1/files/" + id + "/content").body == content);
  const std::string second = s.upload("x");
  Json list = Json::parse(s.ask("GET", "/v1/files?limit=1").body);
  CHECK(list["data"][0]["id"] == second);
  CHECK(list["has_more"] == true);
  CHECK(list["last_id"] == second);
  list = Json::parse(s.ask("GET", "/v1/files?limit=1&after=" + second).body);
  CHECK(list["data"][0]["id"] == id);
  CHECK(list["has_more"] == false);
  CHECK(Json::parse(s.ask("DELETE", "/v1/files/" + id).body)["deleted"] == true);
  CHECK(s.ask("GET", "/v1/files/" + id).status == 404);
  CHECK(s.ask("GET", "/v1/files/" + id + "/content").status == 404);
  CHECK(s.ask("DELETE", "/v1/files/" + id).status == 404);
}

TEST_CASE("what is no upload is refused, and leaves nothing") {
  Server::Options options;
  options.files.file_bytes_max = 1000;
  Server s(options);
  const auto code = [](const HttpAnswer& answer) {
    return std::to_string(answer.status) + " " +
           Json::parse(answer.body)["error"]["code"].get<std::string>();
  };
  CHECK(code(s.post_form(form("x", "assistants"))) == "400 invalid_purpose");
  CHECK(code(s.post_form(form("x", ""))) == "400 missing_required_parameter");
  CHECK(code(s.post_form(part("purpose", "batch") + "--b0--\r\n")) ==
        "400 missing_required_parameter");
  CHECK(code(s.post_form("no form")) == "400 invalid_multipart");
  CHECK(code(s.post_form(form("x", "batch", part("expires_after[anchor]", "now")))) ==
        "400 invalid_value");
  CHECK(code(s.post_form(form("x", "batch",
                              part("expires_after[anchor]", "created_at") +
                                  part("expires_after[seconds]", "5")))) == "400 invalid_value");
  CHECK(code(s.post_form(form(std::string(1001, 'x')))) == "413 quota_exceeded");
  CHECK(code(s.ask("POST", "/v1/files", "{}")) == "415 unsupported_media_type");
  CHECK(Json::parse(s.ask("GET", "/v1/files").body)["data"].empty());
  CHECK(s.post_form(form(std::string(1000, 'x'))).status == 200);
  for (const char* query : {"limit=0", "limit=x", "limit=10001", "order=up"}) {
    CHECK(code(s.ask("GET", std::string("/v1/files?") + query)) == "400 invalid_value");
  }
  CHECK(code(s.ask("GET", "/v1/files?after=file-0")) == "404 not_found");
}

TEST_CASE("a batch runs to its end, with answers and errors in files") {
  Server::Options options;
  options.engine.cached_tokens = 1;
  Server s(options);
  const std::string input = batch_line("a", greedy("hi")) +
                            batch_line("b", {{"prompt", "x"}, {"n", 0}}) +
                            batch_line("c", {{"prompt", {"p", "q"}}, {"max_tokens", 2}});
  const std::string file = s.upload(input);
  const HttpAnswer made =
      s.ask("POST", "/v1/batches",
            Json{{"input_file_id", file},
                 {"endpoint", "/v1/completions"},
                 {"completion_window", "24h"},
                 {"metadata", {{"k", "v"}}},
                 {"output_expires_after", {{"anchor", "created_at"}, {"seconds", 7200}}}}
                .dump());
  REQUIRE(made.status == 200);
  const std::string id = Json::parse(made.body)["id"];
  CHECK(Json::parse(made.body)["status"] == "validating");
  const Json done = s.wait(id, "completed");
  CHECK(done["metadata"]["k"] == "v");
  CHECK(done["model"] == "fake-model");
  CHECK(done["request_counts"] == Json{{"total", 3}, {"completed", 2}, {"failed", 1}});
  CHECK(done["usage"]["output_tokens"] == 8);
  CHECK(done["usage"]["input_tokens_details"]["cached_tokens"] == 3);  // Of three prompts
  CHECK_FALSE(done.contains("x_progress"));
  for (const char* time : {"in_progress_at", "finalizing_at", "completed_at", "expires_at"}) {
    CHECK(done[time].is_number());
  }
  const std::vector<Json> answers = s.lines_of(done["output_file_id"]);
  REQUIRE(answers.size() == 2);
  CHECK(answers[0]["custom_id"] == "a");
  CHECK(answers[0]["response"]["status_code"] == 200);
  CHECK(answers[0]["response"]["body"]["choices"][0]["text"] == fake_text("hi", 4));
  CHECK(answers[0]["error"].is_null());
  CHECK(answers[1]["response"]["body"]["choices"].size() == 2);
  const std::vector<Json> errors = s.lines_of(done["error_file_id"]);
  REQUIRE(errors.size() == 1);
  CHECK(errors[0]["custom_id"] == "b");
  CHECK(errors[0]["response"]["status_code"] == 400);
  const Json output =
      Json::parse(s.ask("GET", "/v1/files/" + done["output_file_id"].get<std::string>()).body);
  CHECK(output["purpose"] == "batch_output");
  CHECK(output["expires_at"].get<int64_t>() == output["created_at"].get<int64_t>() + 7200);
  CHECK(s.engine->seen()[0].priority == kBatchPriority);
  const Json list = Json::parse(s.ask("GET", "/v1/batches").body);
  CHECK(list["data"].size() == 1);
  CHECK(list["data"][0]["id"] == id);
  // Answers of a batch are those of the API.
  CHECK(answers[0]["response"]["body"]["choices"] ==
        Json::parse(s.ask("POST", "/v1/completions", greedy("hi").dump()).body)["choices"]);
}

TEST_CASE("a batch of chats gives chat completions") {
  Server s;
  const Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"max_tokens", 3}};
  const Json made =
      s.create(s.upload(batch_line("a", body, "/v1/chat/completions")), "/v1/chat/completions");
  const Json done = s.wait(made["id"], "completed");
  CHECK(done["error_file_id"].is_null());
  CHECK(s.lines_of(done["output_file_id"])[0]["response"]["body"]["object"] == "chat.completion");
}

TEST_CASE("a wrong file fails as a whole, with the first hundred faults") {
  Server s;
  std::string input = "no JSON\n" + batch_line("a", greedy("hi")) + batch_line("a", greedy("hi")) +
                      batch_line("c", greedy("hi"), "/v1/chat/completions") +
                      batch_line("d", greedy("hi"), "/v1/embeddings") +
                      R"({"custom_id":"e","method":"GET","url":"/v1/completions","body":{}})"
                      "\n" +
                      R"({"method":"POST","url":"/v1/completions","body":{"prompt":"a"}})"
                      "\n" +
                      batch_line("g", {{"model", "other"}, {"prompt", "a"}}) +
                      batch_line("h", {{"stream", true}, {"prompt", "a"}}) + "[]\n";
  Json failed = s.wait(s.create(s.upload(input))["id"], "failed");
  std::vector<std::pair<std::string, int>> found;
  for (const Json& fault : failed["errors"]["data"])
    found.emplace_back(fault["code"], fault["line"]);
  CHECK(found == std::vector<std::pair<std::string, int>>{{"invalid_json_line", 1},
                                                          {"duplicate_custom_id", 3},
                                                          {"mismatched_url", 4},
                                                          {"invalid_url", 5},
                                                          {"invalid_method", 6},
                                                          {"missing_required_parameter", 7},
                                                          {"model_not_found", 8},
                                                          {"stream_not_allowed", 9},
                                                          {"invalid_json_line", 10}});
  CHECK(failed["failed_at"].is_number());
  CHECK(failed["output_file_id"].is_null());
  CHECK(failed["request_counts"]["total"] == 0);
  CHECK(s.engine->submitted() == 0);
  failed = s.wait(s.create(s.upload("\n\n"))["id"], "failed");
  CHECK(failed["errors"]["data"][0]["code"] == "empty_file");
  std::string many;
  for (int i = 0; i < 300; ++i) many += "x\n";
  failed = s.wait(s.create(s.upload(many))["id"], "failed");
  CHECK(failed["errors"]["data"].size() == 100);
  many.clear();
  for (int i = 0; i < 1001; ++i) many += batch_line(std::to_string(i), greedy("a"));
  failed = s.wait(s.create(s.upload(many))["id"], "failed");
  CHECK(failed["errors"]["data"][0]["code"] == "too_many_requests");
}

TEST_CASE("a batch is refused at once where it names nothing that can run") {
  Server s;
  const std::string file = s.upload("x");
  const auto refusal = [&](Json change) {
    Json body = {
        {"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}};
    body.update(change);
    const HttpAnswer answer = s.ask("POST", "/v1/batches", body.dump());
    const Json error = Json::parse(answer.body)["error"];
    return std::to_string(answer.status) + " " + error["param"].get<std::string>();
  };
  CHECK(refusal({{"input_file_id", "file-0"}}) == "404 input_file_id");
  CHECK(refusal({{"input_file_id", nullptr}}) == "400 input_file_id");
  CHECK(refusal({{"endpoint", "/v1/embeddings"}}) == "400 endpoint");
  for (const char* window : {"", "24", "h", "0h", "-1h", "24x", "24h ", "99999h"}) {
    CHECK(refusal({{"completion_window", window}}) == "400 completion_window");
  }
  CHECK(refusal({{"metadata", {{"a", 1}}}}) == "400 metadata");
  CHECK(refusal({{"metadata", {{std::string(65, 'k'), "v"}}}}) == "400 metadata");
  CHECK(refusal({{"output_expires_after", {{"anchor", "x"}}}}) == "400 output_expires_after");
}

TEST_CASE("a batch that is cancelled keeps what it has, and says what did not run") {
  Server::Options options;
  options.engine.round_seconds = 0.02;
  Server s(options);
  std::string input;
  for (int i = 0; i < 200; ++i) input += batch_line("l" + std::to_string(i), greedy("hi", 2));
  const std::string file = s.upload(input);
  const std::string id = s.create(file)["id"];
  CHECK(s.ask("DELETE", "/v1/files/" + file).status == 409);
  for (int i = 0; i < 500 && s.batch(id)["request_counts"]["completed"] == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const HttpAnswer asked = s.ask("POST", "/v1/batches/" + id + "/cancel");
  CHECK(asked.status == 200);
  CHECK(Json::parse(asked.body)["status"] == "cancelling");
  CHECK(s.ask("POST", "/v1/batches/" + id + "/cancel").status == 200);
  const Json done = s.wait(id, "cancelled");
  const std::vector<Json> answers = s.lines_of(done["output_file_id"]);
  const std::vector<Json> errors = s.lines_of(done["error_file_id"]);
  CHECK(!answers.empty());
  CHECK(!errors.empty());
  CHECK(answers.size() + errors.size() == 200);
  CHECK(errors[0]["error"]["code"] == "batch_cancelled");
  CHECK(errors[0]["response"].is_null());
  const HttpAnswer late = s.ask("POST", "/v1/batches/" + id + "/cancel");
  CHECK(late.status == 409);
  CHECK(Json::parse(late.body)["error"]["code"] == "batch_not_cancellable");
  CHECK(s.ask("DELETE", "/v1/files/" + file).status == 200);
}

TEST_CASE(
    "results larger than a client's files may be end their batch, and then there is no next") {
  Server::Options options;
  options.files.file_bytes_max = 500;
  options.files.owner_bytes_max = 700;
  Server s(options);
  const std::string file = s.upload(batch_line("a", greedy("hi")) + batch_line("b", greedy("hi")));
  const Json done = s.wait(s.create(file)["id"], "completed");
  CHECK(s.lines_of(done["output_file_id"]).size() == 2);
  const std::string again =
      Json{{"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}}
          .dump();
  const HttpAnswer refused = s.ask("POST", "/v1/batches", again);
  CHECK(refused.status == 413);
  CHECK(Json::parse(refused.body)["error"]["code"] == "quota_exceeded");
  CHECK(s.ask("DELETE", "/v1/files/" + done["output_file_id"].get<std::string>()).status == 200);
  CHECK(s.ask("POST", "/v1/batches", again).status == 200);
}

TEST_CASE("a client has only so many batches that have not ended") {
  Server::Options options;
  options.started = false;
  options.unfinished_max = 2;
  Server s(options);
  const std::string file = s.upload(batch_line("a", greedy("hi")));
  const std::string id = s.create(file)["id"];
  s.create(file);
  const std::string more =
      Json{{"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}}
          .dump();
  const HttpAnswer refused = s.ask("POST", "/v1/batches", more);
  CHECK(refused.status == 429);
  CHECK(Json::parse(refused.body)["error"]["code"] == "too_many_batches");
  s.batches->start();
  s.wait(id, "completed");
  CHECK(s.ask("POST", "/v1/batches", more).status == 200);
}

TEST_CASE("a page that begins behind nothing says which parameter is wrong") {
  const Server s;
  for (const char* list : {"/v1/files?after=file-0", "/v1/batches?after=batch_0"}) {
    const HttpAnswer answer = s.ask("GET", list);
    CHECK(answer.status == 404);
    CHECK(Json::parse(answer.body)["error"]["param"] == "after");
  }
}

TEST_CASE("a server that stops goes on where it was, and no line runs twice") {
  Server::Options options;
  options.engine.round_seconds = 0.01;
  Server s(options);
  std::string input;
  for (int i = 0; i < 120; ++i) input += batch_line("l" + std::to_string(i), greedy("hi", 2));
  const std::string id = s.create(s.upload(input))["id"];
  for (int i = 0; i < 500 && s.batch(id)["request_counts"]["completed"] < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  s.stop();
  s.begin();
  const Json done = s.wait(id, "completed");
  CHECK(done["request_counts"] == Json{{"total", 120}, {"completed", 120}, {"failed", 0}});
  const std::vector<Json> answers = s.lines_of(done["output_file_id"]);
  REQUIRE(answers.size() == 120);
  for (int i = 0; i < 120; ++i) {
    CHECK(answers[static_cast<size_t>(i)]["custom_id"] == "l" + std::to_string(i));
  }
  CHECK(s.engine->submitted() < 120);  // The second server's
}

TEST_CASE("a second server is told that the folder is another's") {
  Server s;
  BatchServiceOptions options;
  options.directory = s.folder.path() + "/batches";
  const auto second = BatchService::open(std::move(options), *s.engine, s.api->context);
  CHECK(second.status().code() == Code::kCapacity);
}

TEST_CASE("each key has its own files and batches") {
  Server::Options options;
  options.keys = {"first", "second"};
  Server s(options);
  const std::string file = s.upload(batch_line("a", greedy("hi")), "first");
  CHECK(s.post_form(form("x")).status == 401);
  const auto status = [&](const char* method, const std::string& target, const char* key) {
    return s.ask(method, target, "", "", key).status;
  };
  CHECK(status("GET", "/v1/files/" + file, "first") == 200);
  CHECK(status("GET", "/v1/files/" + file, "second") == 404);
  CHECK(status("GET", "/v1/files/" + file + "/content", "second") == 404);
  CHECK(status("DELETE", "/v1/files/" + file, "second") == 404);
  const std::string body =
      Json{{"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", "1h"}}
          .dump();
  CHECK(s.ask("POST", "/v1/batches", body, "application/json", "second").status == 404);
  const HttpAnswer made = s.ask("POST", "/v1/batches", body, "application/json", "first");
  REQUIRE(made.status == 200);
  const std::string id = Json::parse(made.body)["id"];
  CHECK(status("GET", "/v1/batches/" + id, "second") == 404);
  CHECK(status("POST", "/v1/batches/" + id + "/cancel", "second") == 404);
  CHECK(Json::parse(s.ask("GET", "/v1/batches", "", "", "second").body)["data"].empty());
  CHECK(Json::parse(s.ask("GET", "/v1/batches", "", "", "first").body)["data"].size() == 1);
}

TEST_CASE("an upload that is cut off leaves nothing") {
  Server s;
  {
    HttpClient client(s.http->port());
    client.send(
        "POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b0\r\n"
        "Content-Length: 1000000\r\n\r\n" +
        form("half").substr(0, 150));
  }
  for (int i = 0; i < 200; ++i) {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(s.folder.path() + "/batches/files")) {
      ++count;
    }
    if (count == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL("the half file stays");
}

TEST_CASE("what a client calls a file is never a path") {
  Server s;
  for (const char* name :
       {"../../../escaped", "/tmp/spillway-escaped", "..", "a/b", "%2e%2e%2fc"}) {
    std::string body = form("x\n");
    body.replace(body.find("in.jsonl"), 8, name);
    const HttpAnswer answer = s.post_form(body);
    INFO(answer.body);
    REQUIRE(answer.status == 200);
    const Json file = Json::parse(answer.body);
    CHECK(file["filename"] == name);
    CHECK(s.ask("GET", "/v1/files/" + file["id"].get<std::string>() + "/content").body == "x\n");
  }
  for (const char* id : {"..%2f..%2fstore.db", "%2e%2e", "..%2fstore.db", "%2fetc%2fpasswd"}) {
    INFO(id);
    CHECK(s.ask("GET", "/v1/files/" + std::string(id) + "/content").status == 404);
    CHECK(s.ask("DELETE", "/v1/files/" + std::string(id)).status == 404);
  }
  for (const auto& entry :
       std::filesystem::directory_iterator(s.folder.path() + "/batches/files")) {
    CHECK(entry.path().filename().string().starts_with("file-"));
  }
  CHECK_FALSE(std::filesystem::exists("/tmp/spillway-escaped"));
}

}  // namespace
}  // namespace spillway::batch_api_test
