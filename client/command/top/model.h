#ifndef GDPCACHE_CLIENT_COMMAND_TOP_MODEL_H_
#define GDPCACHE_CLIENT_COMMAND_TOP_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gdpcache/client.h"

/// What `gdpcache top` knows: the server's last answer, and how its counters have grown since the one before.
namespace gdpcache::command::top {

/// What the server says at one moment.
struct Answer {
  ServerInfo info;
  ServerStats stats;
};

/// One method's RPCs. Errors are those that ended with another status than OK and CANCELLED, which is the client's
/// wish.
struct RpcGrowth {
  std::string service;
  std::string method;
  std::int64_t active = 0;
  std::int64_t calls = 0;
  std::int64_t errors = 0;
  std::optional<absl::Duration> p50;  // absent where there were no calls; see Quantile
  std::optional<absl::Duration> p99;
};

/// What came to the server's counters within `span` of its own time.
struct Growth {
  absl::Duration span;
  PrefillStats prefills;
  std::optional<absl::Duration> prefill_p50;  // of the RPCs that carry prefills
  std::optional<absl::Duration> prefill_p99;
  SnapshotStats snapshots;
  std::vector<RpcGrowth> rpcs;  // busiest first
  std::int64_t calls = 0;       // of all methods
  std::int64_t errors = 0;

  /// Of the same method; nullptr when there is none.
  const RpcGrowth* Find(const RpcGrowth& rpc) const;
  double PerSecond(std::int64_t count) const { return static_cast<double>(count) / absl::ToDoubleSeconds(span); }
};

/// What there is to show.
struct View {
  std::string address;
  absl::Time time;                // of the last answer or failure
  std::optional<Answer> answer;   // the last one
  std::optional<Growth> growth;   // up to it; absent after the first one, after a restart, and while there is no answer
  RpcGrowth total;                // all RPCs since the server started
  std::vector<RpcGrowth> totals;  // the same by method, busiest first

  struct Outage {
    absl::Time since;
    absl::Status error;  // the last one
  };
  std::optional<Outage> outage;  // the server does not answer
};

/// The share of lookups that found a prefix; nullopt where there were none.
std::optional<double> HitRate(const SnapshotStats& snapshots);

/// The duration that the share `quantile` of the calls did not exceed, taken to be spread evenly within a bucket; those
/// beyond all limits count as the last limit. nullopt where there were no calls.
std::optional<absl::Duration> Quantile(absl::Span<const DurationBucket> buckets, double quantile);

/// Keeps the view. Not thread-safe.
class Model {
 public:
  explicit Model(std::string address) { view_.address = std::move(address); }

  void Answered(absl::Time time, Answer answer);
  void Failed(absl::Time time, absl::Status error);
  const View& view() const { return view_; }

 private:
  View view_;
};

}  // namespace gdpcache::command::top

#endif  // GDPCACHE_CLIENT_COMMAND_TOP_MODEL_H_
