#ifndef GDPCACHE_SERVER_RPC_METRICS_PREFILL_METRICS_H_
#define GDPCACHE_SERVER_RPC_METRICS_PREFILL_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "gdpcache/v1/stats.pb.h"
#include "server/engine/prefill_plan.h"
#include "server/engine/prefill_result.h"

namespace gdpcache::rpc {

/// What successful prefills amount to, and where their time went:
///
///   gdpcache_prefill_tokens_total, gdpcache_prefill_sequences_total
///   gdpcache_prefill_phase_seconds{phase="queue" | "stage_in" | "compute" | "stage_out"}
///
/// rate(gdpcache_prefill_phase_seconds_sum{phase="compute"}) is the share of time that the recurrence runs.
/// Thread-safe.
class PrefillMetrics {
 public:
  explicit PrefillMetrics(prometheus::Registry& registry);

  void Observe(const engine::PrefillPlan& plan, const engine::PrefillTiming& timing);

  v1::PrefillStats Read() const;

 private:
  prometheus::Counter& tokens_;
  prometheus::Counter& sequences_;
  prometheus::Family<prometheus::Histogram>& phases_;
  prometheus::Histogram& queue_;
  prometheus::Histogram& stage_in_;
  prometheus::Histogram& compute_;
  prometheus::Histogram& stage_out_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_METRICS_PREFILL_METRICS_H_
