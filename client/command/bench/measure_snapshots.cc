#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/command/bench/measurements.h"
#include "client/command/bench/request_states.h"
#include "client/command/bench/rounds.h"
#include "client/command/bench/statistics.h"
#include "client/command/snapshot_text.h"
#include "client/command/text.h"

namespace gdpcache::bench {
namespace {

constexpr char kSave[] = "snapshots/save";
constexpr char kLookup[] = "snapshots/lookup";
constexpr char kRestoreDevice[] = "snapshots/restore/device";
constexpr char kRestoreHost[] = "snapshots/restore/host";

constexpr char kNoTier[] = "the server has no such tier";

constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kKeysPerLookup = 1'000;

std::string RandomKey() {
  std::random_device random;
  std::string key;
  while (key.size() < kKeyBytes) absl::StrAppend(&key, absl::Hex(random(), absl::kZeroPad8));
  return key;
}

/// Snapshots of one slot, and what becomes of them. Those that are left go with the object.
class Snapshots {
 public:
  Snapshots(Run& run, RequestStates& states) : run_(run), states_(states) {}
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;
  ~Snapshots() { Drop().IgnoreError(); }

  absl::Status MeasureSave() {
    const auto save = [&]() -> absl::StatusOr<absl::Duration> {
      if (absl::Status status = Drop(); !status.ok()) return status;
      return Timed([&] { return Save(); });
    };
    return MeasureCopying(run_, states_, kSave, save);
  }

  /// The worst of the ordinary cases: only the shortest prefix is there.
  absl::Status MeasureLookup() {
    run_.Begin(kLookup);
    if (absl::Status status = SaveOne(); !status.ok()) return status;
    std::vector<std::string> keys = {key_};
    while (keys.size() < kKeysPerLookup) keys.push_back(RandomKey());
    const auto lookup = [&] {
      return Timed([&]() -> absl::Status {
        const absl::StatusOr<std::optional<PrefixMatch>> match = run_.client().LookupPrefix(states_.cache(), keys);
        if (!match.ok()) return match.status();
        if (!match->has_value()) return absl::NotFoundError("the server has evicted the benchmark's snapshot");
        return absl::OkStatus();
      });
    };
    const auto empty = [&] { return Timed([&] { return states_.session().KeepAlive().status(); }); };
    const absl::StatusOr<std::vector<std::vector<double>>> samples = MeasureInTurn({empty, lookup}, run_.seconds());
    if (!samples.ok()) return samples.status();
    run_.Add(Latency(kLookup, (*samples)[1], {{"empty RPC", Median((*samples)[0])}}));
    return absl::OkStatus();
  }

  /// Of what was saved, which is in the first tier.
  absl::Status MeasureRestoreSaved(const char* name) {
    if (absl::Status status = SaveOne(); !status.ok()) return status;
    return MeasureCopying(run_, states_, name, [&] { return Timed([&] { return Restore(); }); });
  }

  /// Of what was imported, which goes to the host tier: anew each time, since what is used twice moves up.
  absl::Status MeasureRestoreImported() {
    if (absl::Status status = SaveOne(); !status.ok()) return status;
    const absl::StatusOr<std::string> directory = run_.directory();
    if (!directory.ok()) return directory.status();
    const std::string file = absl::StrCat(*directory, "/snapshot.safetensors");
    if (absl::Status status = run_.client().ExportSnapshot(states_.cache(), key_, file).status(); !status.ok()) {
      return status;
    }
    const auto restore = [&]() -> absl::StatusOr<absl::Duration> {
      if (absl::Status status = Import(file); !status.ok()) return status;
      return Timed([&] { return Restore(); });
    };
    return MeasureCopying(run_, states_, kRestoreHost, restore);
  }

 private:
  absl::Status SaveOne() { return key_.empty() ? Save() : absl::OkStatus(); }

  absl::Status Save() {
    key_ = RandomKey();
    const std::vector<SlotSave> saves = {{states_.slot(), key_}};
    const absl::StatusOr<std::vector<SnapshotOutcome>> outcomes = states_.session().SaveSnapshots(saves);
    if (!outcomes.ok()) return outcomes.status();
    if (outcomes->front().result == SnapshotResult::kNoSpace) {
      return absl::ResourceExhaustedError(outcomes->front().message);
    }
    return absl::OkStatus();
  }

