#include "client/command/bench/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace gdpcache::bench {
namespace {

// Pixels.
constexpr double kWidth = 960;
constexpr double kMargin = 24;
constexpr double kBarsBegin = 220;
constexpr double kBarsEnd = 660;
constexpr double kValueBegin = 680;
constexpr double kHeading = 118;  // title, two lines of text, legend
constexpr double kGroupHeight = 34;
constexpr double kRowHeight = 25;
constexpr double kBarHeight = 15;
constexpr double kScaleHeight = 40;

constexpr int kTicks = 12;  // about as many have room

constexpr char kStyle[] = R"(
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1f2328; }
.page { fill: #ffffff; }
.title { font-size: 20px; font-weight: 600; }
.group { font-weight: 600; }
.quiet { fill: #59636e; font-size: 12px; }
.ratio { font-weight: 600; }
.grid { stroke: #d1d9e0; stroke-width: 1; }
.one { stroke: #59636e; stroke-width: 1.5; }
.time { fill: #3b82c4; }
.rate { fill: #2f9e6e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .page { fill: #0d1117; }
  .quiet { fill: #9198a1; }
  .grid { stroke: #30363d; }
  .one { stroke: #9198a1; }
  .time { fill: #58a6ff; }
  .rate { fill: #4ac58f; }
}
)";

std::string Escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= ' ') result += c;  // XML knows no other control characters
    }
  }
  return result;
}

std::string Text(double x, double y, const char* style, const std::string& text, const char* anchor = "start") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y, style, anchor,
                         Escaped(text));
}

std::string Line(double x, double top, double bottom, const char* style) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x, top, x, bottom,
                         style);
}

std::string Bar(double x, double y, double width, const char* style) {
  return absl::StrFormat("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\" class=\"%s\"/>\n", x, y,
                         width, kBarHeight, style);
}

/// Powers of two that hold all ratios, 1 among them, and the places in between.
class Scale {
 public:
  explicit Scale(const std::vector<Figure>& figures) {
    for (const Figure& figure : figures) {
      least_ = std::min(least_, static_cast<int>(std::floor(std::log2(figure.ratio()))));
      most_ = std::max(most_, static_cast<int>(std::ceil(std::log2(figure.ratio()))));
    }
  }

  int least() const { return least_; }
  int most() const { return most_; }

  double Place(double ratio) const {
    return kBarsBegin + (kBarsEnd - kBarsBegin) * (std::log2(ratio) - least_) / (most_ - least_);
  }

 private:
  int least_ = -1;
  int most_ = 1;
};

std::string Tick(int power) {
  if (power >= 0) return absl::StrCat(1LL << std::min(power, 62));
  return absl::StrCat("1/", 1LL << std::min(-power, 62));
}

const char* GroupTitle(const std::string& group) {
  if (group == "kernel") return "Recurrence alone, by tokens";
  if (group == "prefill") return "Prefill, by tokens and transport";
  if (group == "decode") return "One-token calls, by clients at once";
  if (group == "slots") return "States of one request";
  return "Snapshots of one request";
}

std::string Row(const Figure& figure, const Scale& scale, double y) {
  const double one = scale.Place(1);
  const double end = scale.Place(figure.ratio());
  const std::string against =
      absl::StrJoin(figure.yardsticks, " + ", [](std::string* out, const Yardstick& part) { *out += part.name; });
  const std::string ratio = absl::StrFormat("%.2f", figure.ratio());
  const double text_y = y + 12;
  // The number stands at the bar's end, unless that is where the names or the values are.
  const bool beyond = end >= one ? end + 40 < kBarsEnd : end - 40 > kBarsBegin;
  const bool left = (end < one) == beyond;
  const double at = left ? std::min(end, one) - 6 : std::max(end, one) + 6;
  return absl::StrCat(
      "<g>\n<title>",
      Escaped(absl::StrCat(figure.name, ": ", FormatValue(figure, figure.value), " vs ", FormatYardsticks(figure))),
      "</title>\n", Text(kBarsBegin - 14, text_y, "name", figure.name, "end"),
      Bar(std::min(one, end), y, std::max(std::abs(end - one), 1.0),
          figure.unit == Unit::kMicroseconds ? "time" : "rate"),
      Text(at, text_y, "ratio", ratio, left ? "end" : "start"),
      Text(kValueBegin, text_y, "quiet", absl::StrCat(FormatValue(figure, figure.value), " vs ", against)), "</g>\n");
}

}  // namespace

std::string Chart(const Report& report) {
  const Scale scale(report.figures);
  std::string rows;
  double y = kHeading;
  std::string group;
  for (const Figure& figure : report.figures) {
    if (Group(figure.name) != group) {
      group = Group(figure.name);
      y += kGroupHeight;
      rows += Text(kMargin, y - 10, "group", GroupTitle(group));
    }
    rows += Row(figure, scale, y);
    y += kRowHeight;
  }
  std::string grid;
  const int step = 1 + (scale.most() - scale.least()) / kTicks;
  for (int power = scale.least(); power <= scale.most(); ++power) {
    if (power % step != 0) continue;
    const double x = scale.Place(std::exp2(power));
    grid += Line(x, kHeading + kGroupHeight - 4, y, power == 0 ? "one" : "grid");
    grid += Text(x, y + 18, "quiet", Tick(power), "middle");
  }
  grid += Text(kValueBegin, y + 18, "quiet", "times the yardstick, logarithmic");
  const double height = y + kScaleHeight;
  return absl::StrCat(
      absl::StrFormat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f "
                      "%.0f\" role=\"img\">\n",
                      kWidth, height, kWidth, height),
      "<title>gdpcache bench</title>\n<style>", kStyle, "</style>\n",
      absl::StrFormat("<rect class=\"page\" width=\"%.0f\" height=\"%.0f\" rx=\"6\"/>\n", kWidth, height),
      Text(kMargin, 38, "title", "What the server takes, in units of what the machine allows"),
      Text(kMargin, 60, "quiet", DescribeServer(report)),
      Text(kMargin, 78, "quiet", absl::StrCat(DescribeModel(report.model), "; ", report.date)),
      Bar(kMargin, 94, 28, "time"), Text(kMargin + 36, 106, "quiet", "time: less is better"),
      Bar(kMargin + 190, 94, 28, "rate"), Text(kMargin + 226, 106, "quiet", "calls a second: more is better"), grid,
      rows, "</svg>\n");
}

}  // namespace gdpcache::bench
