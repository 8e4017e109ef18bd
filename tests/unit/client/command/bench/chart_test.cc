#include "client/command/bench/chart.h"

#include <regex>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/command/bench/sample_report.h"

namespace gdpcache::bench {
namespace {

using ::testing::HasSubstr;

/// What is wrong with the elements of an XML text without comments, processing instructions and CDATA.
std::string Mistake(const std::string& xml) {
  static const std::regex kPiece(
      R"re(<(/?)([a-z]+)((?: [a-zA-Z0-9-]+="[^"<&]*")*) ?(/?)>|([^<&>]+)|&(?:amp|lt|gt|quot);)re");
  std::vector<std::string> open;
  std::size_t end = 0;
  for (std::sregex_iterator piece(xml.begin(), xml.end(), kPiece); piece != std::sregex_iterator(); ++piece) {
    if (static_cast<std::size_t>(piece->position()) != end) break;
    end += static_cast<std::size_t>(piece->length());
    const std::string name = (*piece)[2];
    if (name.empty() || (*piece)[4] == "/") continue;
    if ((*piece)[1] != "/") {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return "</" + name + "> closes nothing";
    } else {
      open.pop_back();
    }
  }
  if (end != xml.size()) return "no XML: " + xml.substr(end, 40);
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

TEST(ChartTest, MistakesAreFound) {
  EXPECT_EQ(Mistake("<a x=\"1\"><b/>text &amp; more</a>"), "");
  EXPECT_NE(Mistake("<a><b></a></b>"), "");
  EXPECT_NE(Mistake("<a>"), "");
  EXPECT_NE(Mistake("<a>1 & 2</a>"), "");
  EXPECT_NE(Mistake("<a>1 < 2</a>"), "");
}

TEST(ChartTest, IsWellFormedWhateverTheServerCallsItself) {
  Report report = SampleReport();
  report.server.device = "<b>\"A&B\" \x01 \xC3\xA4";
  const std::string svg = Chart(report);
  EXPECT_EQ(Mistake(svg), "");
  EXPECT_THAT(svg, HasSubstr("&lt;b&gt;&quot;A&amp;B&quot;  \xC3\xA4"));
}

TEST(ChartTest, ShowsEveryFigureWithItsRatioAndItsYardsticks) {
  const std::string svg = Chart(SampleReport());
  for (const char* text : {">prefill/256/stream<", ">2.00<", ">200 us vs byte pump + kernel<", ">decode/8<", ">3.00<",
                           ">12000 calls/s vs one client<", ">slots/copy<", ">0.50<", "prefers-color-scheme: dark"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
}

TEST(ChartTest, NeedsNothingFromElsewhere) {
  const std::string svg = Chart(SampleReport());
  for (const char* text : {"href", "url(", "@import", "@font-face"}) {
    EXPECT_EQ(svg.find(text), std::string::npos) << text;
  }
}

TEST(ChartTest, EverythingIsInThePictureWhateverTheRatios) {
  for (const double ratio : {1e-9, 0.49, 0.5, 0.99, 1.0, 1.01, 2.0, 3.0, 1e9}) {
    Report report = SampleReport();
    report.figures.push_back(Latency("snapshots/lookup", {ratio}, {{"empty RPC", 1}}));
    const std::string svg = Chart(report);
    ASSERT_EQ(Mistake(svg), "");
    static const std::regex kBox(R"re(<rect x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)")re");
    int bars = 0;
    for (std::sregex_iterator box(svg.begin(), svg.end(), kBox); box != std::sregex_iterator(); ++box, ++bars) {
      double x = 0;
      double width = 0;
      ASSERT_TRUE(absl::SimpleAtod((*box)[1].str(), &x)) << box->str();
      ASSERT_TRUE(absl::SimpleAtod((*box)[3].str(), &width)) << box->str();
      EXPECT_GE(x, 0) << ratio;
      EXPECT_GT(width, 0) << ratio;
      EXPECT_LE(x + width, 680) << ratio;  // where the values stand
    }
    EXPECT_EQ(bars, 2 + 4) << "two of the legend, one for each figure";
  }
}

TEST(ChartTest, BarsMeetAtTheYardsticksLine) {
  const std::string svg = Chart(SampleReport());
  std::smatch one;
  ASSERT_TRUE(std::regex_search(svg, one, std::regex(R"re(<line x1="([^"]*)"[^>]* class="one")re")));
  const auto bar = [&svg](const std::string& name, int part) {
    std::smatch found;
    EXPECT_TRUE(std::regex_search(
        svg, found, std::regex(">" + name + R"re(</text>\s*<rect x="([^"]*)" y="[^"]*" width="([^"]*)")re")));
    return std::stod(found[static_cast<std::size_t>(part)]);
  };
  EXPECT_NEAR(bar("prefill/256/stream", 1), std::stod(one[1]), 0.1);                      // twice: to the right
  EXPECT_NEAR(bar("slots/copy", 1) + bar("slots/copy", 2), std::stod(one[1]), 0.2);       // half: to the left
  EXPECT_NEAR(bar("prefill/256/stream", 2), bar("slots/copy", 2), 0.2) << "logarithmic";  // as long
}

}  // namespace
}  // namespace gdpcache::bench
