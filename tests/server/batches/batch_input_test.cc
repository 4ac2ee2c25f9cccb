// The lines of an input, from front to back and in any other order.
#include "server/batches/batch_input.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "tests/server/cli/batch/batch_fixture.h"
#include "tests/support/seed.h"

namespace spillway::batch_test::batch_input_test {
namespace {

// A line as a value.
struct Kept {
  int64_t number = 0;
  uint64_t offset = 0;
  bool too_long = false;
  std::string text;
  bool operator==(const Kept&) const = default;
};

std::optional<Kept> next(BatchInput& input) {
  InputLine line;
  if (!input.next(&line).value()) return std::nullopt;
  return Kept{line.number, line.offset, line.too_long, std::string(line.text)};
}

std::vector<Kept> rest_of(BatchInput& input) {
  std::vector<Kept> lines;
  while (auto line = next(input)) lines.push_back(*std::move(line));
  return lines;
}

// With a byte order mark, all ends there are, blank lines, one that is too long and many pieces.
std::string any_text(std::mt19937& random) {
  std::string text = "\xEF\xBB\xBF";
  for (int i = 0; i < 300; ++i) {
    const size_t bytes = i % 100 == 50 ? (2 << 20) : i % 20 == 7 ? 100'000 : random() % 3000;
    text += std::string(bytes, static_cast<char>('a' + i % 26)) + (i % 3 == 0 ? "\r\n" : "\n");
  }
  return text + "the last one has no end";
}

TEST_CASE("lines are the same in any order") {
  const unsigned seed = test::random_seed();
  INFO("SPILLWAY_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  Place place;
  const std::string text = any_text(random);
  place.write_input(text);
  BatchInput input = BatchInput::open(place.flags.input).value();
  const std::vector<Kept> lines = rest_of(input);
  REQUIRE(lines.size() > 280);
  CHECK(lines.front().offset == 0);
  CHECK(lines.back().text == "the last one has no end");
  CHECK(std::count_if(lines.begin(), lines.end(), [](const Kept& k) { return k.too_long; }) == 3);
  for (const Kept& line : lines) {
    const size_t at = line.offset + (line.number == 1 ? 3 : 0);
    CHECK(text.compare(at, line.text.size(), line.text) == 0);
    CHECK((at == 3 || text[at - 1] == '\n'));
  }
  for (int i = 0; i < 1000; ++i) {
    const Kept& line = lines[random() % lines.size()];
    input.go_to(line.offset, line.number);
    const auto found = next(input);
    REQUIRE(found);
    CHECK((*found == line));
  }
  input.go_to(lines[100].offset, lines[100].number);
  CHECK((rest_of(input) == std::vector<Kept>(lines.begin() + 100, lines.end())));
  input.go_to(lines.back().offset, lines.back().number);
  input.rewind();
  CHECK((rest_of(input) == lines));
}

TEST_CASE("a line of bytes that have changed is refused in any order, the others are not") {
  Place place;
  std::string text;
  while (text.size() < 1'000'000) text += std::string(999, 'x') + "\n";
  place.write_input(text);
  BatchInput input = BatchInput::open(place.flags.input).value();
  const std::vector<Kept> lines = rest_of(input);
  text[500'500] = 'y';
  place.write_input(text);
  int64_t refused = 0;
  for (const Kept& line : lines) {
    InputLine found;
    input.go_to(line.offset, line.number);
    const auto result = input.next(&found);
    const bool changed = line.number == 501;
    if (result.ok()) {
      CHECK_FALSE(changed);
      CHECK(found.text == line.text);
      continue;
    }
    ++refused;
    CHECK(result.status().code() == Code::kInvalidArgument);
    CHECK_THAT(std::string(result.status().message()), Catch::Contains("has changed"));
    CHECK(std::abs(line.number - 501) < 70);
  }
  CHECK(refused > 0);
}

TEST_CASE("no line of a file that became shorter is read, not even at the second try") {
  Place place;
  std::string text;
  while (text.size() < 100'000) text += std::string(99, 'x') + "\n";
  place.write_input(text);
  BatchInput input = BatchInput::open(place.flags.input).value();
  rest_of(input);
  input.rewind();
  place.write_input(text.substr(0, 50'000));
  for (int i = 0; i < 2; ++i) {
    InputLine line;
    const auto result = input.next(&line);
    REQUIRE_FALSE(result.ok());
    CHECK_THAT(std::string(result.status().message()), Catch::Contains("is shorter"));
  }
}

}  // namespace
}  // namespace spillway::batch_test::batch_input_test
