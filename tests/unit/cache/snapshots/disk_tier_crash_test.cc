// A disk tier whose process is killed again and again while it stores and removes. GDPCACHE_KILL_ROUNDS in the
// environment says how often (see `./dev crash`); without it there are a few rounds.

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/cache/snapshots/disk_tier.h"
#include "server/cache/snapshots/snapshot_file.h"
#include "tests/support/heap_backend.h"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/cache/snapshots/victim_snapshot.h"

namespace gdpcache::cache {
namespace {

namespace fs = std::filesystem;

int Rounds() {
  const char* const rounds = std::getenv("GDPCACHE_KILL_ROUNDS");
  return rounds == nullptr ? 25 : std::atoi(rounds);
}

/// What the victim said before it died.
struct Deeds {
  std::set<std::uint64_t> stored;
  std::optional<std::uint64_t> removing;  // the last one, which may or may not have happened
  std::uint64_t next = 1;                 // may or may not have been stored
};

void Follow(const std::string& line, Deeds& deeds) {
  absl::string_view rest = line;
  std::uint64_t seed = 0;
  if (absl::ConsumePrefix(&rest, "stored ") && absl::SimpleAtoi(rest, &seed)) {
    deeds.stored.insert(seed);
    deeds.next = seed + 1;
  } else if (absl::ConsumePrefix(&rest, "removing ") && absl::SimpleAtoi(rest, &seed)) {
    deeds.stored.erase(seed);
    deeds.removing = seed;
  }
}

TEST(DiskTierCrashTest, WhatWasStoredIsThereAndRightAndNothingElseIs) {
  const test::TemporaryDirectory directory;
  const std::string root = directory.path() + "/snapshots";
  test::HeapBackend backend;
  const std::unique_ptr<kernels::Stream> stream = *backend.CreateStream();
  std::mt19937 random(1);
  std::int64_t leftovers = 0;
  Deeds deeds;
  for (int round = 0; round < Rounds(); ++round) {
    {
      test::Process victim(DISK_TIER_VICTIM, {root, absl::StrCat(deeds.next)});
      ASSERT_EQ(victim.ReadLine(), "ready") << victim.Errors();
      // Not to wait for something: so that it dies at any place of its loop.
      absl::SleepFor(absl::Microseconds(random() % 40'000));
      victim.Signal(SIGKILL);
      ASSERT_EQ(victim.Wait(), -SIGKILL) << victim.Errors();
      deeds.removing.reset();
      while (const std::optional<std::string> line = victim.ReadLine()) Follow(*line, deeds);
    }
    std::set<std::uint64_t> found;
    DiskTier::Options options;
    options.directory = root;
    options.capacity = std::int64_t{1} << 30;
    options.report = [&leftovers](const DiskIncident& incident) {
      EXPECT_NE(incident.kind, DiskIncident::Kind::kDamaged) << incident.status;
      if (incident.kind == DiskIncident::Kind::kLeftover) leftovers += incident.files;
    };
    const absl::StatusOr<std::unique_ptr<DiskTier>> tier = DiskTier::Open(
        std::move(options), backend, [&](const SnapshotRecord& record, const std::shared_ptr<TierCopy>& copy) {
          const std::uint64_t seed = test::SeedOfVictimKey(record.key);
          const test::SampleSnapshot expected = test::VictimSnapshot(seed);
          std::vector<std::byte> data(expected.data().size());
          ASSERT_EQ(record.space, expected.record().space);
          const absl::Status loaded = copy->Load(PartsIn(record.space, data.data()), *stream);
          ASSERT_TRUE(loaded.ok()) << loaded;
          ASSERT_EQ(data, expected.data());
          found.insert(seed);
        });
    ASSERT_TRUE(tier.ok()) << tier.status();
    for (const std::uint64_t seed : deeds.stored) ASSERT_TRUE(found.contains(seed)) << seed << " is lost";
    for (const std::uint64_t seed : found) {
      ASSERT_TRUE(deeds.stored.contains(seed) || seed == deeds.removing || seed == deeds.next)
          << seed << " was removed";
    }
    std::size_t files = 0;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
      files += entry.is_directory() || entry.path().filename() == "lock" ? 0 : 1;
    }
    ASSERT_EQ(files, found.size()) << "a file was left behind";
    if (found.contains(deeds.next)) ++deeds.next;
    deeds.stored = std::move(found);
  }
  std::printf("%d kills, %lld unfinished files found and removed, %llu snapshots stored\n", Rounds(),
              static_cast<long long>(leftovers), static_cast<unsigned long long>(deeds.next - 1));
}

}  // namespace
}  // namespace gdpcache::cache
