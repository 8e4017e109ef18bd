#include "client/command/bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace gdpcache::bench {

double Quantile(std::vector<double> values, double q) {
  const double rank = std::ceil(q * static_cast<double>(values.size()));
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

double Median(const std::vector<double>& values) { return Quantile(values, 0.5); }

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace gdpcache::bench
