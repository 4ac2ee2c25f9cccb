#include "server/cli/plan/log_figure.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <span>
#include <utility>

#include "kernels/base/check.h"
#include "server/tokenizer/utf8.h"

namespace spillway {

namespace {

constexpr double kWidth = 760, kHeight = 500;
constexpr double kLeft = 84, kRight = 28, kTop = 74, kBottom = 62;
constexpr double kCharacter = 6.6;  // About a character's width at 12 px
constexpr double kLine = 15;
constexpr const char* kInk = "#1f2933";
constexpr const char* kFaint = "#d9dee3";
constexpr const char* kColor = "#1769aa";

[[gnu::format(printf, 1, 2)]] std::string formatted(const char* text, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, text);
  std::vsnprintf(line, sizeof(line), text, arguments);
  va_end(arguments);
  return line;
}

struct Axis {
  double low = 1, high = 10;  // Of values
  double from = 0, to = 1;    // Of pixels
  double at(double value) const {
    return from + (to - from) * std::log(value / low) / std::log(high / low);
  }
};

// Room around the values, and half a decade at least, so that there is something to read off.
Axis axis_of(double least, double most, double from, double to) {
  constexpr double kRoom = 1.25, kSpan = 3.2;
  Axis axis{least / kRoom, most * kRoom, from, to};
  if (const double span = axis.high / axis.low; span < kSpan) {
    const double more = std::sqrt(kSpan / span);
    axis.low /= more;
    axis.high *= more;
  }
  return axis;
}

struct Box {
  double left, top, right, bottom;
  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

class Drawing {
 public:
  explicit Drawing(const LogFigure& figure) : figure_(figure) {
    SPILLWAY_CHECK(!figure.points.empty());
    double x_least = figure.points[0].x, x_most = x_least;
    double y_least = figure.points[0].y, y_most = y_least;
    for (const LogFigure::Point& point : figure.points) {
      SPILLWAY_CHECK(point.x > 0 && point.y > 0 && std::isfinite(point.x + point.y));
      x_least = std::min(x_least, point.x);
      x_most = std::max(x_most, point.x);
      y_least = std::min(y_least, point.y);
      y_most = std::max(y_most, point.y);
    }
    x_ = axis_of(x_least, x_most, kLeft, kWidth - kRight);
    y_ = axis_of(y_least, y_most, kHeight - kBottom, kTop);
  }

  std::string svg() {
    text_ = formatted(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
        "viewBox=\"0 0 %.0f %.0f\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" "
        "fill=\"%s\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
        kWidth, kHeight, kWidth, kHeight, kInk);
    const double room = (kWidth - kLeft - kRight) / static_cast<double>(figure_.title.size() + 1);
    write(kLeft, 28,
          formatted("font-size=\"%.1f\" font-weight=\"bold\"", std::clamp(room / 0.62, 8.0, 16.0)),
          figure_.title);
    write(kLeft, 50, "", figure_.subtitle);
    axes();
    limit();
    line();
    points();
    return text_ + "</svg>\n";
  }

 private:
  void write(double x, double y, const std::string& attributes, const std::string& text) {
    text_ += formatted("<text x=\"%.1f\" y=\"%.1f\" ", x, y) + attributes + ">" +
             xml_escaped(text) + "</text>\n";
  }

  void stroke(double x1, double y1, double x2, double y2, const char* attributes) {
    text_ += formatted("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2,
                       y2, attributes);
  }

  void axes() {
    const std::string grid = formatted("stroke=\"%s\"", kFaint);
    for (const double tick : log_ticks(x_.low, x_.high)) {
      const double x = x_.at(tick);
      stroke(x, kTop, x, kHeight - kBottom, grid.c_str());
      write(x, kHeight - kBottom + 18, "text-anchor=\"middle\"", formatted("%.10g", tick));
    }
    for (const double tick : log_ticks(y_.low, y_.high)) {
      const double y = y_.at(tick);
      stroke(kLeft, y, kWidth - kRight, y, grid.c_str());
      write(kLeft - 8, y + 4, "text-anchor=\"end\"", formatted("%.10g", tick));
    }
    text_ += formatted(
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" "
        "stroke=\"%s\"/>\n",
        kLeft, kTop, kWidth - kLeft - kRight, kHeight - kTop - kBottom, kInk);
    write((kLeft + kWidth - kRight) / 2, kHeight - 16, "text-anchor=\"middle\"", figure_.x_name);
    const double middle = (kTop + kHeight - kBottom) / 2;
    write(20, middle, formatted("text-anchor=\"middle\" transform=\"rotate(-90 20 %.1f)\"", middle),
          figure_.y_name);
  }

