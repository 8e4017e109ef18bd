#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_STATISTICS_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_STATISTICS_H_

#include <vector>

namespace gdpcache::bench {

/// The smallest sample that a share `q` (0 to 1) of all samples do not exceed. `values` is not empty.
double Quantile(std::vector<double> values, double q);

double Median(const std::vector<double>& values);

/// The mean; `values` is not empty.
double Mean(const std::vector<double>& values);

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_STATISTICS_H_
