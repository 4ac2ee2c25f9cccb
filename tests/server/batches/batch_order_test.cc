// In which order a batch starts its lines, and that nothing else follows from it.
#include "server/batches/batch_order.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "tests/server/cli/batch/batch_fixture.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/seed.h"

namespace spillway::batch_test::batch_order_test {
namespace {

using Numbers = std::vector<int64_t>;

std::string letters(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < count) text += static_cast<char>('a' + random() % 26);
  return text;
}

std::string completion(const std::string& prompt, const std::string& more = "") {
  return "{" + more + "\"prompt\":\"" + prompt + "\",\"max_tokens\":1}\n";
}

// The numbers of the lines in the order made; empty when it is the input's.
struct Ordered {
  BatchOrder order;
  Numbers numbers;
};

Ordered order_of(const std::string& text, size_t bytes_max = kOrderBytesMax) {
  Place place;
  place.write_input(text);
  BatchInput input = BatchInput::open(place.flags.input).value();
  const InputSummary summary = summarize(input).value();
  const ModelShape shape = test::make_shape({});
  ApiContext context;
  context.shape = &shape;
  Ordered ordered{BatchOrder::of(input, summary.rows, context, bytes_max).value(), {}};
  for (const BatchOrder::Line& line : ordered.order.lines()) {
    ordered.numbers.push_back(line.number);
    InputLine found;
    input.go_to(line.offset, line.number);
    REQUIRE(input.next(&found).value());
    CHECK(found.number == line.number);
  }
  return ordered;
}

TEST_CASE("lines are put behind the first that begins alike, whatever their bodies begin with") {
  const std::string a = letters(300, 1), b = letters(300, 2), c = letters(300, 3);
  CHECK(order_of(completion(a + "1") + completion(b + "1") + completion(c) +
                 completion(b + "2", "\"custom_id\":\"b2\",\"best_of\":1,") +
                 "{\"body\":{\"max_tokens\":1,\"prompt\":\"" + a + "2\"}}\n" + completion(b + "3"))
            .numbers == Numbers{1, 5, 2, 4, 6, 3});
}

TEST_CASE("among lines that begin alike those are together that do so for longer") {
  const std::string head = letters(2000, 1);
  std::vector<std::string> documents, lines;
  for (uint32_t i = 0; i < 3; ++i) documents.push_back(head + letters(3000, 10 + i));
  std::string text;
  for (const auto& [document, question] : std::vector<std::pair<size_t, int>>{
           {0, 1}, {1, 1}, {2, 1}, {2, 2}, {0, 2}, {1, 2}, {0, 3}}) {
    text += completion(documents[document] + std::to_string(question));
  }
  CHECK(order_of(text + completion(letters(6000, 9)) + completion(head) + completion(documents[1]))
            .numbers == Numbers{1, 5, 7, 2, 6, 10, 3, 4, 9, 8});
}

TEST_CASE("two prompts are together when two thirds of the shorter are alike, at any length") {
  for (size_t bytes = 1000; bytes < 600'000; bytes = bytes * 5 / 3) {
    const std::string head = letters(bytes * 2 / 3 + 2, 1);
    const auto line = [&](uint32_t seed) { return completion(head + letters(bytes / 3, seed)); };
    const std::string near = letters(bytes, 7);
    INFO(bytes);
    CHECK(order_of(completion(near) + line(2) + completion(near) + line(3)).numbers ==
          Numbers{1, 3, 2, 4});
  }
}

TEST_CASE("chats go by their messages, token ids by the ids, several prompts by the first") {
  const auto chat = [](const std::string& system, const std::string& user) {
    return R"({"method":"POST","url":"/v1/chat/completions","body":{"max_tokens":1,"messages":[)"
           R"({"role":"system","content":")" +
           system + R"("},{"role":"user","content":")" + user + "\"}]}}\n";
  };
  const std::string a = letters(400, 1), b = letters(400, 2);
  CHECK(order_of(chat(a, "1") + chat(b, "1") + chat(a, "2")).numbers == Numbers{1, 3, 2});
  const auto ids = [](int first, int last) {
    std::string text = "[";
    for (int i = 0; i < 100; ++i) text += std::to_string(first + i) + ",";
    return text + std::to_string(last) + "]";
  };
  const auto prompts = [](const std::string& json) { return "{\"prompt\":" + json + "}\n"; };
  CHECK(order_of(prompts(ids(100, 1)) + prompts(ids(200, 1)) + prompts(ids(100, 2))).numbers ==
        Numbers{1, 3, 2});
  CHECK(order_of(prompts("[\"" + a + "\",\"x\"]") + prompts("[" + ids(1, 2) + "]") +
                 prompts("[\"" + a + "\",\"y\"]"))
            .numbers == Numbers{1, 3, 2});
}

