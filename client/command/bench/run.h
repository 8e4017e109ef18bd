#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_RUN_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_RUN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/command/bench/byte_pump.h"
#include "client/command/bench/figure.h"
#include "client/command/bench/options.h"
#include "client/command/bench/progress.h"
#include "client/command/temporary_cache.h"
#include "gdpcache/client.h"

namespace gdpcache::bench {

/// A session on a temporary cache with all of its slots. Both go with the object.
struct Lease {
  command::TemporaryCache cache;
  Session session;
  std::vector<std::int64_t> slots;
};

/// One run: what everything is measured with, and what it came to. For one thread.
class Run {
 public:
  /// `options` and `client` must outlive it.
  Run(const BenchOptions& options, const Client& client, ServerInfo server);
  ~Run();

  const BenchOptions& options() const { return options_; }
  const Client& client() const { return client_; }
  const ServerInfo& server() const { return report_.server; }
  absl::Duration seconds() const { return absl::Seconds(options_.seconds); }
  bool Picked(const std::string& name) const { return bench::Picked(options_, name); }

  /// Names and sizes of the model's layers, for a cache with so many of them and so many slots.
  CacheGeometry Geometry(std::int64_t layers, std::int64_t slots) const;

  /// RESOURCE_EXHAUSTED, with both sizes, when the server cannot have the cache.
  absl::StatusOr<Lease> MakeLease(const CacheGeometry& geometry) const;

  /// For files of this run; gone with the object.
  absl::StatusOr<std::string> directory();

  /// A pump over the kind of socket that leads to the server; started when it is first asked for.
  absl::StatusOr<BytePump*> pump();

  /// Tells the user what comes now.
  void Begin(const std::string& name) { progress_.Step(name); }

  void Add(Figure figure) { report_.figures.push_back(std::move(figure)); }

  /// Notes that it cannot be measured.
  void Skip(const std::string& name, const std::string& reason);

  /// What it came to, in the order of the names.
  Report report() const;

 private:
  const BenchOptions& options_;
  const Client& client_;
  Progress progress_;
  Report report_;
  std::string directory_;
  std::unique_ptr<BytePump> pump_;
};

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_RUN_H_
