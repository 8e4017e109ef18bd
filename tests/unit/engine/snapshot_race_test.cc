#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/engine/slot_memory.h"
#include "tests/reference/random_problem.h"
#include "tests/unit/engine/engine_world.h"
#include "tests/unit/kernels/problem_runner.h"

/// Everything at once on the same slots and keys. Whatever comes out must be a state that was there.
namespace gdpcache::engine {
namespace {

using cache::SnapshotResult;
using testing::Problem;

constexpr std::int64_t kLayers = 2;
constexpr std::int64_t kSharedSlots = 6;
constexpr int kThreads = 16;
constexpr int kRounds = 300;
constexpr std::int64_t kKeys = 12;
constexpr std::int64_t kBlock = 16;  // tokens of one prefill
constexpr std::int64_t kSteps = 20;  // prefills after which a slot starts again
constexpr std::int64_t kAuxiliary = 5;

std::string AuxiliaryOf(std::int64_t layer, std::int64_t step) {
  std::string bytes = step == 0 ? "" : absl::StrCat(layer, "/", step);  // a slot that starts has zeros
  bytes.resize(kAuxiliary, '\0');
  return bytes;
}

std::string Bytes(const void* device, std::size_t size) {
  return {static_cast<const char*>(test::SeparateMemoryBackend::HostAddress(device)), size};
}

/// The only states there are: after each number of prefills with the same block of tokens, from zero.
struct Chain {
  Chain() {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      testing::ProblemSpec spec;
      spec.shape = {.heads = 1,
                    .key_dim = 8,
                    .value_dim = 8,
                    .num_householder = 1,
                    .chunk_size = kBlock,
                    .input_dtype = kernels::DataType::kBFloat16};
      spec.lengths = {kBlock};
      spec.state_indices = {0};
      spec.spare_slots = 0;
      Problem block = testing::RandomProblem(spec, static_cast<std::uint64_t>(layer));
      block.state = testing::ZeroTensor(block.state.dtype, block.state.shape);
      blocks.push_back(block);
      const auto cpu = *kernels::CreateBackend({.choice = kernels::BackendChoice::kCpu, .cpu_threads = 1});
      for (std::int64_t step = 0; step <= kSteps; ++step) {
        states[layer].emplace_back(reinterpret_cast<const char*>(block.state.bytes.data()), block.state.bytes.size());
        block.state = testing::RunProblem(*cpu, block).state;
      }
    }
  }

  /// Whether the content is that at its position.
  void ExpectHas(const Kept& kept) const {
    ASSERT_EQ(kept.position % kBlock, 0);
    for (std::int64_t layer = 0; layer < kLayers; ++layer)
      ExpectHas(layer, kept.position, kept.states[layer], kept.auxiliary[layer]);
  }
  void ExpectHas(std::int64_t layer, std::int64_t position, const std::string& state,
                 const std::string& auxiliary) const {
    EXPECT_TRUE(state == states[layer][position / kBlock]) << "layer " << layer << " at " << position;
    EXPECT_EQ(auxiliary, AuxiliaryOf(layer, position / kBlock));
  }

  std::vector<Problem> blocks;  // by layer
  std::vector<std::string> states[kLayers];
};

/// Little room in device and host memory, so that snapshots move and are evicted all the time; but the parts that both
/// sessions may have unfinished, one of every key, fit beside some whole snapshots.
std::vector<cache::StoreTier> NarrowTiers(kernels::Backend& backend, const cache::SnapshotSpace& space) {
  const std::int64_t snapshot = cache::MemoryTier::Footprint(space, kLayers);
  const std::int64_t unfinished = 2 * kKeys * cache::MemoryTier::Footprint(space, 1);
  std::vector<cache::StoreTier> tiers;
  for (const auto& [kind, taken] :
       {std::pair(cache::TierKind::kDevice, unfinished), std::pair(cache::TierKind::kHost, std::int64_t{0})}) {
    tiers.push_back({std::make_unique<cache::MemoryTier>(backend, kind, taken + 5 * snapshot), taken / 2 + 3 * snapshot,
                     taken / 2 + 2 * snapshot});
  }
  return tiers;
}

/// What has come about at least once.
struct Seen {
  std::atomic<std::int64_t> kept = 0;  // by prefills
  std::atomic<std::int64_t> saved = 0;
  std::atomic<std::int64_t> restored = 0;
  std::atomic<std::int64_t> read = 0;
};

/// One client: its own dice and a slot that only it restores into.
class Client {
 public:
  Client(const World& world, const Chain& chain, std::shared_ptr<cache::Session> session, Seen& seen, int thread)
      : world_(world),
        chain_(chain),
        seen_(seen),
        session_(std::move(session)),
        own_slot_(kSharedSlots + thread),
        random_(thread) {}

