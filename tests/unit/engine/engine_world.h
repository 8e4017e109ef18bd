#ifndef GDPCACHE_TESTS_UNIT_ENGINE_ENGINE_WORLD_H_
#define GDPCACHE_TESTS_UNIT_ENGINE_ENGINE_WORLD_H_

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/loss_reporting_backend.h"
#include "server/cache/catalog.h"
#include "server/cache/snapshots/snapshot_store.h"
#include "server/cache/task_thread.h"
#include "server/engine/engine.h"
#include "tests/reference/problem.h"
#include "tests/support/asynchronous_backend.h"
#include "tests/support/fault_injecting_backend.h"
#include "tests/support/manual_clock.h"
#include "tests/support/separate_memory_backend.h"

/// Everything a test of the engine stands on, and the problems of tests/reference as calls of the engine.
namespace gdpcache::engine {

/// A value that another thread delivers once.
template <typename T>
class Outcome {
 public:
  void Set(T value) {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(value_.has_value()) << "delivered twice";
    value_ = std::move(value);
    arrived_.notify_all();  // with the lock: whoever takes the value may destroy this
  }
  bool IsSet() const {
    const std::lock_guard lock(mutex_);
    return value_.has_value();
  }
  T Take() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return value_.has_value(); });
    return std::move(*value_);
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::optional<T> value_;
};

/// Makes a call, starts it and waits for its end.
template <typename T, typename Make>
T Complete(Make make) {
  Outcome<T> outcome;
  const auto call = make([&outcome](T value) { outcome.Set(std::move(value)); });
  if (!call.ok()) return call.status();
  (*call)->Start();
  return outcome.Take();
}

/// Whether the backend's device memory is the host's, and if not, whether it has a thread of its own, too.
enum class Memory : std::uint8_t { kUnified, kSeparate, kAsynchronous };

/// Where a world keeps its snapshots.
using Tiers = std::function<std::vector<cache::StoreTier>(kernels::Backend&)>;

/// Device memory alone, `bytes` of it.
Tiers DeviceTier(std::int64_t bytes = std::int64_t{1} << 30);

/// A backend on the CPU whose operations can be made to fail, caches and sessions on a clock that stands still, a store
/// of snapshots, an engine.
struct World {
  explicit World(const EngineOptions& options = {}, Memory memory = Memory::kUnified,
                 const Tiers& tiers = DeviceTier());

  /// A session on a new cache, all of whose slots it holds.
  std::shared_ptr<cache::Session> OpenSession(const cache::Geometry& geometry);
  /// One more session on that cache.
  std::shared_ptr<cache::Session> OpenSessionOn(const cache::Cache& cache);

  std::unique_ptr<kernels::Backend> cpu;
  test::SeparateMemoryBackend separate;
  const std::unique_ptr<test::AsynchronousBackend> device;  // kAsynchronous only
  test::FaultInjectingBackend backend;
  std::atomic<std::int64_t> losses = 0;  // of the device, as they are reported
  kernels::LossReportingBackend reporting;
  test::ManualClock clock;
  std::unique_ptr<cache::SnapshotStore> store;
  cache::TaskThread thread;
  cache::Catalog catalog;
  std::unique_ptr<Engine> engine;
  int caches = 0;
};

using Slots = std::vector<std::int64_t>;
using Operation = test::FaultInjectingBackend::Operation;
/// Those that a call makes a fixed number of times: streams are made at the start, and queries, by a thread of the
/// engine's, until the work is complete.
inline constexpr Operation kAllOperations[] = {
    Operation::kAllocate,  Operation::kRunRecurrence, Operation::kCopyStates,
    Operation::kCopyBytes, Operation::kZeroBytes,     Operation::kFindNonFinite,
    Operation::kRecord,    Operation::kSynchronize,   Operation::kAwait};

/// Sequences of so many rows, for caches of two heads of 16 x 8.
testing::Problem Sequences(std::vector<std::int64_t> lengths, Slots slots, std::uint64_t seed);

/// A batch of three sequences that is several segments of 16 KiB; the middle one has no slot.
testing::Problem SmallProblem();

/// The cache a problem needs.
cache::Geometry GeometryOf(const testing::Problem& problem, std::int64_t layers = 1, std::int64_t auxiliary_bytes = 0);

/// Puts a [S, H, K, V] state of the cache's dtype into a layer, and takes it out. Only while no call runs.
void LoadState(const cache::Cache& cache, std::int64_t layer, const testing::HostTensor& state);
testing::HostTensor StoreState(const cache::Cache& cache, std::int64_t layer);

/// Puts auxiliary bytes into a slot's layer. Only while no call runs.
void LoadAuxiliary(const cache::Cache& cache, std::int64_t layer, std::int64_t slot, const std::string& bytes);

/// A snapshot as a test sees it: position, then per layer its state and its auxiliary bytes.
struct Kept {
  std::int64_t position = 0;
  std::vector<std::string> states;
  std::vector<std::string> auxiliary;

