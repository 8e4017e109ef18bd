#include "tests/unit/engine/engine_world.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"
#include "server/cache/snapshots/memory_tier.h"
#include "server/engine/slot_memory.h"
#include "tests/reference/random_problem.h"
#include "tests/support/eventually.h"

namespace gdpcache::engine {

using testing::HostTensor;
using testing::Outputs;
using testing::Problem;

namespace {

using test::SeparateMemoryBackend;

constexpr cache::CatalogLimits kLimits = {.max_caches = 1000,
                                          .max_sessions = 1000,
                                          .state_memory_bytes = std::int64_t{1} << 33,
                                          .default_session_ttl = absl::Seconds(60),
                                          .max_session_ttl = absl::Hours(1)};

constexpr cache::SnapshotLimits kSnapshotLimits = {.pinned_bytes = std::int64_t{1} << 30,
                                                   .max_watches = 10,
                                                   .max_pin_ttl = absl::Hours(1),
                                                   .pending_timeout = absl::Minutes(1)};

std::unique_ptr<kernels::Backend> CpuBackend() {
  auto backend = kernels::CreateBackend({.choice = kernels::BackendChoice::kCpu, .cpu_threads = 2, .cuda_device = 0});
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

TensorArgument ArgumentOf(const HostTensor& tensor, TensorTransport transport) {
  TensorArgument argument;
  argument.present = tensor.present();
  argument.dtype = ElementTypeOf(tensor.dtype);
  argument.shape = tensor.shape;
  if (transport == TensorTransport::kInline) {
    argument.data = tensor.bytes.data();
    argument.data_bytes = static_cast<std::int64_t>(tensor.bytes.size());
  }
  return argument;
}

}  // namespace

Tiers DeviceTier(std::int64_t bytes) {
  return [bytes](kernels::Backend& backend) {
    std::vector<cache::StoreTier> tiers;
    tiers.push_back({std::make_unique<cache::MemoryTier>(backend, cache::TierKind::kDevice, bytes), bytes, bytes});
    return tiers;
  };
}

World::World(const EngineOptions& options, Memory memory, const Tiers& tiers)
    : cpu(CpuBackend()),
      separate(*cpu),
      device(memory == Memory::kAsynchronous ? std::make_unique<test::AsynchronousBackend>(separate) : nullptr),
      backend(memory == Memory::kUnified ? *cpu
                                         : (device != nullptr ? static_cast<kernels::Backend&>(*device) : separate)),
      reporting(backend, [this](const absl::Status&) { ++losses; }),
      catalog(
          reporting, clock, kLimits, [this](cache::SessionKey session) { store->EndSession(session); }, &thread) {
  auto made = cache::SnapshotStore::Create(reporting, clock, tiers(reporting), {.limits = kSnapshotLimits});
  EXPECT_TRUE(made.ok()) << made.status();
  store = *std::move(made);
  auto created = Engine::Create(
      reporting, options, store.get(), [this](const absl::Status&) { ++losses; }, &thread);
  EXPECT_TRUE(created.ok()) << created.status();
  engine = *std::move(created);
}

std::shared_ptr<cache::Session> World::OpenSession(const cache::Geometry& geometry) {
  const auto created = catalog.CreateCache({.name = absl::StrCat("cache", caches++), .geometry = geometry});
  EXPECT_TRUE(created.ok()) << created.status();
  auto session = OpenSessionOn(*created->cache);
  EXPECT_EQ(Acquire(*this, session, geometry.slots).status(), absl::OkStatus());
  return session;
}

std::shared_ptr<cache::Session> World::OpenSessionOn(const cache::Cache& cache) {
  auto session = catalog.OpenSession(cache.spec().name, absl::ZeroDuration(), "test");
  EXPECT_TRUE(session.ok()) << session.status();
  return *std::move(session);
}

testing::Problem Sequences(std::vector<std::int64_t> lengths, Slots slots, std::uint64_t seed) {
  testing::ProblemSpec spec;
  spec.shape = {.heads = 2,
                .key_dim = 16,
                .value_dim = 8,
                .num_householder = 1,
                .chunk_size = 16,
                .input_dtype = kernels::DataType::kBFloat16};
  spec.lengths = std::move(lengths);
  spec.state_indices = std::move(slots);
  return testing::RandomProblem(spec, seed);
}

testing::Problem SmallProblem() { return Sequences({300, 40, 600}, {2, -1, 0}, 3); }

cache::Geometry GeometryOf(const Problem& problem, std::int64_t layers, std::int64_t auxiliary_bytes) {
  return {.layers = layers,
          .slots = problem.state.present() ? problem.state.shape[0] : 1,
          .heads = problem.shape.heads,
          .key_dim = problem.shape.key_dim,
          .value_dim = problem.shape.value_dim,
          .num_householder = problem.shape.num_householder,
          .state_dtype = problem.state.present() ? problem.state.dtype : kernels::DataType::kFloat32,
          .auxiliary_bytes = auxiliary_bytes};
}

void LoadState(const cache::Cache& cache, std::int64_t layer, const HostTensor& state) {
  const std::int64_t size = cache.geometry().state_bytes();
  for (std::int64_t slot = 0; slot < cache.geometry().slots; ++slot) {
    std::memcpy(SeparateMemoryBackend::HostAddress(cache.pool().State(layer, slot).data),
                state.bytes.data() + slot * size, size);
  }
}

HostTensor StoreState(const cache::Cache& cache, std::int64_t layer) {
  const cache::Geometry& geometry = cache.geometry();
  HostTensor state =
      testing::ZeroTensor(geometry.state_dtype, {geometry.slots, geometry.heads, geometry.key_dim, geometry.value_dim});
  for (std::int64_t slot = 0; slot < geometry.slots; ++slot) {
    std::memcpy(state.bytes.data() + slot * geometry.state_bytes(),
                SeparateMemoryBackend::HostAddress(cache.pool().State(layer, slot).data), geometry.state_bytes());
  }
  return state;
}

void LoadAuxiliary(const cache::Cache& cache, std::int64_t layer, std::int64_t slot, const std::string& bytes) {
  const kernels::ByteRange place = cache.pool().Auxiliary(layer, slot);
  ASSERT_EQ(bytes.size(), place.size);
  std::memcpy(SeparateMemoryBackend::HostAddress(place.data), bytes.data(), bytes.size());
}

Kept ContentOf(const cache::Cache& cache, std::int64_t slot) {
  Kept kept{.position = cache.slots().Position(0, slot), .states = {}, .auxiliary = {}};
  for (std::int64_t layer = 0; layer < cache.geometry().layers; ++layer) {
    EXPECT_EQ(cache.slots().Position(layer, slot), kept.position);
    const auto* state = SeparateMemoryBackend::HostAddress(cache.pool().State(layer, slot).data);
    kept.states.emplace_back(static_cast<const char*>(state), cache.geometry().state_bytes());
    const kernels::ByteRange auxiliary = cache.pool().Auxiliary(layer, slot);
    kept.auxiliary.emplace_back(static_cast<const char*>(SeparateMemoryBackend::HostAddress(auxiliary.data)),
                                auxiliary.size);
  }
  return kept;
}

absl::StatusOr<Slots> Acquire(const World& world, const std::shared_ptr<cache::Session>& session, std::int64_t count) {
  return Complete<absl::StatusOr<Slots>>(
      [&](SlotsDone done) { return world.engine->AcquireSlots({.session = session}, count, std::move(done)); });
}

absl::Status Release(const World& world, const std::shared_ptr<cache::Session>& session, const Slots& slots) {
  return Complete<absl::Status>(
      [&](Done done) { return world.engine->ReleaseSlots({.session = session}, slots, std::move(done)); });
}

absl::Status Reset(const World& world, const std::shared_ptr<cache::Session>& session, const Slots& slots) {
  return Complete<absl::Status>(
      [&](Done done) { return world.engine->ResetSlots({.session = session}, slots, std::move(done)); });
}

absl::Status Copy(const World& world, const std::shared_ptr<cache::Session>& session,
                  const std::vector<SlotCopyRequest>& copies) {
  return Complete<absl::Status>(
      [&](Done done) { return world.engine->CopySlots({.session = session}, copies, std::move(done)); });
}

absl::StatusOr<std::vector<cache::SnapshotOutcome>> Save(const World& world,
                                                         const std::shared_ptr<cache::Session>& session,
                                                         std::vector<SlotSaveRequest> saves) {
  return Complete<absl::StatusOr<std::vector<cache::SnapshotOutcome>>>([&](SavesDone done) {
    return world.engine->SaveSnapshots({.session = session}, std::move(saves), std::move(done));
  });
}

absl::StatusOr<std::vector<std::int64_t>> Restore(const World& world, const std::shared_ptr<cache::Session>& session,
                                                  std::vector<SlotRestoreRequest> restores) {
  return Complete<absl::StatusOr<std::vector<std::int64_t>>>([&](RestoresDone done) {
    return world.engine->RestoreSnapshots({.session = session}, std::move(restores), std::move(done));
  });
}

absl::StatusOr<Kept> ReadSnapshot(const World& world, const cache::Session& session, const std::string& key) {
  const auto contents = Complete<absl::StatusOr<SnapshotContents>>(
      [&](ContentsDone done) { return world.engine->ReadSnapshot(SpaceOf(session), key, std::move(done)); });
  if (!contents.ok()) return contents.status();
  Kept kept{.position = contents->position, .states = {}, .auxiliary = {}};
  for (const cache::SnapshotPart& part : contents->parts) {
    kept.states.emplace_back(static_cast<const char*>(part.state.data), part.state.size);
    kept.auxiliary.emplace_back(static_cast<const char*>(part.auxiliary.data), part.auxiliary.size);
  }
  return kept;
}

bool NothingUnderWay(const World& world) {
  return world.engine->staging().used() == 0 && world.engine->device_staging().used() == 0 &&
         world.engine->admission().calls() == 0 &&
         test::Eventually([&world] { return world.engine->load().running == 0; });
}

std::string KeyOf(const std::string& name) { return absl::StrCat("0123456789abcdef:", name); }

std::size_t Fingerprint(const cache::Cache& cache) {
  const cache::Geometry& geometry = cache.geometry();
  std::string all;
  for (std::int64_t layer = 0; layer < geometry.layers; ++layer) {
    for (std::int64_t slot = 0; slot < geometry.slots; ++slot) {
      all.append(static_cast<const char*>(SeparateMemoryBackend::HostAddress(cache.pool().State(layer, slot).data)),
                 geometry.state_bytes());
      const kernels::ByteRange auxiliary = cache.pool().Auxiliary(layer, slot);
      if (auxiliary.size > 0)
        all.append(static_cast<const char*>(SeparateMemoryBackend::HostAddress(auxiliary.data)), auxiliary.size);
      absl::StrAppend(&all, "@", cache.slots().Position(layer, slot), ";");
    }
  }
  return std::hash<std::string>()(all);
}

PrefillRequest RequestOf(const Problem& problem, TensorTransport transport) {
  PrefillRequest request;
  request.transport = transport;
  request.k = ArgumentOf(problem.k, transport);
  request.w = ArgumentOf(problem.w, transport);
  request.u = ArgumentOf(problem.u, transport);
  request.g = ArgumentOf(problem.g, transport);
  request.cu_seqlens = problem.cu_seqlens;
  request.chunk_size = problem.shape.chunk_size;
  request.num_householder = problem.shape.num_householder;
  request.state_indices = problem.state_indices;
  switch (problem.initial) {
    case testing::InitialState::kSlot:
      request.initial_state_source =
          problem.state_indices.empty() ? InitialStateSource::kZero : InitialStateSource::kSlot;
      break;
    case testing::InitialState::kZero:
      request.initial_state_source = InitialStateSource::kZero;
      break;
    case testing::InitialState::kTensor:
      request.initial_state_source = InitialStateSource::kTensor;
      request.initial_state = ArgumentOf(problem.initial_state, transport);
      break;
  }
  request.save_new_value = problem.save_new_value;
  request.output_final_state = problem.output_final_state;
  request.states = StateSelectionMode::kAll;
  request.states_dtype = ElementTypeOf(problem.states_dtype);
  return request;
}

PrefillOutputs OutputsOf(const Problem& problem, const PrefillPlan& plan, Outputs& outputs) {
  const auto& [heads, key_dim, value_dim, householder, chunk, dtype, precision] = problem.shape;
  outputs.h = {problem.states_dtype, {plan.h_states, heads, key_dim, value_dim}, {}};
  outputs.h.bytes.resize(plan.h_bytes);
  if (problem.save_new_value) outputs.v_new = {dtype, {plan.rows, heads, value_dim}, {}};
  outputs.v_new.bytes.resize(plan.v_new_bytes);
  if (problem.output_final_state) {
    outputs.final_state = {kernels::DataType::kFloat32, {plan.sequence_count(), heads, key_dim, value_dim}, {}};
  }
  outputs.final_state.bytes.resize(plan.final_state_bytes);
  return {outputs.h.bytes.data(), outputs.v_new.bytes.data(), outputs.final_state.bytes.data()};
}

absl::StatusOr<Ran> RunUnary(const World& world, std::shared_ptr<cache::Session> session, const Problem& problem,
                             const PrefillRequest& request) {
  Outcome<absl::StatusOr<PrefillResult>> outcome;
  auto call =
      world.engine->Prefill({.session = std::move(session)}, request,
                            [&outcome](absl::StatusOr<PrefillResult> result) { outcome.Set(std::move(result)); });
  if (!call.ok()) return call.status();
  Ran ran;
  (*call)->SetOutputs(OutputsOf(problem, (*call)->plan(), ran.outputs));
  (*call)->Start();
  absl::StatusOr<PrefillResult> result = outcome.Take();
  if (!result.ok()) return result.status();
  ran.result = *std::move(result);
  return ran;
}

void CollectingPeer::Output(OutputPiece piece) {
  {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte>& bytes = bytes_[piece.tensor];
    EXPECT_EQ(piece.offset, static_cast<std::int64_t>(bytes.size()));
    bytes.insert(bytes.end(), piece.data, piece.data + piece.size);
    received_ += piece.size;
  }
  const std::int64_t size = piece.size;
  piece.owner.reset();
  if (!held_) call_->OutputSent(size);
}

void CollectingPeer::InputWanted() {
  const std::lock_guard lock(mutex_);
  wanted_ = true;
  wanted_changed_.notify_all();
}

std::int64_t CollectingPeer::received() const {
  const std::lock_guard lock(mutex_);
  return received_;
}

void CollectingPeer::WaitForInputWanted() {
  std::unique_lock lock(mutex_);
  wanted_changed_.wait(lock, [this] { return wanted_; });
  wanted_ = false;
}

std::vector<std::byte> CollectingPeer::Take(StreamTensor tensor) {
  const std::lock_guard lock(mutex_);
  return std::move(bytes_[tensor]);
}

std::vector<Feed> FeedsOf(const Problem& problem) {
  std::vector<Feed> feeds;
  for (const auto& [tensor, source] : {std::pair(StreamTensor::kK, &problem.k), std::pair(StreamTensor::kW, &problem.w),
                                       std::pair(StreamTensor::kU, &problem.u), std::pair(StreamTensor::kG, &problem.g),
                                       std::pair(StreamTensor::kInitialState, &problem.initial_state)}) {
    if (!source->present()) continue;
    Feed feed{.tensor = tensor, .data = source->bytes.data(), .size = static_cast<std::int64_t>(source->bytes.size())};
    if (tensor != StreamTensor::kInitialState && source->shape[0] > 0) feed.row_bytes = feed.size / source->shape[0];
    feeds.push_back(feed);
  }
  return feeds;
}

absl::Status Send(StreamedInput& call, Feed& feed, std::int64_t size) {
  while (size > 0) {
    const auto place = call.Place(feed.tensor, feed.sent, size);
    if (!place.ok()) return place.status();
    EXPECT_GE(place->size(), 1U);
    EXPECT_LE(place->size(), static_cast<std::size_t>(size));
    std::memcpy(place->data(), feed.data + feed.sent, place->size());
    const auto placed = static_cast<std::int64_t>(place->size());
    call.Placed(place->size());
    feed.sent += placed;
    size -= placed;
  }
  return absl::OkStatus();
}

absl::Status SendAll(StreamedInput& call, CollectingPeer& peer, std::vector<Feed> feeds, std::mt19937_64& random,
                     std::int64_t lead) {
  while (true) {
    std::int64_t least = -1;  // rows of the tensor furthest behind
    for (const Feed& feed : feeds) {
      if (feed.sent < feed.size) {
        const std::int64_t rows = feed.row_bytes == 0 ? 0 : feed.sent / feed.row_bytes;
        least = least < 0 ? rows : std::min(least, rows);
      }
    }
    if (least < 0) break;
    Feed& feed = feeds[random() % feeds.size()];
    const std::int64_t end = feed.row_bytes == 0 ? feed.size : std::min(feed.size, (least + 1 + lead) * feed.row_bytes);
    if (feed.sent >= end) continue;
    const std::int64_t size = 1 + static_cast<std::int64_t>(random() % (end - feed.sent));
    if (absl::Status status = Send(call, feed, size); !status.ok()) return status;
    if (!call.WantsInput()) peer.WaitForInputWanted();
  }
  call.EndOfInput();
  return absl::OkStatus();
}

ReadResult Read(const World& world, const std::shared_ptr<cache::Session>& session, const SlotSelection& selection) {
  CollectingPeer peer;
  ReadResult result;
  Outcome<absl::Status> outcome;
  const auto call = world.engine->ReadSlots(
      {.session = session}, selection, [&](SlotContents contents) { result.contents = std::move(contents); }, peer,
      [&](absl::Status status) { outcome.Set(std::move(status)); });
  if (!call.ok()) {
    result.status = call.status();
    return result;
  }
  peer.SetCall(call->get());
  (*call)->Start();
  result.status = outcome.Take();
  result.state = peer.Take(StreamTensor::kState);
  result.auxiliary = peer.Take(StreamTensor::kAuxiliary);
  return result;
}

absl::Status Write(const World& world, const std::shared_ptr<cache::Session>& session, const SlotSelection& selection,
                   const std::vector<std::int64_t>& positions, const std::vector<std::byte>& state,
                   const std::vector<std::byte>* auxiliary) {
  constexpr std::int64_t kFrame = 50;
  const cache::Geometry& geometry = session->cache()->geometry();
  const auto slots = static_cast<std::int64_t>(selection.slots.size());
  const auto layers = selection.layers.empty() ? geometry.layers : static_cast<std::int64_t>(selection.layers.size());
  const std::vector<std::int64_t> state_shape = {slots, layers, geometry.heads, geometry.key_dim, geometry.value_dim};
  const std::vector<std::int64_t> auxiliary_shape = {slots, layers, geometry.auxiliary_bytes};
  WriteSlotsRequest request{.selection = selection, .positions = positions, .state = {}, .auxiliary = {}};
  request.state = {.present = true, .dtype = ElementTypeOf(geometry.state_dtype), .shape = state_shape};
  if (auxiliary != nullptr) {
    request.auxiliary = {.present = true, .dtype = ElementType::kUint8, .shape = auxiliary_shape};
  }
  Outcome<absl::Status> outcome;
  const auto call = world.engine->WriteSlots({.session = session}, request,
                                             [&](absl::Status status) { outcome.Set(std::move(status)); });
  if (!call.ok()) return call.status();
  (*call)->Start();
  std::vector<Feed> feeds = {
      {.tensor = StreamTensor::kState, .data = state.data(), .size = static_cast<std::int64_t>(state.size())}};
  if (auxiliary != nullptr) {
    feeds.push_back({.tensor = StreamTensor::kAuxiliary,
                     .data = auxiliary->data(),
                     .size = static_cast<std::int64_t>(auxiliary->size())});
  }
  for (Feed& feed : feeds) {
    while (feed.sent < feed.size) {
      if (!Send(**call, feed, std::min(kFrame, feed.size - feed.sent)).ok()) return outcome.Take();
    }
  }
  (*call)->EndOfInput();
  return outcome.Take();
}

absl::StatusOr<Ran> RunStreamed(const World& world, std::shared_ptr<cache::Session> session, const Problem& problem,
                                const PrefillRequest& request, std::uint64_t seed, std::int64_t lead,
                                const std::vector<Feed>& more) {
  std::mt19937_64 random(seed);
  CollectingPeer peer;
  Outcome<absl::StatusOr<PrefillResult>> outcome;
  auto call = world.engine->PrefillStream({.session = std::move(session)}, request, peer,
                                          [&](absl::StatusOr<PrefillResult> result) {
                                            peer.InputWanted();  // whoever waits for it shall see the end
                                            outcome.Set(std::move(result));
                                          });
  if (!call.ok()) return call.status();
  peer.SetCall(call->get());
  (*call)->Start();
  std::vector<Feed> feeds = FeedsOf(problem);
  feeds.insert(feeds.end(), more.begin(), more.end());
  const absl::Status sent = SendAll(**call, peer, std::move(feeds), random, lead);
  absl::StatusOr<PrefillResult> result = outcome.Take();
  if (!result.ok()) return result.status();
  if (!sent.ok()) return sent;
  Ran ran;
  OutputsOf(problem, (*call)->plan(), ran.outputs);
  const auto take = [&](StreamTensor tensor, HostTensor& into) {
    const std::size_t size = into.bytes.size();
    into.bytes = peer.Take(tensor);
    EXPECT_EQ(into.bytes.size(), size);
  };
  take(StreamTensor::kH, ran.outputs.h);
  take(StreamTensor::kVNew, ran.outputs.v_new);
  take(StreamTensor::kFinalState, ran.outputs.final_state);
  ran.result = *std::move(result);
  return ran;
}

}  // namespace gdpcache::engine
