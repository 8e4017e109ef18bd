#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_CHART_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_CHART_H_

#include <string>

#include "client/command/bench/figure.h"

namespace gdpcache::bench {

/// The report's ratios as an SVG image: a bar for each, to the left or right of the yardstick's line at 1, on a
/// logarithmic scale. Needs nothing from elsewhere and suits light and dark pages.
std::string Chart(const Report& report);

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_CHART_H_