  bool operator==(const Kept&) const = default;
};

/// What a slot holds, if all its layers are at one position. Only while no call runs.
Kept ContentOf(const cache::Cache& cache, std::int64_t slot);

/// These make the call and wait for its end.
absl::StatusOr<Slots> Acquire(const World& world, const std::shared_ptr<cache::Session>& session, std::int64_t count);
absl::Status Release(const World& world, const std::shared_ptr<cache::Session>& session, const Slots& slots);
absl::Status Reset(const World& world, const std::shared_ptr<cache::Session>& session, const Slots& slots);
absl::Status Copy(const World& world, const std::shared_ptr<cache::Session>& session,
                  const std::vector<SlotCopyRequest>& copies);

struct ReadResult {
  absl::Status status;
  SlotContents contents;
  std::vector<std::byte> state;
  std::vector<std::byte> auxiliary;
};
ReadResult Read(const World& world, const std::shared_ptr<cache::Session>& session, const SlotSelection& selection);

/// Without auxiliary bytes where there is none of them given.
absl::Status Write(const World& world, const std::shared_ptr<cache::Session>& session, const SlotSelection& selection,
                   const std::vector<std::int64_t>& positions, const std::vector<std::byte>& state,
                   const std::vector<std::byte>* auxiliary);

absl::StatusOr<std::vector<cache::SnapshotOutcome>> Save(const World& world,
                                                         const std::shared_ptr<cache::Session>& session,
                                                         std::vector<SlotSaveRequest> saves);
absl::StatusOr<std::vector<std::int64_t>> Restore(const World& world, const std::shared_ptr<cache::Session>& session,
                                                  std::vector<SlotRestoreRequest> restores);
absl::StatusOr<Kept> ReadSnapshot(const World& world, const cache::Session& session, const std::string& key);

/// Whether no call holds anything any more; waits for what runs.
bool NothingUnderWay(const World& world);

/// A key that tells tests apart.
std::string KeyOf(const std::string& name);

/// A hash of all bytes of a cache and all its positions: the same before and after a call that changed nothing.
std::size_t Fingerprint(const cache::Cache& cache);

/// The problem as a ragged call with all boundaries. It must outlive the request.
PrefillRequest RequestOf(const testing::Problem& problem, TensorTransport transport);

/// Fills what the problem's outputs are and points to their bytes.
PrefillOutputs OutputsOf(const testing::Problem& problem, const PrefillPlan& plan, testing::Outputs& outputs);

struct Ran {
  testing::Outputs outputs;  // without state
  PrefillResult result;
};

/// Runs the request and waits for it.
absl::StatusOr<Ran> RunUnary(const World& world, std::shared_ptr<cache::Session> session,
                             const testing::Problem& problem, const PrefillRequest& request);

/// Collects what a streaming call sends. Tells the call at once that it has left, unless told to hold it.
class CollectingPeer : public StreamPeer {
 public:
  void Output(OutputPiece piece) override;
  void InputWanted() override;

  void SetCall(StreamedOutput* call) { call_ = call; }
  void Hold() { held_ = true; }
  std::int64_t received() const;
  void WaitForInputWanted();
  std::vector<std::byte> Take(StreamTensor tensor);

 private:
  StreamedOutput* call_ = nullptr;
  bool held_ = false;
  mutable std::mutex mutex_;
  std::condition_variable wanted_changed_;
  bool wanted_ = false;
  std::int64_t received_ = 0;
  std::map<StreamTensor, std::vector<std::byte>> bytes_;
};

/// One tensor of a streaming call on its way.
struct Feed {
  StreamTensor tensor;
  const std::byte* data = nullptr;
  std::int64_t size = 0;
  std::int64_t row_bytes = 0;  // 0: not one of the rows; sent first
  std::int64_t sent = 0;
};

/// The tensors of a problem.
std::vector<Feed> FeedsOf(const testing::Problem& problem);

/// Sends the next `size` bytes of `feed`.
absl::Status Send(StreamedInput& call, Feed& feed, std::int64_t size);

/// Sends everything in frames of random size, tensors interleaved by token but for random leads of up to `lead` rows.
absl::Status SendAll(StreamedInput& call, CollectingPeer& peer, std::vector<Feed> feeds, std::mt19937_64& random,
                     std::int64_t lead);

/// Runs the request as a stream of the problem's tensors and `more`, and waits for it.
absl::StatusOr<Ran> RunStreamed(const World& world, std::shared_ptr<cache::Session> session,
                                const testing::Problem& problem, const PrefillRequest& request, std::uint64_t seed,
                                std::int64_t lead = 100, const std::vector<Feed>& more = {});

}  // namespace gdpcache::engine

#endif  // GDPCACHE_TESTS_UNIT_ENGINE_ENGINE_WORLD_H_
