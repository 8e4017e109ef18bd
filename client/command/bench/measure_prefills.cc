#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/command/bench/measurements.h"
#include "client/command/bench/memory_copy.h"
#include "client/command/bench/prefill_workload.h"
#include "client/command/bench/rounds.h"
#include "client/command/bench/statistics.h"
#include "client/command/text.h"

namespace gdpcache::bench {
namespace {

struct Way {
  const char* name;
  Transport transport;
};

/// In the order of measuring: tensors that have been put into shared memory stay there.
constexpr std::array<Way, 3> kWays = {
    {{"unary", Transport::kUnary}, {"stream", Transport::kStream}, {"shared", Transport::kSharedMemory}}};

/// Of a message beside its tensors; more than enough.
constexpr std::int64_t kMessageOverhead = std::int64_t{4} << 10;

/// The server counts whole microseconds.
constexpr absl::Duration kLeastCompute = absl::Nanoseconds(500);

/// Microseconds of calls that travelled one way, and of what was measured in turn with them.
struct WayTimes {
  std::vector<double> empty;
  std::vector<double> pump;  // of none when nothing travels
  std::vector<double> copy;  // of as many bytes as the kernel reads and writes
  std::vector<double> prefill;
  std::vector<double> kernel;
};

/// The prefills of one length.
class Prefills {
 public:
  Prefills(Run& run, std::int64_t tokens)
      : run_(run),
        tokens_(tokens),
        workload_({.name = absl::StrCat(tokens, " tokens"),
                   .lengths = {tokens},
                   .heads = run.options().model.heads,
                   .key_dim = run.options().model.key_dim,
                   .value_dim = run.options().model.value_dim,
                   .all_states = tokens > 1,
                   .continues = true}) {
    // Reading and writing count alike; the slot is read and written, too.
    const std::int64_t traffic = workload_.bytes_in() + workload_.bytes_out() + 2 * SlotBytes(run.Geometry(1, 1));
    copy_.emplace(traffic / 2);
  }

  absl::Status Measure() {
    const std::string kernel = absl::StrCat("kernel/", tokens_);
    absl::StatusOr<Lease> lease = run_.MakeLease(run_.Geometry(1, 1));
    if (!lease.ok()) return lease.status();
    const absl::Status shares = lease->session.ShareMemory(1).status();
    const Transport tells_kernel = shares.ok() ? Transport::kSharedMemory : Transport::kStream;
    std::array<std::optional<WayTimes>, kWays.size()> times;
    const WayTimes* alone = nullptr;  // of tells_kernel, which nothing keeps from being measured
    for (std::size_t i = 0; i < kWays.size(); ++i) {
      const Way& way = kWays[i];
      const bool picked = run_.Picked(Name(way));
      if (!picked && way.transport != tells_kernel) continue;
      if (const std::string obstacle = Obstacle(way, shares); !obstacle.empty()) {
        run_.Skip(Name(way), obstacle);
        continue;
      }
      run_.Begin(picked ? Name(way) : kernel);
      absl::StatusOr<WayTimes> measured = MeasureWay(way, *lease);
      if (!measured.ok()) return measured.status();
      times[i] = *std::move(measured);
      if (way.transport == tells_kernel) alone = &*times[i];
    }
    if (run_.Picked(kernel)) {
      run_.Add(Latency(kernel, alone->kernel, {{"memory copy", Median(alone->copy)}}, 2 * copy_->bytes()));
    }
    for (std::size_t i = 0; i < kWays.size(); ++i) {
      if (times[i] && run_.Picked(Name(kWays[i]))) Report(kWays[i], *times[i], alone->kernel);
    }
    return absl::OkStatus();
  }

 private:
  std::string Name(const Way& way) const { return absl::StrCat("prefill/", tokens_, "/", way.name); }

  /// Why it cannot be measured this way; empty: it can. `shares`: whether the server shares memory.
  std::string Obstacle(const Way& way, const absl::Status& shares) const {
    if (way.transport == Transport::kSharedMemory) return std::string(shares.message());
    const std::int64_t limit = run_.server().limits.max_message_bytes;
    const std::int64_t largest = std::max(workload_.bytes_in(), workload_.bytes_out());
    if (way.transport == Transport::kStream || largest + kMessageOverhead <= limit) return "";
    return absl::StrCat("its tensors take ", command::FormatBytes(largest), ", a message at most ",
                        command::FormatBytes(limit));
  }

  absl::StatusOr<WayTimes> MeasureWay(const Way& way, Lease& lease) {
    const bool travels = way.transport != Transport::kSharedMemory && tokens_ > 1;
    BytePump* pump = nullptr;
    if (travels) {
      const absl::StatusOr<BytePump*> started = run_.pump();
      if (!started.ok()) return started.status();
      pump = *started;
    }
    if (way.transport == Transport::kSharedMemory) {
      if (absl::Status status = workload_.Share(lease.session); !status.ok()) return status;
    }
    WayTimes times;
    const auto empty = [&] { return Timed([&] { return lease.session.KeepAlive().status(); }); };
    const auto copy = [&]() -> absl::StatusOr<absl::Duration> { return copy_->Run(); };
    const auto moved = [&]() { return pump->Run(workload_.bytes_in(), workload_.bytes_out()); };
    const auto prefill = [&] { return workload_.RunPrefill(lease.session, lease.slots, way.transport); };
    const auto kernel = [&]() -> absl::StatusOr<absl::Duration> {
      return std::max(workload_.timing().compute, kLeastCompute);
    };
    std::vector<TimedCall> calls = {empty, copy, prefill, kernel};
    if (travels) calls.emplace_back(moved);
    absl::StatusOr<std::vector<std::vector<double>>> samples = MeasureInTurn(calls, run_.seconds());
    if (!samples.ok()) return samples.status();
    times.empty = std::move((*samples)[0]);
    times.copy = std::move((*samples)[1]);
    times.prefill = std::move((*samples)[2]);
    times.kernel = std::move((*samples)[3]);
    if (travels) times.pump = std::move((*samples)[4]);
    return times;
  }

  void Report(const Way& way, const WayTimes& times, const std::vector<double>& kernel) {
    // The pump is an RPC itself.
    std::vector<Yardstick> yardsticks = {
        times.pump.empty() ? Yardstick{"empty RPC", Median(times.empty)} : Yardstick{"byte pump", Median(times.pump)},
        {"kernel", Median(kernel)}};
    run_.Add(Latency(Name(way), times.prefill, std::move(yardsticks), workload_.bytes_in() + workload_.bytes_out()));
  }

  Run& run_;
  const std::int64_t tokens_;
  PrefillWorkload workload_;
  std::optional<MemoryCopy> copy_;
};

bool AnyPicked(const Run& run, std::int64_t tokens) {
  return run.Picked(absl::StrCat("kernel/", tokens)) || std::any_of(kWays.begin(), kWays.end(), [&](const Way& way) {
           return run.Picked(absl::StrCat("prefill/", tokens, "/", way.name));
         });
}

}  // namespace

absl::Status MeasurePrefills(Run& run) {
  for (const std::int64_t tokens : run.options().tokens) {
    if (!AnyPicked(run, tokens)) continue;
    if (absl::Status status = Prefills(run, tokens).Measure(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace gdpcache::bench
