#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_REPORT_TEXT_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_REPORT_TEXT_H_

#include <ostream>

#include "client/command/bench/figure.h"

namespace gdpcache::bench {

/// The report for people: a table, and below it what was skipped.
void PrintReport(const Report& report, std::ostream& out);

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_REPORT_TEXT_H_
