#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/command/bench/measurements.h"
#include "client/command/bench/request_states.h"
#include "client/command/bench/rounds.h"
#include "client/command/bench/statistics.h"

namespace gdpcache::bench {
namespace {

/// `call` moves the states, `up` bytes to the server and `down` bytes back.
absl::Status MeasureTransfer(Run& run, const std::string& name, std::int64_t up, std::int64_t down, TimedCall call) {
  run.Begin(name);
  const absl::StatusOr<BytePump*> pump = run.pump();
  if (!pump.ok()) return pump.status();
  const auto moved = [&] { return (*pump)->Run(up, down); };
  const absl::StatusOr<std::vector<std::vector<double>>> samples = MeasureInTurn({moved, call}, run.seconds());
  if (!samples.ok()) return samples.status();
  run.Add(Latency(name, (*samples)[1], {{"byte pump", Median((*samples)[0])}}, up + down));
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureSlots(Run& run) {
  if (!run.Picked("slots/copy") && !run.Picked("slots/read") && !run.Picked("slots/write")) return absl::OkStatus();
  absl::StatusOr<RequestStates> states = RequestStates::Create(run);
  if (!states.ok()) return states.status();
  if (run.Picked("slots/copy")) {
    const std::vector<SlotCopy> copies = {{states->slot(), {states->other_slot()}}};
    const auto copy = [&] { return Timed([&] { return states->session().CopySlots(copies); }); };
    if (absl::Status status = MeasureCopying(run, *states, "slots/copy", copy); !status.ok()) return status;
  }
  if (run.Picked("slots/read")) {
    const auto read = [&] { return Timed([&] { return states->Read(); }); };
    if (absl::Status status = MeasureTransfer(run, "slots/read", 0, states->bytes(), read); !status.ok()) return status;
  }
  if (run.Picked("slots/write")) {
    const auto write = [&] { return Timed([&] { return states->Write(); }); };
    return MeasureTransfer(run, "slots/write", states->bytes(), 0, write);
  }
  return absl::OkStatus();
}

}  // namespace gdpcache::bench
