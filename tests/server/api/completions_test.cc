// Streaming over real sockets: the exact form of the events, keep-alive, errors in mid-stream,
// clients that read slowly.
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/server/api/api_support.h"
#include "tests/support/patience.h"

namespace spillway::completions_test {
namespace {

struct Stream {
  HttpAnswer answer;
  std::vector<Json> events;  // Without [DONE]
};

Stream stream(TestServer& test, Json body, const std::string& path = "/v1/completions") {
  body["stream"] = true;
  Stream result;
  result.answer = test.post(path, body);
  REQUIRE(result.answer.status == 200);
  REQUIRE(result.answer.complete);
  std::vector<std::string> data = sse_data(result.answer.chunks);
  REQUIRE_FALSE(data.empty());
  REQUIRE(data.back() == "[DONE]");
  data.pop_back();
  for (const std::string& event : data) result.events.push_back(Json::parse(event));
  return result;
}

TEST_CASE("a stream has the head and events that clients expect") {
  TestServer test;
  const Stream s = stream(test, {{"prompt", "hi"}, {"max_tokens", 5}, {"temperature", 0}});
  CHECK(s.answer.fields.at("content-type") == "text/event-stream; charset=utf-8");
  CHECK(s.answer.fields.at("cache-control") == "no-cache");
  CHECK(s.answer.fields.at("x-accel-buffering") == "no");
  CHECK(s.answer.fields.at("connection") == "keep-alive");
  CHECK(s.answer.fields.at("transfer-encoding") == "chunked");
  CHECK(s.answer.fields.contains("x-request-id"));
  REQUIRE(s.events.size() == 5);  // A token each; the last one carries the end
  std::string text;
  for (const Json& event : s.events) {
    CHECK(event["id"] == s.events[0]["id"]);
    CHECK(event["object"] == "text_completion");
    CHECK(event["model"] == "fake-model");
    CHECK_FALSE(event.contains("usage"));
    REQUIRE(event["choices"].size() == 1);
    text += event["choices"][0]["text"].get<std::string>();
  }
  CHECK(text == fake_text("hi", 5));
  CHECK(s.events[0]["choices"][0].at("finish_reason").is_null());
  CHECK(s.events[4]["choices"][0]["finish_reason"] == "length");
}

TEST_CASE("usage comes in a chunk of its own, or in every one") {
  TestServer test;
  Json body = {{"prompt", "hi"}, {"max_tokens", 3}, {"stream_options", {{"include_usage", true}}}};
  Stream s = stream(test, body);
  REQUIRE(s.events.size() == 4);
  for (size_t i = 0; i < 3; ++i) CHECK(s.events[i].at("usage").is_null());
  CHECK(s.events[3]["choices"] == Json::array());
  CHECK(s.events[3]["usage"]["prompt_tokens"] == 3);
  CHECK(s.events[3]["usage"]["completion_tokens"] == 3);
  CHECK(s.events[3]["usage"]["total_tokens"] == 6);
  body["stream_options"]["continuous_usage_stats"] = true;
  s = stream(test, body);
  CHECK(s.events[0]["usage"]["completion_tokens"] == 1);
  CHECK(s.events[1]["usage"]["completion_tokens"] == 2);
}

TEST_CASE("a chat streams deltas, whose first has the role and whose last has the end") {
  TestServer test;
  const Json message = {{"role", "user"}, {"content", "hi"}};
  Json body = {{"messages", {message}}, {"max_completion_tokens", 4},
               {"temperature", 0},      {"logprobs", true},
               {"top_logprobs", 2},     {"stream_options", {{"include_usage", true}}}};
  const Stream s = stream(test, body, "/v1/chat/completions");
  REQUIRE(s.events.size() == 5);
  std::string text;
  for (size_t i = 0; i < 4; ++i) {
    const Json& event = s.events[i];
    CHECK(event["id"].get<std::string>().starts_with("chatcmpl-"));
    CHECK(event["object"] == "chat.completion.chunk");
    REQUIRE(event["choices"].size() == 1);
    const Json& choice = event["choices"][0];
    CHECK(choice["delta"].contains("role") == (i == 0));
    CHECK(choice["finish_reason"].is_null() == (i < 3));
    REQUIRE(choice["logprobs"]["content"].size() == 1);
    CHECK(choice["logprobs"]["content"][0]["top_logprobs"].size() == 2);
    text += choice["delta"]["content"].get<std::string>();
  }
  CHECK(s.events[0]["choices"][0]["delta"]["role"] == "assistant");
  CHECK(s.events[3]["choices"][0]["finish_reason"] == "length");
  CHECK(s.events[4]["object"] == "chat.completion.chunk");
  CHECK(s.events[4]["choices"] == Json::array());
  CHECK(s.events[4]["usage"]["completion_tokens"] == 4);
  body.erase("stream_options");
  const HttpAnswer whole = test.post("/v1/chat/completions", body);
  REQUIRE(whole.status == 200);
  const Json answer = Json::parse(whole.body);
  CHECK(answer["object"] == "chat.completion");
  CHECK(answer["choices"][0]["message"]["content"] == text);
  CHECK(answer["choices"][0]["logprobs"]["content"].size() == 4);
  // The plain template's text, as a prompt.
  const Json plain = {{"prompt", "User: hi\n\nAssistant:"}, {"max_tokens", 4}, {"temperature", 0}};
  CHECK(Json::parse(test.post("/v1/completions", plain).body)["choices"][0]["text"] == text);
}

TEST_CASE("a chat that is refused names its field, whole and streamed") {
  TestServer test;
  for (const bool streamed : {false, true}) {
    const Json body = {{"messages", Json::array()}, {"stream", streamed}};
    const HttpAnswer refused = test.post("/v1/chat/completions", body);
    CHECK(refused.status == 400);
    CHECK(Json::parse(refused.body)["error"]["param"] == "messages");
  }
  TestServer::Options options;
  options.with_tokenizer = false;
  TestServer mute(options);
  const Json message = {{"role", "user"}, {"content", "hi"}};
  const HttpAnswer refused = mute.post("/v1/chat/completions", {{"messages", {message}}});
  CHECK(refused.status == 400);
  CHECK(Json::parse(refused.body)["error"]["message"].get<std::string>().find("tokenizer") !=
        std::string::npos);
}

TEST_CASE("a stop token and a stop string end a stream with an event of their own or the last") {
  TestServer::Options options;
  options.engine = say("ab;cd");
  TestServer test(options);
  // The stop string is found with the token that completes it.
  Stream s = stream(test, {{"prompt", "x"}, {"max_tokens", 50}, {"stop", ";"}});
  REQUIRE(s.events.size() == 3);
  CHECK(s.events[2]["choices"][0]["text"] == "");
  CHECK(s.events[2]["choices"][0]["finish_reason"] == "stop");
  s = stream(test, {{"prompt", "x"}, {"max_tokens", 50}, {"stop_token_ids", {';' + 1}}});
  REQUIRE(s.events.size() == 3);
  CHECK(s.events[2]["choices"][0]["stop_reason"] == ';' + 1);
}

TEST_CASE("several choices interleave by index") {
  TestServer test;
  const Stream s = stream(test, {{"prompt", {"a", "b"}},
                                 {"n", 2},
                                 {"max_tokens", 4},
                                 {"temperature", 0},
                                 {"stream_options", {{"include_usage", true}}}});
  std::vector<std::string> texts(4);
  std::vector<int> ends(4);
  for (const Json& event : s.events) {
    for (const Json& choice : event["choices"]) {
      const auto index = choice["index"].get<size_t>();
      REQUIRE(index < 4);
      CHECK(ends[index] == 0);
      texts[index] += choice["text"].get<std::string>();
      if (!choice["finish_reason"].is_null()) ++ends[index];
    }
  }
  CHECK(texts == std::vector<std::string>{fake_text("a", 4), fake_text("a", 4), fake_text("b", 4),
                                          fake_text("b", 4)});
  CHECK(ends == std::vector<int>{1, 1, 1, 1});
  CHECK(s.events.back()["usage"]["completion_tokens"] == 16);
  CHECK(s.events.back()["usage"]["prompt_tokens"] == 4);
}

TEST_CASE("possible stop strings and half characters are held back") {
  TestServer::Options options;
  options.engine = say("ab\xe2\x82\xacSTOP");
  TestServer test(options);
  const Stream s = stream(test, {{"prompt", "x"}, {"max_tokens", 50}, {"stop", "STOP"}});
  std::string text;
  for (const Json& event : s.events) {
    const Json& choice = event["choices"][0];
    const auto piece = choice["text"].get<std::string>();
    if (choice["finish_reason"].is_null()) CHECK_FALSE(piece.empty());
    CHECK(piece.find('S') == std::string::npos);
    text += piece;
  }
  CHECK(text == "ab\xe2\x82\xac");
  CHECK(s.events.back()["choices"][0]["finish_reason"] == "stop");
  CHECK(s.events.back()["choices"][0]["stop_reason"] == "STOP");
}

TEST_CASE("the first event with text carries the echo") {
  TestServer test;
  const Stream s =
      stream(test, {{"prompt", "hi"}, {"max_tokens", 2}, {"echo", true}, {"logprobs", 1}});
  const Json& first = s.events[0]["choices"][0];
  CHECK(first["text"].get<std::string>().starts_with("hi"));
  CHECK(first["text"].get<std::string>().size() == 3);
  CHECK(first["logprobs"]["tokens"].size() == 4);
  CHECK(s.events[1]["choices"][0]["logprobs"]["text_offset"][0] == 3);
}

TEST_CASE("the head of a stream does not wait for a token") {
  TestServer test;
  test.engine.hold();
  HttpClient client(test.server->port());
  client.send(post_text("/v1/completions", R"({"prompt":"hi","stream":true})"));
  CHECK(client.read_head().status == 200);
  test.engine.release();
  CHECK(client.read_chunk().starts_with("data: {"));
}

TEST_CASE("a refused stream has its status") {
  TestServer test;
  test.engine.refuse_after(0, Status(Code::kCapacity, "full"));
  CHECK(test.post("/v1/completions", {{"prompt", "hi"}, {"stream", true}}).status == 429);
  CHECK(test.post("/v1/completions", {{"prompt", 5}, {"stream", true}}).status == 400);
}

TEST_CASE("an error in mid-stream is an event") {
  TestServer::Options options;
  options.engine.fail_after_tokens = 2;
  options.engine.round_seconds = 0.01;
  TestServer test(options);
  const Stream s = stream(test, {{"prompt", "hi"}, {"max_tokens", 50}});
  REQUIRE(s.events.size() == 3);
  CHECK(s.events[2]["error"]["code"] == "engine_error");
  CHECK(s.events[2]["error"]["type"] == "server_error");
  CHECK_FALSE(s.events[2].contains("choices"));
}

TEST_CASE("a stream that takes too long ends with an error") {
  TestServer::Options options;
  options.request_seconds_max = 1;
  TestServer test(options);
  test.engine.hold();
  const Stream s = stream(test, {{"prompt", "hi"}});
  REQUIRE(s.events.size() == 1);
  CHECK(s.events[0]["error"]["code"] == "request_timeout");
  CHECK(test.engine.wait_idle());
}

TEST_CASE("a request may have a time of its own") {
  TestServer test;
  test.engine.hold();
  const HttpAnswer whole = test.post("/v1/completions", {{"prompt", "hi"}, {"timeout", 0.4}});
  CHECK(whole.status == 503);
  CHECK(whole.fields.at("x-should-retry") == "false");
  CHECK(Json::parse(whole.body)["error"]["code"] == "request_timeout");
  CHECK_THAT(whole.body, Catch::Contains("the 0.4 s of its timeout"));
  const HttpAnswer brief = test.post("/v1/completions", {{"prompt", "hi"}, {"timeout", 0.0001}});
  CHECK_THAT(brief.body, Catch::Contains("the 0.0001 s of its timeout"));
  const Stream s = stream(test, {{"prompt", "hi"}, {"timeout", 0.4}});
  REQUIRE(s.events.size() == 1);
  CHECK(s.events[0]["error"]["code"] == "request_timeout");
  CHECK(test.engine.wait_idle(10));
  CHECK(test.post("/v1/completions", {{"prompt", "hi"}, {"timeout", -1}}).status == 400);
  test.engine.release();
  CHECK(test.post("/v1/completions", {{"prompt", "hi"}, {"timeout", 600}}).status == 200);
}

TEST_CASE("stream_interval joins tokens behind the first") {
  TestServer test;
  const Stream s = stream(
      test, {{"prompt", "hi"}, {"max_tokens", 9}, {"temperature", 0}, {"stream_interval", 3}});
  std::vector<size_t> sizes;
  std::string text;
  for (const Json& event : s.events) {
    sizes.push_back(event["choices"][0]["text"].get<std::string>().size());
    text += event["choices"][0]["text"].get<std::string>();
  }
  CHECK(sizes == std::vector<size_t>{1, 3, 3, 2});
  CHECK(text == fake_text("hi", 9));
  CHECK(test.post("/v1/completions", {{"prompt", "hi"}, {"stream_interval", 0}}).status == 400);
}

TEST_CASE("prompt_logprobs name each prompt token by its id") {
  TestServer test;
  Json body = {{"prompt", "hi"}, {"max_tokens", 1}, {"prompt_logprobs", 2}};
  const Json answer = Json::parse(test.post("/v1/completions", body).body);
  const Json& found = answer["choices"][0]["prompt_logprobs"];
  REQUIRE(found.size() == 3);  // </s>, h, i
  CHECK(found[0].is_null());
  const Json& h = found[1].at(std::to_string('h' + 1));
  CHECK(h["decoded_token"] == "h");
  CHECK(h["logprob"].is_number());
  CHECK(h["rank"].is_number_integer());
  CHECK(answer["choices"][0]["logprobs"].is_null());
  // Beside an echo, each with its own number.
  body.update({{"echo", true}, {"logprobs", 0}});
  const Json both = Json::parse(test.post("/v1/completions", body).body)["choices"][0];
  CHECK(both["prompt_logprobs"] == found);
  CHECK(both["logprobs"]["top_logprobs"][1].size() == 1);
  body["stream"] = true;
  CHECK(Json::parse(test.post("/v1/completions", body).body)["error"]["param"] ==
        "prompt_logprobs");
  const Json message = {{"role", "user"}, {"content", "hi"}};
  const Json chat = {{"messages", {message}}, {"max_tokens", 1}, {"prompt_logprobs", 0}};
  CHECK(Json::parse(test.post("/v1/chat/completions", chat).body)["prompt_logprobs"].size() == 21);
}

TEST_CASE("a stream tells how far its prompts are when it is asked to") {
  TestServer::Options options;
  options.engine.prompt_chunk = 4;
  options.engine.round_seconds = 0.02;
  TestServer test(options);
  Json body = {{"prompt", {std::string(59, '1'), "ab"}},  // 15 rounds of 20 ms
               {"n", 2},
               {"max_tokens", 2},
               {"return_progress", true}};
  const Stream s = stream(test, body);
  int64_t before = 0;
  size_t events = 0;
  for (const Json& event : s.events) {
    if (!event.contains("prompt_progress")) continue;
    ++events;
    CHECK(event["choices"] == Json::array());
    const Json& progress = event["prompt_progress"];
    CHECK(progress["total"] == 63);  // With </s> each
    CHECK(progress["cache"] == 0);
    CHECK(progress["processed"] >= before);
    before = progress["processed"];
  }
  CHECK(events >= 4);  // Of 16 and more; a busy machine lets some pass before it listens.
  CHECK(before >= 56);
  body.erase("return_progress");
  for (const Json& event : stream(test, body).events)
    CHECK_FALSE(event.contains("prompt_progress"));
}

TEST_CASE("timings are in every chunk, and in a whole answer, when they are asked for") {
  TestServer test;
  Json body = {{"prompt", "hi"}, {"max_tokens", 3}, {"timings_per_token", true}};
  const Stream s = stream(test, body);
  REQUIRE(s.events.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const Json& timings = s.events[i]["timings"];
    CHECK(timings["prompt_n"] == 3);
    CHECK(timings["predicted_n"] == i + 1);
    for (const char* name : {"queue_ms", "prompt_ms", "predicted_ms"}) {
      CHECK(timings[name].get<double>() >= 0);
    }
  }
  const Json timings = Json::parse(test.post("/v1/completions", body).body)["timings"];
  CHECK(timings["predicted_n"] == 3);
  CHECK(timings.contains("prompt_per_second"));
  body.erase("timings_per_token");
  CHECK_FALSE(Json::parse(test.post("/v1/completions", body).body).contains("timings"));
}

TEST_CASE("silence is filled with pings by the clock") {
  TestServer::Options options;
  options.ping_seconds = 0.3;
  TestServer test(options);
  test.engine.hold();
  HttpClient client(test.server->port());
  SECTION("comments") {
    client.send(post_text("/v1/completions", R"({"prompt":"hi","stream":true})"));
    client.read_head();
    CHECK(client.read_chunk() == ": ping\n\n");
    CHECK(client.read_chunk() == ": ping\n\n");
  }
  SECTION("chunks without choices for who reads usage") {
    client.send(post_text("/v1/completions", R"({"prompt":"hi","stream":true,
                          "stream_options":{"include_usage":true}})"));
    client.read_head();
    const Json ping = Json::parse(sse_data({client.read_chunk()})[0]);
    CHECK(ping["choices"] == Json::array());
    CHECK(ping["usage"].is_null());
  }
  SECTION("none if not wanted") {
    client.send(
        post_text("/v1/completions", R"({"prompt":"hi","stream":true,"sse_ping_interval":-1})"));
    client.read_head();
    std::this_thread::sleep_for(std::chrono::milliseconds(900));
    test.engine.release();
    CHECK(client.read_chunk().starts_with("data: "));
  }
}

TEST_CASE("one connection carries streams and answers in turn") {
  TestServer test;
  HttpClient client(test.server->port());
  for (int i = 0; i < 3; ++i) {
    const HttpAnswer streamed =
        client.post("/v1/completions", R"({"prompt":"hi","max_tokens":4,"stream":true})");
    CHECK(streamed.complete);
    CHECK(streamed.chunks.back() == "data: [DONE]\n\n");
    CHECK(client.get("/health").status == 200);
  }
}

TEST_CASE("an HTTP/1.0 client gets a stream that ends with the connection") {
  TestServer test;
  HttpClient client(test.server->port());
  const std::string body = R"({"prompt":"hi","max_tokens":2,"stream":true})";
  client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const HttpAnswer answer = client.read_answer();
  CHECK_FALSE(answer.fields.contains("transfer-encoding"));
  CHECK(answer.body.starts_with("data: {"));
  CHECK(answer.body.ends_with("data: [DONE]\n\n"));
}

TEST_CASE("a reader that stops reading is cut off, and its memory stays bounded") {
  TestServer::Options options;
  options.engine.queue_max = 200;
  // So slow that the kernel's buffers fill before the end, under ThreadSanitizer, too.
  options.engine.round_seconds = 0.1;
  options.http.output_bytes_max = 64 << 10;
  TestServer test(options);
  HttpClient client(test.server->port(), 4096);
  client.send(post_text("/v1/completions",
                        R"({"prompt":"hi","n":128,"max_tokens":120,"stream":true,"logprobs":20})"));
  REQUIRE(test.engine.wait_submitted(128));
  CHECK(test.engine.wait_idle());
  CHECK(test.engine.finished(FinishReason::kLength) == 0);
}

TEST_CASE("a reader that stalls inside the limit is cut off by the clock") {
  TestServer::Options options;
  options.http.write_stall_seconds = 0.3;
  options.http.output_bytes_max = size_t{1} << 30;
  options.engine.queue_max = 200;
  TestServer test(options);
  HttpClient client(test.server->port(), 4096);
  client.send(post_text("/v1/completions",
                        R"({"prompt":"hi","n":64,"max_tokens":120,"stream":true,"logprobs":20})"));
  REQUIRE(test.engine.wait_submitted(64));
  CHECK(test.engine.wait_idle());
  CHECK_FALSE(test.server->wait_quiet(0.01));
  CHECK(test.server->wait_quiet(test::kPatience));
}

}  // namespace
}  // namespace spillway::completions_test
