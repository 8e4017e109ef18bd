#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_OPTIONS_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/command/subcommand.h"
#include "gdpcache/cache.h"

namespace gdpcache::bench {

/// What to measure, and where.
struct BenchOptions {
  command::ServerOptions server;
  CacheGeometry model = {.layers = 36, .heads = 32, .key_dim = 128, .value_dim = 128};
  std::vector<std::int64_t> tokens = {1, 256, 2048};  // of the prefills
  std::vector<std::int64_t> clients = {1, 8, 64};     // of the one-token calls
  double seconds = 2;                                 // for each measurement
  std::vector<std::string> only;                      // parts of names; empty: all
  std::string output;
  std::string plot;
};

/// The names of all that these options measure, in order, whether or not `only` picks them.
std::vector<std::string> MeasurementNames(const BenchOptions& options);

/// Whether `only` picks it.
bool Picked(const BenchOptions& options, const std::string& name);

/// "LxHxKxV" into layers, heads, key_dim and value_dim; what is wrong with it, else empty.
std::string ParseModel(const std::string& text, CacheGeometry* model);

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_OPTIONS_H_
