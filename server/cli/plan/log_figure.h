// A figure of some points over two logarithmic axes, as an SVG document. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace spillway {

struct LogFigure {
  struct Point {
    double x = 0, y = 0;      // Positive and finite
    std::string label;        // Beside the point, where there is room
    std::string details;      // Shown while the pointer is over it
    bool emphasized = false;  // Filled, its label bold and never left out
  };

  std::string title, subtitle;
  std::string x_name, y_name;     // With their units
  std::vector<Point> points;      // Joined by a line, in this order; one at least
  std::optional<double> x_limit;  // A dashed line; drawn where the axes reach it
  std::string x_limit_label;
};

// Well-formed whatever the texts hold: ill-formed UTF-8 and what XML may not carry become U+FFFD.
// REQUIRES: a point, all of them positive and finite.
std::string svg_of(const LogFigure& figure);

// Where an axis from `low` to `high` has its ticks: 1, 2 and 5 of each power of ten, more of them
// where these are fewer than three and only powers where they are many. REQUIRES: 0 < low < high.
std::vector<double> log_ticks(double low, double high);

// `text` as XML carries it, in an element or between double quotes.
std::string xml_escaped(const std::string& text);

}  // namespace spillway
