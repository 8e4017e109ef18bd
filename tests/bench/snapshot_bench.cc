// What the snapshot store costs: LookupPrefix in a store of many snapshots, and saving to and restoring from its memory
// tiers against one plain copy of the same bytes. Benchmarks of the disk tier stand in disk_tier_bench.cc.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/command/bench/statistics.h"
#include "kernels/backend.h"
#include "server/cache/clock.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/cache/snapshots/snapshot_store.h"

namespace gdpcache::bench {
namespace {

using cache::SnapshotDraft;
using cache::SnapshotPart;
using cache::SnapshotResult;
using cache::SnapshotSpace;
using cache::SnapshotStore;
using cache::TierKind;

constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kKeysPerLookup = 1'000;

/// Ends the program; a benchmark has nothing better to do.
void Require(bool good, const std::string& what) {
  if (good) return;
  std::cerr << "gdpcache_snapshot_bench: " << what << '\n';
  std::exit(1);  // NOLINT(concurrency-mt-unsafe)
}
void Require(const absl::Status& status) { Require(status.ok(), status.ToString()); }

double Microseconds(absl::FunctionRef<void()> work) {
  const std::int64_t start = absl::GetCurrentTimeNanos();
  work();
  return static_cast<double>(absl::GetCurrentTimeNanos() - start) * 1e-3;
}

double ProcessorMicroseconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

class Keys {
 public:
  std::string Next() {
    std::string key(kKeyBytes, '\0');
    for (char& byte : key) byte = static_cast<char>(random_());
    return key;
  }
  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_{1};
};

SnapshotSpace Space(std::string tenant, std::int64_t layers, std::int64_t heads, std::int64_t dim) {
  SnapshotSpace space;
  space.tenant = std::move(tenant);
  space.fingerprint = "model@1";
  space.layers = layers;
  space.heads = heads;
  space.key_dim = dim;
  space.value_dim = dim;
  return space;
}

std::unique_ptr<SnapshotStore> MakeStore(kernels::Backend& backend, const cache::Clock& clock, TierKind kind,
                                         std::int64_t bytes) {
  cache::SnapshotOptions options;
  options.limits.max_pin_ttl = absl::Minutes(1);
  options.limits.pending_timeout = absl::Minutes(1);
  std::vector<cache::StoreTier> tiers;
  tiers.push_back({std::make_unique<cache::MemoryTier>(backend, kind, bytes), bytes, bytes});
  absl::StatusOr<std::unique_ptr<SnapshotStore>> store =
      SnapshotStore::Create(backend, clock, std::move(tiers), std::move(options));
  Require(store.status());
  return *std::move(store);
}

void Store(SnapshotStore& store, const SnapshotSpace& space, const std::string& key) {
  SnapshotDraft draft = store.BeginWhole({space, key, 64}, TierKind::kDevice);
  Require(store.Commit(std::move(draft)).result == SnapshotResult::kStored, "a snapshot was not stored");
}

/// Percentiles of lookups of the keys that `make` makes; `expected`: the index they find, -1 for none. Also in
/// processor time, which other work on the machine disturbs less.
void Lookups(SnapshotStore& store, const SnapshotSpace& space, const char* name, int rounds,
             absl::FunctionRef<std::vector<std::string>()> make, std::int64_t expected) {
  std::vector<double> wall;
  std::vector<double> processor;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<std::string> made = make();
    const std::vector<absl::string_view> views(made.begin(), made.end());
    std::int64_t index = -1;
    const double start = ProcessorMicroseconds();
    wall.push_back(Microseconds([&] {
      const auto found = store.LookupPrefix(space, views, absl::ZeroDuration());
      if (found.has_value()) index = found->index;
    }));
    processor.push_back(ProcessorMicroseconds() - start);
    Require(index == expected, "a lookup found the wrong key");
  }
  std::printf("%-58s p50 %6.1f us  p99 %7.1f us; processor time p50 %6.1f us  p99 %6.1f us\n", name, Median(wall),
              Quantile(wall, 0.99), Median(processor), Quantile(processor, 0.99));
}

void BenchLookups(kernels::Backend& backend, std::int64_t snapshots, int rounds) {
  const cache::RealClock clock;
  // 256 bytes each: the tier's smallest piece.
  const std::unique_ptr<SnapshotStore> store =
      MakeStore(backend, clock, TierKind::kDevice, 256 * (snapshots + snapshots / 2));
  const SnapshotSpace mine = Space("mine", 1, 1, 4);
  const SnapshotSpace others = Space("others", 1, 1, 4);
  Keys keys;
  std::vector<std::string> present;
  std::vector<std::string> elsewhere;
  const double store_us = Microseconds([&] {
    for (std::int64_t n = 0; n < snapshots; ++n) {
      present.push_back(keys.Next());
      Store(*store, mine, present.back());
    }
  });
  for (std::int64_t n = 0; n < snapshots / 2; ++n) {
    elsewhere.push_back(keys.Next());
    Store(*store, others, elsewhere.back());
  }
  std::printf("a store of %lld snapshots, and %lld of another tenant; storing one: %.2f us\n",
              static_cast<long long>(snapshots), static_cast<long long>(snapshots / 2),
              store_us / static_cast<double>(snapshots));

  std::vector<std::string> absent;
  for (std::int64_t n = 0; n < snapshots / 2; ++n) absent.push_back(keys.Next());
  const auto from = [&](const std::vector<std::string>& pool) {
    std::vector<std::string> made;
    for (std::size_t n = 0; n < kKeysPerLookup; ++n) made.push_back(pool[keys.random()() % pool.size()]);
    return made;
  };
  const auto with = [&](std::size_t index) {
    std::vector<std::string> made = from(absent);
    made[index] = present[keys.random()() % present.size()];
    return made;
  };
  const auto missing = [&] { return from(absent); };
  const auto foreign = [&] { return from(elsewhere); };
  Lookups(
      *store, mine, "1,000 keys, only the shortest is there", rounds, [&] { return with(0); }, 0);
  Lookups(
      *store, mine, "1,000 keys, the longest is there", rounds, [&] { return with(kKeysPerLookup - 1); },
      kKeysPerLookup - 1);
  Lookups(*store, mine, "1,000 keys, none is there", rounds, missing, -1);
  Lookups(*store, mine, "1,000 keys, none is there, all are another tenant's", rounds, foreign, -1);
  Lookups(*store, Space("nobody", 1, 1, 4), "the same of a tenant without snapshots", rounds, foreign, -1);
}

/// The best of some rounds, after a first one.
double Best(int rounds, absl::FunctionRef<double()> measure) {
  measure();
  double best = 1e18;
  for (int round = 0; round < rounds; ++round) best = std::min(best, measure());
  return best;
}

/// One slot's memory, in as many pieces as a snapshot has.
struct Slot {
  explicit Slot(cache::MemoryTier& tier, const SnapshotSpace& space) {
    absl::StatusOr<cache::SnapshotMemory> allocated = tier.Allocate(space, space.layers);
    Require(allocated.status());
    memory = *std::move(allocated);
  }
  cache::SnapshotMemory memory;
};

void Copy(kernels::Backend& backend, kernels::Stream& stream, absl::Span<const SnapshotPart> from,
          absl::Span<const SnapshotPart> to) {
  std::vector<kernels::ByteCopy> copies;
  for (std::size_t n = 0; n < from.size(); ++n) {
    copies.push_back({to[n].state.data, from[n].state.data, from[n].state.size});
  }
  Require(backend.CopyBytes(copies, stream));
  Require(backend.Synchronize(stream));
}

void BenchCopies(kernels::Backend& backend, TierKind kind, const SnapshotSpace& space, int rounds) {
  const cache::RealClock clock;
  const std::int64_t bytes = space.snapshot_bytes();
  const std::unique_ptr<SnapshotStore> store = MakeStore(backend, clock, kind, 8 * bytes);
  cache::MemoryTier slots(backend, TierKind::kDevice, 4 * bytes);
  cache::MemoryTier plain(backend, kind, bytes);
  const Slot slot(slots, space);
  const Slot restored(slots, space);
  const Slot yardstick(plain, space);
  absl::StatusOr<std::unique_ptr<kernels::Stream>> stream = backend.CreateStream();
  Require(stream.status());
  Keys keys;
  std::string key;

  const double plain_out = Best(rounds, [&] {
    return Microseconds([&] { Copy(backend, **stream, slot.memory.parts(), yardstick.memory.parts()); });
  });
  const double plain_in = Best(rounds, [&] {
    return Microseconds([&] { Copy(backend, **stream, yardstick.memory.parts(), restored.memory.parts()); });
  });
  // The first eight fill the tier; from then on each save also evicts.
  const double save = Best(std::max(rounds, 16), [&] {
    key = keys.Next();
    return Microseconds([&] {
      SnapshotDraft draft = store->BeginWhole({space, key, 64}, kind);
      Require(draft.outcome().result == SnapshotResult::kPending, draft.outcome().message);
      Copy(backend, **stream, slot.memory.parts(), draft.parts());
      store->Commit(std::move(draft));
    });
  });
  const double restore = Best(rounds, [&] {
    return Microseconds([&] {
      store->Fetch(space, key, [&](absl::StatusOr<SnapshotStore::Fetched> fetched) {
        Require(fetched.status());
        Copy(backend, **stream, fetched->copy->parts(), restored.memory.parts());
      });
    });
  });
  const auto gigabytes = [&](double us) { return static_cast<double>(bytes) / us * 1e-3; };
  std::printf(
      "%-6s %8.2f MB in %3lld parts: save %8.1f us (%6.2f GB/s, copy alone %6.2f), restore %8.1f us (%6.2f GB/s, "
      "copy alone %6.2f)\n",
      std::string(cache::Name(kind)).c_str(), static_cast<double>(bytes) * 1e-6, static_cast<long long>(space.layers),
      save, gigabytes(save), gigabytes(plain_out), restore, gigabytes(restore), gigabytes(plain_in));
}

int Main(int argc, char** argv) {
  CLI::App app("The snapshot store against plain copies");
  std::int64_t snapshots = 1'000'000;
  int rounds = 2'000;
  int copies = 15;
  app.add_option("--snapshots", snapshots, "in the store that is searched")->check(CLI::Range(1'000, 4'000'000));
  app.add_option("--lookups", rounds, "of each kind")->check(CLI::PositiveNumber);
  app.add_option("--copies", copies, "of each size; the best counts")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  absl::StatusOr<std::unique_ptr<kernels::Backend>> backend = kernels::CreateBackend({});
  Require(backend.status());
  const kernels::DeviceInfo info = (*backend)->device_info();
  std::printf("%s: %s\n", info.backend.c_str(), info.device.c_str());
  BenchLookups(**backend, snapshots, rounds);
  for (const TierKind kind : {TierKind::kDevice, TierKind::kHost}) {
    if (kind == TierKind::kHost && info.unified_memory) break;  // the same memory
    BenchCopies(**backend, kind, Space("mine", 2, 2, 64), copies);
    BenchCopies(**backend, kind, Space("mine", 24, 16, 64), copies);
    BenchCopies(**backend, kind, Space("mine", 36, 8, 128), copies);
    BenchCopies(**backend, kind, Space("mine", 36, 32, 128), copies);
  }
  return 0;
}

}  // namespace
}  // namespace gdpcache::bench

int main(int argc, char** argv) {
  try {
    return gdpcache::bench::Main(argc, argv);
  } catch (const std::exception& error) {  // CLI11's
    std::cerr << error.what() << '\n';
    return 1;
  }
}
