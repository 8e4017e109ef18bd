#include "client/command/bench/report_text.h"

#include "absl/strings/str_format.h"
#include "client/command/text.h"

namespace gdpcache::bench {

void PrintReport(const Report& report, std::ostream& out) {
  out << DescribeServer(report) << "\n" << DescribeModel(report.model) << "\n\n";
  command::Table table({"MEASUREMENT", "P50", "P99", "CALLS/S", "GB/S", "RATIO", "VS"});
  for (const Figure& figure : report.figures) {
    const double gigabytes = static_cast<double>(figure.bytes) / figure.p50_us * 1e-3;
    table.Add({figure.name, FormatMicroseconds(figure.p50_us), FormatMicroseconds(figure.p99_us),
               absl::StrFormat("%.*f", figure.calls_per_second < 100 ? 1 : 0, figure.calls_per_second),
               figure.bytes > 0 ? absl::StrFormat("%.2f", gigabytes) : "", absl::StrFormat("%.2f", figure.ratio()),
               FormatYardsticks(figure)});
  }
  table.Print(out);
  out << "\nRATIO: P50 to that of what stands under VS, measured in turn with it; of decode, calls/s to calls/s.\n";
  for (const Skipped& skipped : report.skipped) out << "skipped " << skipped.name << ": " << skipped.reason << "\n";
}

}  // namespace gdpcache::bench
