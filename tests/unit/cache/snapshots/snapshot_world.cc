#include "tests/unit/cache/snapshots/snapshot_world.h"

#include <future>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/copy_and_wait.h"

namespace gdpcache::cache {
namespace {

std::string Content(std::size_t size, std::int64_t seed, std::int64_t layer, bool auxiliary) {
  std::string bytes(size, '\0');
  std::uint64_t value =
      static_cast<std::uint64_t>(seed) * 1'000'003 + static_cast<std::uint64_t>(2 * layer + auxiliary);
  for (char& byte : bytes) {
    value = value * 6'364'136'223'846'793'005 + 1'442'695'040'888'963'407;
    byte = static_cast<char>(value >> 56U);
  }
  return bytes;
}

std::vector<absl::string_view> Views(const std::vector<std::string>& keys) { return {keys.begin(), keys.end()}; }

std::vector<std::string> Keys(const std::vector<std::int64_t>& numbers) {
  std::vector<std::string> keys;
  for (const std::int64_t number : numbers) keys.push_back(Key(number));
  return keys;
}

}  // namespace

SnapshotSpace TestSpace(std::string tenant) {
  SnapshotSpace space;
  space.tenant = std::move(tenant);
  space.fingerprint = "model@1";
  space.layers = 2;
  space.heads = 2;
  space.key_dim = 4;
  space.value_dim = 8;
  space.auxiliary_bytes = 256;
  return space;
}

std::string Key(std::int64_t number) { return absl::StrFormat("key %012d", number); }

SnapshotOptions SnapshotWorld::DefaultOptions() {
  SnapshotOptions options;
  options.limits.pinned_bytes = 1'000 * kSnapshotBytes;
  options.limits.max_watches = 4;
  options.limits.max_pin_ttl = absl::Minutes(10);
  options.limits.pending_timeout = absl::Minutes(1);
  options.write_policy = WritePolicy::kWriteBack;
  return options;
}

SnapshotOptions SnapshotWorld::WriteThrough() {
  SnapshotOptions options = DefaultOptions();
  options.write_policy = WritePolicy::kWriteThrough;
  return options;
}

SnapshotWorld::SnapshotWorld(Setup setup) {
  std::vector<StoreTier> tiers;
  const auto add = [&](std::unique_ptr<Tier> tier, std::int64_t snapshots) {
    const auto bytes = static_cast<double>(snapshots * kSnapshotBytes);
    tiers.push_back(
        {std::move(tier), static_cast<std::int64_t>(setup.high * bytes), static_cast<std::int64_t>(setup.low * bytes)});
  };
  if (setup.device > 0) {
    add(std::make_unique<MemoryTier>(backend, TierKind::kDevice, setup.device * kSnapshotBytes), setup.device);
  }
  if (setup.host > 0) {
    add(std::make_unique<MemoryTier>(backend, TierKind::kHost, setup.host * kSnapshotBytes), setup.host);
  }
  if (setup.disk > 0) {
    auto tier = std::make_unique<test::FaultInjectingTier>(backend, setup.disk * kSnapshotBytes);
    disk = tier.get();
    add(std::move(tier), setup.disk);
  }
  setup.options.log = [this](absl::string_view line) {
    const std::lock_guard lock(mutex_);
    log_.emplace_back(line);
  };
  absl::StatusOr<std::unique_ptr<SnapshotStore>> created =
      SnapshotStore::Create(backend, clock, std::move(tiers), std::move(setup.options));
  EXPECT_TRUE(created.ok()) << created.status();
  store = *std::move(created);
  stream_ = *backend.CreateStream();
}

void SnapshotWorld::Fill(absl::Span<const SnapshotPart> parts, std::int64_t seed, std::int64_t first_layer) {
  const std::lock_guard lock(mutex_);
  for (std::size_t n = 0; n < parts.size(); ++n) {
    const std::int64_t layer = first_layer + static_cast<std::int64_t>(n);
    const std::string state = Content(parts[n].state.size, seed, layer, false);
    const std::string auxiliary = Content(parts[n].auxiliary.size, seed, layer, true);
    EXPECT_TRUE(kernels::CopyAndWait(separate,
                                     {{parts[n].state.data, state.data(), state.size()},
                                      {parts[n].auxiliary.data, auxiliary.data(), auxiliary.size()}},
                                     *stream_)
                    .ok());
  }
}

bool SnapshotWorld::Holds(absl::Span<const SnapshotPart> parts, std::int64_t seed) {
  const std::lock_guard lock(mutex_);
  if (static_cast<std::int64_t>(parts.size()) != TestSpace().layers) return false;
  for (std::size_t layer = 0; layer < parts.size(); ++layer) {
    std::string state(parts[layer].state.size, '\0');
    std::string auxiliary(parts[layer].auxiliary.size, '\0');
    EXPECT_TRUE(kernels::CopyAndWait(separate,
                                     {{state.data(), parts[layer].state.data, state.size()},
                                      {auxiliary.data(), parts[layer].auxiliary.data, auxiliary.size()}},
                                     *stream_)
                    .ok());
    const auto number = static_cast<std::int64_t>(layer);
    if (state != Content(state.size(), seed, number, false)) return false;
    if (auxiliary != Content(auxiliary.size(), seed, number, true)) return false;
  }
  return true;
}

SnapshotOutcome SnapshotWorld::Store(std::int64_t number, std::int64_t position, const SnapshotSpace& space,
                                     TierKind kind) {
  SnapshotDraft draft = store->BeginWhole({space, Key(number), position}, kind);
  Fill(draft.parts(), number);
  return store->Commit(std::move(draft));
}

absl::StatusOr<SnapshotOutcome> SnapshotWorld::StorePart(SessionKey session, std::int64_t number, std::int64_t position,
                                                         std::int64_t layer, const SnapshotSpace& space) {
  absl::StatusOr<SnapshotDraft> draft = store->BeginPart(session, {space, Key(number), position}, layer);
  if (!draft.ok()) return draft.status();
  Fill(draft->parts(), number, layer);
  return store->Commit(*std::move(draft));
}

void SnapshotWorld::StoreMany(std::int64_t first, std::int64_t last, const SnapshotSpace& space) {
  for (std::int64_t number = first; number <= last; ++number) {
    ASSERT_EQ(Store(number, 64, space).result, SnapshotResult::kStored) << number;
    store->WaitUntilIdle();
    clock.Advance(absl::Seconds(1));
  }
}

SnapshotOutcome SnapshotWorld::StoreParts(SessionKey session, std::int64_t number, std::int64_t position,
                                          const SnapshotSpace& space) {
  SnapshotOutcome outcome;
  for (std::int64_t layer = 0; layer < space.layers; ++layer) {
    absl::StatusOr<SnapshotOutcome> stored = StorePart(session, number, position, layer, space);
    EXPECT_TRUE(stored.ok()) << stored.status();
    if (stored.ok()) outcome = *std::move(stored);
  }
  return outcome;
}

bool SnapshotWorld::Has(std::int64_t number, const SnapshotSpace& space) {
  return store->Find(space, Key(number)).has_value();
}

std::vector<std::int64_t> SnapshotWorld::Numbers(std::int64_t end, const SnapshotSpace& space) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t number = 0; number < end; ++number) {
    if (Has(number, space)) numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::shared_ptr<const TierCopy>> SnapshotWorld::Fetch(std::int64_t number, const SnapshotSpace& space) {
  std::promise<absl::StatusOr<SnapshotStore::Fetched>> promise;
  auto future = promise.get_future();
  store->Fetch(space, Key(number),
               [&](absl::StatusOr<SnapshotStore::Fetched> fetched) { promise.set_value(std::move(fetched)); });
  absl::StatusOr<SnapshotStore::Fetched> fetched = future.get();
  if (!fetched.ok()) return fetched.status();
  return std::move(fetched->copy);
}

void SnapshotWorld::ExpectIntact(std::int64_t number, const SnapshotSpace& space) {
  const absl::StatusOr<std::shared_ptr<const TierCopy>> copy = Fetch(number, space);
  ASSERT_TRUE(copy.ok()) << number << ": " << copy.status();
  EXPECT_TRUE(Holds((*copy)->parts(), number)) << number;
}

std::vector<TierKind> SnapshotWorld::Tiers(std::int64_t number, const SnapshotSpace& space) {
  for (const SnapshotSummary& summary : store->List(space, "", 1'000'000)) {
    if (summary.key == Key(number)) return summary.tiers;
  }
  return {};
}

std::optional<SnapshotStore::Lookup> SnapshotWorld::Lookup(const std::vector<std::int64_t>& numbers,
                                                           absl::Duration lease, const SnapshotSpace& space) {
  const std::vector<std::string> keys = Keys(numbers);
  return store->LookupPrefix(space, Views(keys), lease);
}

absl::StatusOr<SnapshotStore::Pinned> SnapshotWorld::Pin(const std::vector<std::int64_t>& numbers, absl::Duration ttl,
                                                         const SnapshotSpace& space) {
  const std::vector<std::string> keys = Keys(numbers);
  return store->Pin(space, Views(keys), ttl);
}

absl::StatusOr<std::int64_t> SnapshotWorld::Delete(const std::vector<std::int64_t>& numbers, bool force,
                                                   const SnapshotSpace& space) {
  const std::vector<std::string> keys = Keys(numbers);
  return store->Delete(space, Views(keys), force);
}

std::int64_t SnapshotWorld::used(TierKind kind) {
  for (const SnapshotStore::TierUsage& tier : store->tiers()) {
    if (tier.kind == kind) return tier.used;
  }
  return -1;
}

std::vector<std::string> SnapshotWorld::log() {
  const std::lock_guard lock(mutex_);
  return log_;
}

}  // namespace gdpcache::cache
