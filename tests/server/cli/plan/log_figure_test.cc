#include "server/cli/plan/log_figure.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <regex>

namespace spillway {
namespace {

// Elements closed in order, attributes quoted, no stray characters of mark-up.
bool well_formed(const std::string& text) {
  static const std::regex kTag(R"(<(/?)([a-z]+)((?: [A-Za-z0-9:-]+="[^"<]*")*) ?(/?)>)");
  static const std::regex kEntity("&(amp|lt|gt|quot);");
  std::vector<std::string> open;
  size_t from = 0;
  const auto plain = [&](size_t to) {
    const std::string between = std::regex_replace(text.substr(from, to - from), kEntity, "");
    return between.find_first_of("<>&") == std::string::npos;
  };
  for (auto at = std::sregex_iterator(text.begin(), text.end(), kTag); at != std::sregex_iterator();
       ++at) {
    const std::smatch& tag = *at;
    if (!plain(static_cast<size_t>(tag.position()))) return false;
    from = static_cast<size_t>(tag.position() + tag.length());
    if (tag[1].length() > 0) {
      if (open.empty() || open.back() != tag[2]) return false;
      open.pop_back();
    } else if (tag[4].length() == 0) {
      open.push_back(tag[2]);
    }
  }
  return open.empty() && from > 0 && plain(text.size());
}

size_t count_of(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST_CASE("a figure has its points, labels and axes, and is XML whatever its texts hold") {
  LogFigure figure;
  figure.title = "opt-1.3b <&> \"a machine\"";
  figure.subtitle = std::string("control \x01, broken \xFF") + '\0';
  figure.x_name = "seconds";
  figure.y_name = "tokens/s";
  figure.points = {{1, 10, "block 1", "a\nb", false},
                   {20, 90, "block <16>", "", false},
                   {400, 150, "block 256", "--block 256", true}};
  figure.x_limit = 500;
  figure.x_limit_label = "limit & co";
  const std::string svg = svg_of(figure);
  CHECK(well_formed(svg));
  CHECK(svg.find("opt-1.3b &lt;&amp;&gt; &quot;a machine&quot;") != std::string::npos);
  CHECK(svg.find("control \xEF\xBF\xBD, broken \xEF\xBF\xBD\xEF\xBF\xBD") != std::string::npos);
  CHECK(count_of(svg, "<circle") == 3);
  for (const char* label : {">block 1<", ">block &lt;16&gt;<", ">block 256<", ">limit &amp; co<",
                            ">seconds<", ">tokens/s<", ">100<", ">10<"}) {
    INFO(label);
    CHECK(svg.find(label) != std::string::npos);
  }
}

TEST_CASE("points anywhere make a figure whose marks lie inside it") {
  constexpr uint64_t kSeed = 23;
  std::mt19937_64 random(kSeed);
  const auto number = [&] {
    return std::pow(10.0, static_cast<double>(random() % 1200) / 100 - 6);
  };
  for (int round = 0; round < 200; ++round) {
    LogFigure figure;
    for (size_t i = 0; i <= random() % 30; ++i) {
      figure.points.push_back({number(), number(), "block " + std::to_string(i), "", i == 0});
    }
    if (round % 2 == 0) figure.x_limit = number();
    const std::string svg = svg_of(figure);
    INFO("seed " << kSeed << ", round " << round);
    CHECK(well_formed(svg));
    CHECK(count_of(svg, "<circle") == figure.points.size());
    CHECK(svg.find(">block 0<") != std::string::npos);
    static const std::regex kCircle("<circle cx=\"([-0-9.]+)\" cy=\"([-0-9.]+)\"");
    for (auto at = std::sregex_iterator(svg.begin(), svg.end(), kCircle);
         at != std::sregex_iterator(); ++at) {
      const double x = std::stod((*at)[1]), y = std::stod((*at)[2]);
      CHECK((x > 84 && x < 732 && y > 74 && y < 438));
    }
  }
}

TEST_CASE("logarithmic ticks are round numbers within the axis") {
  CHECK(log_ticks(0.9, 110) == std::vector<double>{1, 2, 5, 10, 20, 50, 100});
  CHECK(log_ticks(0.25, 0.8) == std::vector<double>{0.3, 0.4, 0.5, 0.6, 0.7, 0.8});
  CHECK(log_ticks(0.001, 1e6).size() == 10);
  for (const double low : {1e-5, 0.37, 1.0, 4.2, 99.0, 12345.0}) {
    CHECK(log_ticks(low, 3.2 * low).size() >= 2);
  }
}

}  // namespace
}  // namespace spillway
