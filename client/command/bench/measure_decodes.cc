#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/command/bench/client_crowd.h"
#include "client/command/bench/measurements.h"
#include "client/command/temporary_cache.h"

namespace gdpcache::bench {
namespace {

absl::StatusOr<CrowdTimes> Measure(const Run& run, std::int64_t clients, CrowdCall call) {
  const CacheGeometry& model = run.options().model;
  return MeasureCrowd({.server = run.options().server.address,
                       .client_options = command::ToClientOptions(run.options().server),
                       .cache = command::UniqueCacheName("bench"),
                       .shape = {.name = "one token",
                                 .lengths = {1},
                                 .heads = model.heads,
                                 .key_dim = model.key_dim,
                                 .value_dim = model.value_dim,
                                 .continues = true},
                       .call = call,
                       .duration = run.seconds()},
                      static_cast<int>(clients), Caches::kOne);
}

}  // namespace

absl::Status MeasureDecodes(Run& run) {
  std::optional<CrowdTimes> one;
  for (const std::int64_t clients : run.options().clients) {
    const std::string name = absl::StrCat("decode/", clients);
    if (!run.Picked(name)) continue;
    run.Begin(name);
    if (!one) {
      absl::StatusOr<CrowdTimes> alone = Measure(run, 1, CrowdCall::kInline);
      if (!alone.ok()) return alone.status();
      one = *std::move(alone);
    }
    const bool many = clients > 1;
    const absl::StatusOr<CrowdTimes> other = Measure(run, clients, many ? CrowdCall::kInline : CrowdCall::kEmpty);
    if (!other.ok()) return other.status();
    const CrowdTimes& measured = many ? *other : *one;
    const Yardstick yardstick =
        many ? Yardstick{"one client", one->calls_per_second} : Yardstick{"empty RPC", other->calls_per_second};
    run.Add(Throughput(name, measured.call_us, measured.calls_per_second, {yardstick}));
  }
  return absl::OkStatus();
}

}  // namespace gdpcache::bench
