#include "client/command/bench/report_text.h"

#include <sstream>

#include "gtest/gtest.h"
#include "tests/unit/client/command/bench/sample_report.h"

namespace gdpcache::bench {
namespace {

TEST(ReportTextTest, IsATableWithWhatWasSkippedBelow) {
  std::ostringstream out;
  PrintReport(SampleReport(), out);
  EXPECT_EQ(out.str(),
            "gdpcached 1.2.3 on cpu, a processor, over 127.0.0.1:7411\n"
            "2 layers of 4 heads of 8 x 16, float32: 0.0 MB a slot\n"
            "\n"
            "MEASUREMENT         P50      P99      CALLS/S  GB/S  RATIO  VS\n"
            "prefill/256/stream  200 us   300 us   5000     5.00  2.00   byte pump 60.0 us + kernel 40.0 us\n"
            "decode/8            500 us   700 us   12000          3.00   one client 4000 calls/s\n"
            "slots/copy          50.0 us  50.0 us  20000          0.50   memory copy 60.0 us + empty RPC 40.0 us\n"
            "\n"
            "RATIO: P50 to that of what stands under VS, measured in turn with it; of decode, calls/s to calls/s.\n"
            "skipped snapshots/save: the server keeps no snapshots\n");
}

}  // namespace
}  // namespace gdpcache::bench