TEST_CASE("an input whose lines share nothing, or too little, keeps its order") {
  const std::string a = letters(240, 1), b = letters(240, 2), c = letters(400, 3);
  CHECK(order_of("").numbers.empty());
  CHECK(order_of(completion(a) + completion(b)).numbers.empty());
  CHECK(order_of(completion(a + "1") + completion(b + "1") + completion(a + "2")).numbers.empty());
  CHECK(order_of(completion(b) + completion(c + "1") + completion(c + "2") + completion(a))
            .numbers.empty());  // Neighbours already
  CHECK(order_of(completion(c, "\"user\":\"1\",") + completion(b) + "{\"suffix\":\"" + c + "\"}\n")
            .numbers.empty());
  std::string text;
  for (uint32_t i = 0; i < 2000; ++i) text += completion(letters(300, i));
  CHECK(order_of(text).numbers.empty());
}

TEST_CASE("bad lines, lines that are too long and blank ones have places of their own") {
  const std::string a = letters(300, 1), b = letters(300, 2);
  const std::string bad = "{\"prompt\":\"" + a + "\",,}\n";
  const std::string too_long = completion(a + std::string(kBatchLineBytesMax, 'x'));
  const std::string text = "\xEF\xBB\xBF" + completion(a + "1") + "\n \t\r\n" + bad +
                           completion(b + "1") + too_long + completion(a + "2") + "\r\n" +
                           "{\"messages\":7}\r\n[]\n" + completion(b + "2");
  CHECK(order_of(text.substr(0, text.size() - 1)).numbers == Numbers{1, 7, 4, 5, 11, 6, 9, 10});
}

TEST_CASE("the order of a hundred thousand lines is made in bounded memory, or not at all") {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "{\"prompt\":\"" + std::to_string(i % 10) + "\"}\n";
  CHECK_FALSE(order_of(text).order.too_many());
  CHECK(order_of(text, 3'199'999).order.too_many());
  CHECK_FALSE(order_of(text, 3'200'000).order.too_many());
  const std::string a = letters(300, 1), b = letters(300, 2);
  const std::string three = completion(a + "1") + completion(b) + completion(a + "2");
  CHECK(order_of(three, 3 * 32 + 3 * 8 - 1).order.too_many());  // A hash each
  CHECK(order_of(three, 3 * 32 + 3 * 8 - 1).order.lines().empty());
  CHECK(order_of(three, 3 * 32 + 3 * 8).numbers == Numbers{1, 3, 2});
}

// `count` lines in random order, most with one of a few common beginnings of `ids` token ids; some
// bad, some with two samples, some with the custom_id of another line.
std::string mixed_beginnings(int count, int ids, std::mt19937& random) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    std::string prompt = "[";
    const auto first = static_cast<int>(100 + random() % 5 * 150);
    for (int k = 0; k < ids && i % 10 != 9; ++k) prompt += std::to_string(first + k % 140) + ",";
    prompt += std::to_string(100 + i % 900) + "]";
    if (i % 23 == 11) prompt += ",";
    text += "{\"custom_id\":\"id-" +
            std::to_string(i % 29 == 28 ? random() % static_cast<unsigned>(count)
                                        : static_cast<unsigned>(i)) +
            "\",\"prompt\":" + prompt + ",\"max_tokens\":" + std::to_string(1 + i % 7) +
            ",\"return_token_ids\":true" + (i % 5 == 1 ? ",\"n\":2" : "") + "}\n" +
            (i % 31 == 30 ? "\n" : "");
  }
  return text;
}