  void limit() {
    if (!figure_.x_limit || *figure_.x_limit < x_.low || *figure_.x_limit > x_.high) return;
    const double x = x_.at(*figure_.x_limit);
    stroke(x, kTop, x, kHeight - kBottom, "stroke=\"#b3261e\" stroke-dasharray=\"5 4\"");
    const double width = kCharacter * static_cast<double>(figure_.x_limit_label.size());
    const bool left = x + 5 + width > kWidth - kRight;
    write(left ? x - 5 : x + 5, kHeight - kBottom - 8,
          left ? "fill=\"#b3261e\" text-anchor=\"end\"" : "fill=\"#b3261e\"",
          figure_.x_limit_label);
  }

  void line() {
    text_ += "<polyline fill=\"none\" stroke=\"" + std::string(kColor) +
             "\" stroke-opacity=\"0.45\" stroke-width=\"1.5\" points=\"";
    for (const LogFigure::Point& point : figure_.points) {
      text_ += formatted("%.1f,%.1f ", x_.at(point.x), y_.at(point.y));
    }
    text_ += "\"/>\n";
  }

  void points() {
    for (const LogFigure::Point& point : figure_.points) {
      const double x = x_.at(point.x), y = y_.at(point.y);
      taken_.push_back({x - 6, y - 6, x + 6, y + 6});
      text_ += formatted(
                   "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"%s\" stroke=\"%s\" "
                   "stroke-width=\"2\"><title>",
                   x, y, point.emphasized ? 6 : 4, point.emphasized ? kColor : "white", kColor) +
               xml_escaped(point.details) + "</title></circle>\n";
    }
    for (const bool emphasized : {true, false}) {
      for (const LogFigure::Point& point : figure_.points) {
        if (point.emphasized == emphasized) label(point);
      }
    }
  }

  // The first place beside the point that is free: below to the right and above to the left, where
  // a rising line does not pass, then elsewhere.
  void label(const LogFigure::Point& point) {
    const double width = kCharacter * static_cast<double>(point.label.size());
    const double x = x_.at(point.x), y = y_.at(point.y);
    const double right = x + 8, left = x - 8 - width, below = y + 2, above = y - 4 - kLine;
    const std::pair<double, double> places[] = {
        {right, below}, {left, above}, {right, above}, {left, below}, {left, below + 16.0}};
    for (const auto& [at, top] : places) {
      const Box box{at, top, at + width, top + kLine};
      const bool inside = box.left > kLeft && box.right < kWidth - kRight && box.top > kTop &&
                          box.bottom < kHeight - kBottom;
      const bool meets = std::any_of(taken_.begin(), taken_.end(),
                                     [&](const Box& other) { return box.meets(other); });
      const bool last = point.emphasized && &top == &places[std::size(places) - 1].second;
      if (!last && (!inside || meets)) continue;
      taken_.push_back(box);
      write(at, top + kLine - 3, point.emphasized ? "font-weight=\"bold\"" : "", point.label);
      return;
    }
  }

  const LogFigure& figure_;
  Axis x_, y_;
  std::vector<Box> taken_;
  std::string text_;
};

}  // namespace

std::string svg_of(const LogFigure& figure) {
  return Drawing(figure).svg();
}

std::vector<double> log_ticks(double low, double high) {
  SPILLWAY_CHECK(low > 0 && low < high);
  constexpr int kAll[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, kFew[] = {1, 2, 5}, kOne[] = {1};
  const auto ticks = [&](std::span<const int> digits) {
    std::vector<double> found;
    for (auto power = static_cast<int>(std::floor(std::log10(low))); std::pow(10.0, power) <= high;
         ++power) {
      for (const int digit : digits) {
        // Of whole numbers, so that 0.3 is not 0.30000000000000004.
        const double tick =
            power < 0 ? digit / std::pow(10.0, -power) : digit * std::pow(10.0, power);
        if (tick >= low && tick <= high) found.push_back(tick);
      }
    }
    return found;
  };
  const std::vector<double> few = ticks(kFew);
  if (few.size() < 3) return ticks(kAll);
  return few.size() > 12 ? ticks(kOne) : few;
}

std::string xml_escaped(const std::string& text) {
  std::string found;
  for (const char c : to_utf8(text)) {
    switch (c) {
      case '&':
        found += "&amp;";
        break;
      case '<':
        found += "&lt;";
        break;
      case '>':
        found += "&gt;";
        break;
      case '"':
        found += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') {
          found += "\xEF\xBF\xBD";
        } else {
          found += c;
        }
    }
  }
  return found;
}

}  // namespace spillway