  void Run() {
    for (int round = 0; round < kRounds && !::testing::Test::HasFailure(); ++round) {
      const std::int64_t dice = Draw(20);
      if (dice < 8) {
        Advance(Draw(kSharedSlots));
      } else if (dice < 11) {
        SaveOne();
      } else if (dice < 15) {
        RestoreOne();
      } else if (dice < 16) {
        Fork();
      } else if (dice < 17) {
        (void)world_.store->Delete(SpaceOf(*session_), {RandomKey()}, Draw(2) == 0);
      } else {
        Check(RandomKey());
      }
    }
  }

 private:
  std::int64_t Draw(std::int64_t below) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(below));
  }
  std::string RandomKey() { return KeyOf(absl::StrCat(Draw(kKeys))); }

  /// One more block for the layers of a slot that are not ahead, kept before or behind it under random keys, unless
  /// somebody is faster.
  void Advance(std::int64_t slot) {
    const std::string keys[] = {RandomKey(), RandomKey()};
    const bool at_start = Draw(2) == 0;
    const cache::SlotTable& table = session_->cache()->slots();
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<std::int64_t> expected = {table.Position(layer, slot)};
      if (expected[0] > table.Position(kLayers - 1 - layer, slot)) continue;  // the other one first
      const std::int64_t step = expected[0] / kBlock;
      if (step == kSteps) {
        EXPECT_EQ(Reset(world_, session_, {slot}), absl::OkStatus());
        return;
      }
      const bool streamed = Draw(3) == 0;
      Problem block = chain_.blocks[layer];
      block.state_indices = {slot};
      PrefillRequest request = RequestOf(block, streamed ? TensorTransport::kStream : TensorTransport::kInline);
      request.layer = layer;
      request.expected_positions = expected;
      const std::string before = AuxiliaryOf(layer, step);
      const std::string behind = AuxiliaryOf(layer, step + 1);
      if (at_start) request.snapshots.push_back({.sequence = 0, .boundary = 0, .key = keys[0], .auxiliary = before});
      if (keys[0] != keys[1]) {
        request.snapshots.push_back({.sequence = 0, .boundary = 1, .key = keys[1], .auxiliary = behind});
      }
      const std::vector<std::int64_t> shape = {1, kAuxiliary};
      request.auxiliary_state = {.present = true, .dtype = ElementType::kUint8, .shape = shape};
      absl::StatusOr<Ran> ran;
      if (streamed) {
        const Feed auxiliary{.tensor = StreamTensor::kAuxiliary,
                             .data = reinterpret_cast<const std::byte*>(behind.data()),
                             .size = kAuxiliary};
        ran = RunStreamed(world_, session_, block, request, random_(), 100, {auxiliary});
      } else {
        request.auxiliary_state.data = behind.data();
        request.auxiliary_state.data_bytes = kAuxiliary;
        ran = RunUnary(world_, session_, block, request);
      }
      if (!ran.ok()) {
        EXPECT_EQ(ran.status().code(), absl::StatusCode::kFailedPrecondition) << ran.status();
        return;
      }
      EXPECT_EQ(ran->result.positions[0], expected[0] + kBlock);
      for (std::size_t i = 0; i < request.snapshots.size(); ++i) {
        const cache::SnapshotOutcome& outcome = ran->result.snapshots[i];
        if (outcome.result == SnapshotResult::kPresent) continue;
        if (outcome.result == SnapshotResult::kStored) ++seen_.kept;
        EXPECT_EQ(outcome.position, expected[0] + request.snapshots[i].boundary * kBlock);
      }
    }
  }

  void SaveOne() {
    const auto saved = Save(world_, session_, {{Draw(kSharedSlots), RandomKey()}});
    if (!saved.ok()) {
      EXPECT_EQ(saved.status().code(), absl::StatusCode::kFailedPrecondition) << saved.status();
      return;
    }
    if (saved->at(0).result == SnapshotResult::kStored) ++seen_.saved;
  }

  void RestoreOne() {
    const auto restored = Restore(world_, session_, {{RandomKey(), {own_slot_, Draw(kSharedSlots)}}});
    if (!restored.ok()) {
      EXPECT_EQ(restored.status().code(), absl::StatusCode::kNotFound) << restored.status();
      return;
    }
    ++seen_.restored;
    const Kept content = ContentOf(*session_->cache(), own_slot_);
    EXPECT_EQ(content.position, restored->at(0));
    chain_.ExpectHas(content);
  }

  void Fork() {
    const std::int64_t source = Draw(kSharedSlots);
    const std::int64_t destination = Draw(kSharedSlots);
    EXPECT_EQ(Copy(world_, session_, {{source, {destination}}}), absl::OkStatus());
  }

  void Check(const std::string& key) {
    const auto kept = ReadSnapshot(world_, *session_, key);
    if (kept.ok()) {
      ++seen_.read;
      return chain_.ExpectHas(*kept);
    }
    EXPECT_EQ(kept.status().code(), absl::StatusCode::kNotFound) << kept.status();
  }

  const World& world_;
  const Chain& chain_;
  Seen& seen_;
  const std::shared_ptr<cache::Session> session_;
  const std::int64_t own_slot_;
  std::mt19937_64 random_;
};