  absl::Status Import(const std::string& file) {
    if (absl::Status status = Drop(); !status.ok()) return status;
    key_ = RandomKey();
    if (absl::Status status = run_.client().ImportSnapshot(states_.cache(), file, key_).status(); !status.ok()) {
      return status;
    }
    // Looking it up would be a use.
    const absl::StatusOr<SnapshotPage> page = run_.client().ListSnapshots(states_.cache());
    if (!page.ok()) return page.status();
    for (const Snapshot& snapshot : page->snapshots) {
      if (snapshot.key != key_ || snapshot.tiers.empty() || snapshot.tiers.front() == SnapshotTier::kHost) continue;
      return absl::InternalError(absl::StrCat("an imported snapshot is in the ",
                                              command::TierName(snapshot.tiers.front()), " tier, not in the host's"));
    }
    return absl::OkStatus();
  }

  absl::Status Restore() {
    const std::vector<SlotRestore> restores = {{key_, {states_.other_slot()}}};
    return states_.session().RestoreSnapshots(restores).status();
  }

  absl::Status Drop() {
    if (key_.empty()) return absl::OkStatus();
    const std::vector<std::string> keys = {std::exchange(key_, {})};
    return run_.client().DeleteSnapshots(states_.cache(), keys, /*force=*/true).status();
  }

  Run& run_;
  RequestStates& states_;
  std::string key_;  // of the snapshot there is; empty: none
};

bool HasTier(const Run& run, SnapshotTier kind) {
  const std::vector<SnapshotTierInfo>& tiers = run.server().snapshot_tiers;
  return std::any_of(tiers.begin(), tiers.end(), [&](const SnapshotTierInfo& tier) { return tier.tier == kind; });
}

/// Why nothing can be kept; empty: it can.
std::string Obstacle(const Run& run) {
  if (run.server().snapshot_tiers.empty()) return "the server keeps no snapshots";
  const SnapshotTierInfo& first = run.server().snapshot_tiers.front();
  const std::int64_t bytes = SlotBytes(run.options().model);
  if (bytes <= first.capacity_bytes) return "";
  return absl::StrCat("a snapshot takes ", command::FormatBytes(bytes), ", the server's ",
                      command::TierName(first.tier), " tier has ", command::FormatBytes(first.capacity_bytes));
}

}  // namespace

absl::Status MeasureSnapshots(Run& run) {
  std::vector<std::string> picked;
  for (const char* name : {kSave, kLookup, kRestoreDevice, kRestoreHost}) {
    if (run.Picked(name)) picked.emplace_back(name);
  }
  if (picked.empty()) return absl::OkStatus();
  if (const std::string obstacle = Obstacle(run); !obstacle.empty()) {
    for (const std::string& name : picked) run.Skip(name, obstacle);
    return absl::OkStatus();
  }
  absl::StatusOr<RequestStates> states = RequestStates::Create(run);
  if (!states.ok()) return states.status();
  Snapshots snapshots(run, *states);
  if (run.Picked(kSave)) {
    if (absl::Status status = snapshots.MeasureSave(); !status.ok()) return status;
  }
  if (run.Picked(kLookup)) {
    if (absl::Status status = snapshots.MeasureLookup(); !status.ok()) return status;
  }
  const bool device = HasTier(run, SnapshotTier::kDevice);
  if (run.Picked(kRestoreDevice) && device) {
    if (absl::Status status = snapshots.MeasureRestoreSaved(kRestoreDevice); !status.ok()) return status;
  }
  const bool host = HasTier(run, SnapshotTier::kHost);
  if (run.Picked(kRestoreHost) && host) {
    absl::Status status = device ? snapshots.MeasureRestoreImported() : snapshots.MeasureRestoreSaved(kRestoreHost);
    if (!status.ok()) return status;
  }
  if (run.Picked(kRestoreDevice) && !device) run.Skip(kRestoreDevice, kNoTier);
  if (run.Picked(kRestoreHost) && !host) run.Skip(kRestoreHost, kNoTier);
  return absl::OkStatus();
}

}  // namespace gdpcache::bench
