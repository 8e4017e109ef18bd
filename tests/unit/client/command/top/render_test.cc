#include "client/command/top/render.h"

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/command/top/sample_view.h"

namespace gdpcache::command::top {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Shown(const View& view, std::size_t columns, std::size_t rows) {
  return PlainText(
      Render(view, {.columns = columns, .rows = rows, .zone = absl::UTCTimeZone(), .footer = "q quits; every 2 s"}));
}

std::vector<std::string> LinesOf(const std::string& text) {
  return absl::StrSplit(text.substr(0, text.size() - 1), '\n');
}

TEST(TopRenderTest, FitsTheSmallestScreen) {
  EXPECT_EQ(Shown(SampleView(), 80, 24),
            R"(gdpcache 1.2.3 at gpu-7:7411                                   serving, up 1h 0m
cuda: NVIDIA H200                                                     9 sessions
States    [||||||||||||||      ]  69 %  48.0 GiB of 70.0 GiB
Staging   [||||||||||          ]  50 %  512.0 MiB of 1.0 GiB
Device    [||||||||||||||||||| ]  94 %  16.0 GiB of 17.0 GiB    217 snapshots
Host      [|||||||||||||||||   ]  81 %  13.0 GiB of 16.0 GiB    185 snapshots
Disk      [|                   ]   0 %  1 B of 64.0 GiB         1.2k snapshots

Calls     2 running  14 waiting  152 RPCs/s  0.50 errors/s
Prefill   124k tokens/s  300 sequences/s  100 calls/s  p50 995 us  p99 9.8 ms
          time: queued 5 %, staging in 15 %, computing 75 %, staging out 5 %
Lookups   50 lookups/s  90 % found (63 % since the start)  12k tokens/s found
Snapshots 12 stored/s  1.5 evicted/s  0 down/s  0 up/s  369 evicted in all

CACHE                 SLOTS              HELD/ALL  SESSIONS     STATE     MEMORY
tiny                  [||||||||||]            4/4         3   float32  288.0 MiB
model/a               [||||||||||]        500/512         3   float32   36.0 GiB
model/b               [|||       ]          16/64         3   float32    4.5 GiB

RPC                              CALLS/S  ERRORS/S    ACTIVE       P50       P99
Prefill                              100      0.50        16    995 us    9.8 ms
LookupPrefix                          50         0         1    500 us    990 us
... and 2 more
q quits; every 2 s
)");
}

TEST(TopRenderTest, ShowsMoreOnAWideScreen) {
  EXPECT_EQ(
      Shown(SampleView(), 120, 40),
      R"(gdpcache 1.2.3 at gpu-7:7411                                                                           serving, up 1h 0m
cuda: NVIDIA H200                                                                                             9 sessions

States    [||||||||||||||||||||||||||||            ]  69 %  48.0 GiB of 70.0 GiB
Staging   [||||||||||||||||||||                    ]  50 %  512.0 MiB of 1.0 GiB
Device    [||||||||||||||||||||||||||||||||||||||  ]  94 %  16.0 GiB of 17.0 GiB    217 snapshots
Host      [|||||||||||||||||||||||||||||||||       ]  81 %  13.0 GiB of 16.0 GiB    185 snapshots
Disk      [|                                       ]   0 %  1 B of 64.0 GiB         1.2k snapshots

Calls     2 running  14 waiting  152 RPCs/s  0.50 errors/s
Prefill   124k tokens/s  300 sequences/s  100 calls/s  p50 995 us  p99 9.8 ms
          time: queued 5 %, staging in 15 %, computing 75 %, staging out 5 %
Lookups   50 lookups/s  90 % found (63 % since the start)  12k tokens/s found
Snapshots 12 stored/s  1.5 evicted/s  0 down/s  0 up/s  369 evicted in all

CACHE                           SLOTS                        HELD/ALL  SESSIONS        LAYERSxHxKxV     STATE     MEMORY
tiny                            [||||||||||||||||||||]            4/4         3       36x32x128x128   float32  288.0 MiB
model/a                         [||||||||||||||||||||]        500/512         3       36x32x128x128   float32   36.0 GiB
model/b                         [|||||               ]          16/64         3       36x32x128x128   float32    4.5 GiB

RPC                                                CALLS/S  ERRORS/S    ACTIVE       P50       P99      CALLS     ERRORS
Prefill                                                100      0.50        16    995 us    9.8 ms       1.2k          6
LookupPrefix                                            50         0         1    500 us    990 us        100          0
WatchSnapshots                                        0.50         0         2     10 ms     10 ms          8          0
KeepAlive                                             0.50         0         0    500 us    990 us         21          0














q quits; every 2 s
)");
}

TEST(TopRenderTest, WithoutAScreenEveryRowIsThereAndNoFooter) {
  const std::string text = Shown(SampleView(), 80, 0);
  for (const char* name : {"model/a", "model/b", "tiny", "Prefill", "LookupPrefix", "WatchSnapshots", "KeepAlive"}) {
    EXPECT_THAT(text, HasSubstr(name));
  }
  EXPECT_THAT(text, Not(HasSubstr("q quits")));
}

TEST(TopRenderTest, AnySizeIsFilledAndNeverExceeded) {
  View outage = SampleView();
  outage.outage = View::Outage{kNoon, absl::UnavailableError(std::string(300, 'x'))};
  for (const View& view : {SampleView(), outage}) {
    for (std::size_t columns = 1; columns <= 200; columns += 7) {
      for (std::size_t rows = 1; rows <= 60; rows += 5) {
        const std::vector<std::string> lines = LinesOf(Shown(view, columns, rows));
        EXPECT_EQ(lines.size(), rows);
        for (const std::string& line : lines) EXPECT_LE(line.size(), columns);
      }
    }
  }
}

TEST(TopRenderTest, BeforeThereAreRatesNoneIsClaimed) {
  Model model("a");
  model.Answered(kNoon, SampleAnswer());
  EXPECT_THAT(Shown(model.view(), 80, 0), HasSubstr("- tokens/s"));
}

TEST(TopRenderTest, AnOutageStandsInTheFirstLinesAboveWhatWasThere) {
  Model model("gpu-7:7411");
  model.Answered(kNoon, SampleAnswer());
  model.Failed(kNoon + absl::Seconds(1), absl::UnavailableError("server gpu-7:7411: connection refused\x1b[2J"));
  const std::vector<std::string> lines = LinesOf(Shown(model.view(), 80, 24));
  EXPECT_EQ(lines[0], "gdpcache 1.2.3 at gpu-7:7411            unreachable since 23:13:21, reconnecting");
  EXPECT_EQ(lines[1], "server gpu-7:7411: connection refused?[2J");
  EXPECT_THAT(lines[2], HasSubstr("48.0 GiB of 70.0 GiB"));
  EXPECT_EQ(LinesOf(Shown(model.view(), 80, 0)).size(), 2);
}

TEST(TopRenderTest, ADrainingServerSaysSo) {
  View view = SampleView();
  view.answer->stats.draining = true;
  EXPECT_THAT(LinesOf(Shown(view, 80, 24))[0], HasSubstr("draining, up 1h 0m"));
}

TEST(TopRenderTest, TheWaitOfNewCallsShowsWhenThereIsOne) {
  View view = SampleView();
  EXPECT_THAT(Shown(view, 80, 24), Not(HasSubstr("wait ")));
  view.answer->info.expected_wait = absl::Milliseconds(1'250);
  EXPECT_THAT(Shown(view, 80, 24), HasSubstr("14 waiting  152 RPCs/s  0.50 errors/s  wait 1.2 s\n"));
}

TEST(TopRenderTest, TroubleShowsWhenThereIsSome) {
  View view = SampleView();
  EXPECT_THAT(Shown(view, 80, 24), Not(HasSubstr("Trouble")));
  view.answer->stats.snapshots.tier_errors = 3;
  EXPECT_THAT(Shown(view, 80, 24), HasSubstr("Trouble   0 snapshots damaged, 3 errors of tiers since the start"));
}

TEST(TopRenderTest, TablesSayHowManyRowsDoNotFit) {
  View view = SampleView();
  for (int i = 0; i < 7; ++i) view.answer->info.caches.push_back(view.answer->info.caches.back());
  EXPECT_THAT(Shown(view, 80, 25), HasSubstr("... and 8 more"));
}

}  // namespace
}  // namespace gdpcache::command::top