class SnapshotRaces : public ::testing::TestWithParam<Memory> {};
INSTANTIATE_TEST_SUITE_P(Memories, SnapshotRaces, ::testing::Values(Memory::kUnified, Memory::kSeparate));

TEST_P(SnapshotRaces, OnTheSameSlotsAndKeysLeaveOnlyStatesThatWereThere) {
  const Chain chain;
  cache::Geometry geometry = GeometryOf(chain.blocks[0], kLayers, kAuxiliary);
  geometry.slots = kSharedSlots + kThreads;
  World world({}, GetParam(), [&geometry](kernels::Backend& backend) {
    return NarrowTiers(backend, cache::SnapshotSpace::Of("", "", geometry));
  });
  // Two caches of one space, so that some threads share slots and keys and some the keys alone.
  const std::vector<std::shared_ptr<cache::Session>> sessions = {world.OpenSession(geometry),
                                                                 world.OpenSession(geometry)};
  Seen seen;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] { Client(world, chain, sessions[thread < 12 ? 0 : 1], seen, thread).Run(); });
  }
  for (std::thread& thread : threads) thread.join();
  world.store->WaitUntilIdle();
  EXPECT_GT(seen.kept, 0);
  EXPECT_GT(seen.saved, 0);
  EXPECT_GT(seen.restored, 0);
  EXPECT_GT(seen.read, 0);

  for (const auto& session : sessions) {
    const cache::Cache& cache = *session->cache();
    for (std::int64_t slot = 0; slot < geometry.slots; ++slot) {
      for (std::int64_t layer = 0; layer < kLayers; ++layer) {
        const kernels::ByteRange auxiliary = cache.pool().Auxiliary(layer, slot);
        chain.ExpectHas(layer, cache.slots().Position(layer, slot),
                        Bytes(cache.pool().State(layer, slot).data, static_cast<std::size_t>(geometry.state_bytes())),
                        Bytes(auxiliary.data, auxiliary.size));
      }
    }
  }
  for (std::int64_t key = 0; key < kKeys; ++key) {
    const auto kept = ReadSnapshot(world, *sessions[0], KeyOf(absl::StrCat(key)));
    if (kept.ok()) chain.ExpectHas(*kept);
  }
  EXPECT_EQ(world.engine->staging().used(), 0);

  // Nothing is left in use: what the sessions have not finished goes with them, and the rest can be deleted.
  const cache::SnapshotSpace space = SpaceOf(*sessions[0]);
  for (const auto& session : sessions)
    EXPECT_TRUE(world.catalog.CloseSession(session->id(), cache::kDefaultTenant, [] {}).ok());
  for (const cache::SnapshotSummary& snapshot : world.store->List(space, "", kKeys)) {
    EXPECT_TRUE(world.store->Delete(space, {snapshot.key}, false).ok());
  }
  world.store->WaitUntilIdle();
  for (const cache::SnapshotStore::TierUsage& usage : world.store->tiers()) EXPECT_EQ(usage.used, 0);
}

}  // namespace
}  // namespace gdpcache::engine
