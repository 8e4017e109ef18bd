#include "server/rpc/metrics/prefill_metrics.h"

#include <cmath>
#include <cstdint>
#include <string>

namespace gdpcache::rpc {
namespace {

constexpr double kMicrosecond = 1e-6;  // in seconds

std::int64_t MicrosecondsOf(const prometheus::Histogram& phase) {
  return std::llround(phase.Collect().histogram.sample_sum / kMicrosecond);
}

prometheus::Counter& MakeCounter(prometheus::Registry& registry, const std::string& name, const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
}

prometheus::Histogram& MakePhase(prometheus::Family<prometheus::Histogram>& family, const std::string& phase) {
  return family.Add({{"phase", phase}},
                    prometheus::Histogram::BucketBoundaries{10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3,
                                                            5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 5});
}

}  // namespace

PrefillMetrics::PrefillMetrics(prometheus::Registry& registry)
    : tokens_(MakeCounter(registry, "gdpcache_prefill_tokens_total", "Tokens absorbed by prefills, per layer.")),
      sequences_(MakeCounter(registry, "gdpcache_prefill_sequences_total", "Sequences of prefills, per layer.")),
      phases_(prometheus::BuildHistogram()
                  .Name("gdpcache_prefill_phase_seconds")
                  .Help("Time of successful prefills: waiting, taking inputs, the recurrence, handing out results.")
                  .Register(registry)),
      queue_(MakePhase(phases_, "queue")),
      stage_in_(MakePhase(phases_, "stage_in")),
      compute_(MakePhase(phases_, "compute")),
      stage_out_(MakePhase(phases_, "stage_out")) {}

void PrefillMetrics::Observe(const engine::PrefillPlan& plan, const engine::PrefillTiming& timing) {
  const std::int64_t tokens = plan.used_rows() / plan.shape.num_householder;
  tokens_.Increment(static_cast<double>(tokens));
  sequences_.Increment(static_cast<double>(plan.sequence_count()));
  queue_.Observe(static_cast<double>(timing.queue_us) * kMicrosecond);
  stage_in_.Observe(static_cast<double>(timing.stage_in_us) * kMicrosecond);
  compute_.Observe(static_cast<double>(timing.compute_us) * kMicrosecond);
  stage_out_.Observe(static_cast<double>(timing.stage_out_us) * kMicrosecond);
}

v1::PrefillStats PrefillMetrics::Read() const {
  v1::PrefillStats stats;
  stats.set_calls(static_cast<std::int64_t>(compute_.Collect().histogram.sample_count));
  stats.set_tokens(std::llround(tokens_.Value()));
  stats.set_sequences(std::llround(sequences_.Value()));
  stats.set_queue_us(MicrosecondsOf(queue_));
  stats.set_stage_in_us(MicrosecondsOf(stage_in_));
  stats.set_compute_us(MicrosecondsOf(compute_));
  stats.set_stage_out_us(MicrosecondsOf(stage_out_));
  return stats;
}

}  // namespace gdpcache::rpc