// The first ids of the prompts in the order in which their sequences were started.
struct Starts {
  MadeUpScheduler scheduler{1};  // One at a time
  std::vector<int32_t> firsts;
  Starts() {
    scheduler.sweep_status = [this](const std::vector<const Request*>& requests) {
      firsts.push_back(requests.front()->prompt.front());
      return Status();
    };
  }
};

TEST_CASE("a batch runs lines that begin alike near each other, and --no-reorder does not") {
  Place place;
  std::string text;
  for (int i = 0; i < 30; ++i) {
    text += "{\"max_tokens\":1,\"prompt\":[";
    for (int k = 0; k < 100; ++k) text += std::to_string(200 + i % 3) + ",";
    text += std::to_string(i) + "]}\n";
  }
  place.write_input(text);
  const auto changes = [&] {
    Starts starts;
    test::Captured log;
    REQUIRE(place.run(&starts.scheduler).ok());
    CHECK((log.end().find("begin alike") != std::string::npos) == !place.flags.no_reorder);
    int count = 0;
    for (size_t i = 1; i < starts.firsts.size(); ++i) {
      count += starts.firsts[i] != starts.firsts[i - 1] ? 1 : 0;
    }
    return count;
  };
  CHECK(changes() == 2);
  place.flags.overwrite = true;
  place.flags.no_reorder = true;
  CHECK(changes() == 29);
  place.flags.no_reorder = false;
  place.write_input(plain_input(30));
  Starts starts;
  test::Captured log;
  REQUIRE(place.run(&starts.scheduler).ok());
  CHECK(log.end().find("begin alike") == std::string::npos);
  CHECK(std::is_sorted(starts.firsts.begin(), starts.firsts.end()));
}

TEST_CASE("the output is the same in any order, after interruptions too") {
  const unsigned seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  Place place;
  place.write_input(mixed_beginnings(240, 100, random));
  const auto reordered = place.whole();
  place.flags.no_reorder = true;
  const auto whole = place.whole();
  REQUIRE(whole.size() == 240);
  for (size_t i = 0; i < whole.size(); ++i) CHECK(reordered[i] == whole[i]);
  const auto repeats = std::count_if(whole.begin(), whole.end(), [](const nlohmann::json& row) {
    return !row["error"].is_null() && row["error"]["code"] == "duplicate_custom_id";
  });
  CHECK(repeats > 0);

  place.flags.resume = true;
  int64_t done = 0;
  for (int tries = 0; tries < 40; ++tries) {
    place.flags.no_reorder = random() % 2 == 0;
    MadeUpScheduler broken(8);
    broken.break_after_tokens = 60;
    if (place.run(&broken).ok()) break;
    REQUIRE(std::filesystem::exists(place.journal()));
    const int64_t now = Journal::inspect(place.journal()).value().finished;
    CHECK(now >= done);
    done = now;
  }
  REQUIRE(done > 0);
  REQUIRE(place.run().ok());
  CHECK(place.rows() == whole);
}

TEST_CASE("a line that is changed while a reordered batch runs is not used") {
  const unsigned seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  Place place;
  const std::string text = mixed_beginnings(1000, 120, random);
  place.write_input(text);
  const auto whole = place.whole();
  const auto kind = GENERATE(0, 1, 2);
  place.on_load = [&] {
    std::string other = text;
    // An answer to a changed line would be noticed.
    const size_t at = other.find("\"max_tokens\":", 2 * text.size() / 3) + 13;
    other[at] = other[at] == '7' ? '6' : '7';
    place.write_input(kind == 0 ? other : kind == 1 ? text.substr(0, at) : "\n" + text.substr(1));
  };
  const Status status = place.run();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains(kind == 1 ? "is shorter than it was" : "has changed") &&
                 Catch::Contains("--resume"));
  place.on_load = nullptr;
  place.write_input(text);
  place.flags.resume = true;
  REQUIRE(place.run().ok());
  CHECK(place.rows() == whole);
}

}  // namespace
}  // namespace spillway::batch_test::batch_order_test
