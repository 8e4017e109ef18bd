#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/reference/numbers.h"
#include "tests/reference/problem_edit.h"
#include "tests/reference/random_problem.h"
#include "tests/unit/engine/engine_world.h"
#include "tests/unit/engine/test_tiers.h"
#include "tests/unit/kernels/problem_runner.h"

/// A snapshot is the state that was there, wherever and however it was taken, and goes on as that would have.
namespace gdpcache::engine {
namespace {

using cache::SnapshotResult;
using testing::HostTensor;
using testing::Problem;

constexpr std::int64_t kLayers = 2;
constexpr std::int64_t kAuxiliary = 7;
constexpr std::int64_t kSource = 0;       // the slot that is prefilled
constexpr std::int64_t kDestination = 2;  // the one that takes a snapshot over
constexpr std::int64_t kContinued = 500;  // tokens

enum class How { kUnary, kStreamInPlace, kStreamInSegments };

EngineOptions OptionsOf(How how) {
  return how == How::kStreamInSegments ? EngineOptions{.segment_bytes = 20'000} : EngineOptions{};
}

absl::StatusOr<Ran> Prefill(const World& world, const std::shared_ptr<cache::Session>& session, How how,
                            std::int64_t layer, const Problem& problem, std::vector<SnapshotDirective> snapshots) {
  const auto transport = how == How::kUnary ? TensorTransport::kInline : TensorTransport::kStream;
  PrefillRequest request = RequestOf(problem, transport);
  request.layer = layer;
  request.snapshots = std::move(snapshots);
  return how == How::kUnary ? RunUnary(world, session, problem, request)
                            : RunStreamed(world, session, problem, request, 1);
}

std::string Bytes(const HostTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

/// Auxiliary bytes that tell a layer and a position.
std::string AuxiliaryOf(std::int64_t layer, std::int64_t position) {
  std::string bytes = absl::StrCat(layer, "@", position);
  bytes.resize(kAuxiliary, '.');
  return bytes;
}

/// The tokens of one slot, other ones in each layer.
struct Tokens {
  Tokens(std::int64_t num_householder, kernels::DataType state_dtype, std::int64_t count) {
    testing::ProblemSpec spec;
    spec.shape = {.heads = 2,
                  .key_dim = 16,
                  .value_dim = 12,
                  .num_householder = num_householder,
                  .chunk_size = 32,
                  .input_dtype = kernels::DataType::kBFloat16};
    spec.lengths = {count};
    spec.state_dtype = state_dtype;
    spec.state_indices = {kSource};
    spec.spare_slots = 3;
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      layers.push_back(testing::RandomProblem(spec, static_cast<std::uint64_t>(layer)));
    }
  }

  /// Tokens [first, first + count) of a layer, for a slot.
  Problem Part(std::int64_t layer, std::int64_t first, std::int64_t count, std::int64_t slot) const {
    const std::int64_t householders = layers[layer].shape.num_householder;
    Problem part = testing::PartOfSequence(layers[layer], 0, first * householders, count * householders);
    part.state_indices = {slot};
    return part;
  }

  std::vector<Problem> layers;
};

class SnapshotExactness
    : public ::testing::TestWithParam<std::tuple<std::int64_t, kernels::DataType, Memory, cache::TierKind>> {
 protected:
  std::int64_t num_householder() const { return std::get<0>(GetParam()); }
  kernels::DataType state_dtype() const { return std::get<1>(GetParam()); }
  Memory memory() const { return std::get<2>(GetParam()); }
  cache::TierKind tier() const { return std::get<3>(GetParam()); }

  /// Runs the tokens before `position` and then kContinued more, in one call where the state is not rounded on the way,
  /// and says what became of the latter.
  testing::Results Uninterrupted(const World& world, const Tokens& tokens, std::int64_t layer,
                                 const std::vector<std::int64_t>& cuts, std::int64_t position) const {
    Problem problem = tokens.layers[layer];
    std::vector<std::int64_t> ends = cuts;
    const bool rounded = state_dtype() != kernels::DataType::kFloat32;
    if (rounded || position % problem.shape.chunk_size != 0) ends.push_back(position);
    ends.push_back(position + kContinued);
    std::sort(ends.begin(), ends.end());
    testing::Results results;
    std::int64_t first = 0;
    HostTensor state = problem.state;
    for (const std::int64_t end : ends) {
      if (end <= first || end > position + kContinued || (end > position && end != position + kContinued)) continue;
      Problem part = tokens.Part(layer, first, end - first, kSource);
      part.state = state;
      results = testing::RunProblem(*world.cpu, part);
      state = results.state;
      if (first < position && end > position) {  // the rows of the tokens behind the position only
        const std::int64_t householders = problem.shape.num_householder;
        results.v_new = testing::Rows(results.v_new, (position - first) * householders, kContinued * householders);
        const std::int64_t skipped = (position - first) / problem.shape.chunk_size;
        results.h = testing::Rows(results.h, skipped, results.h.shape[0] - skipped);
      }
      first = end;
    }
    return results;
  }

  /// Restores the snapshot, goes on, and compares everything with the uninterrupted run.
  void ExpectToGoOn(const World& world, const std::shared_ptr<cache::Session>& session, How how, const Tokens& tokens,
                    const std::string& key, const std::vector<std::int64_t>& cuts, std::int64_t position) const {
    const auto restored = Restore(world, session, {{key, {kDestination}}});
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_THAT(*restored, ::testing::ElementsAre(position));
    const cache::Cache& cache = *session->cache();
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(ContentOf(cache, kDestination).auxiliary[layer], AuxiliaryOf(layer, position));
    }
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const testing::Results expected = Uninterrupted(world, tokens, layer, cuts, position);
      const auto ran = Prefill(world, session, how, layer, tokens.Part(layer, position, kContinued, kDestination), {});
      ASSERT_TRUE(ran.ok()) << ran.status();
      EXPECT_THAT(ran->result.positions, ::testing::ElementsAre(position + kContinued));
      EXPECT_TRUE(ran->outputs.v_new.bytes == expected.v_new.bytes);
      EXPECT_TRUE(ran->outputs.h.bytes == expected.h.bytes);
      EXPECT_TRUE(ran->outputs.final_state.bytes == expected.final_state.bytes);
      EXPECT_TRUE(testing::Rows(StoreState(cache, layer), kDestination, 1).bytes ==
                  testing::Rows(expected.state, kSource, 1).bytes);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    Matrix, SnapshotExactness,
    ::testing::Combine(::testing::Values(1, 2, 3),
                       ::testing::Values(kernels::DataType::kFloat32, kernels::DataType::kBFloat16),
                       ::testing::Values(Memory::kUnified, Memory::kSeparate),
                       ::testing::Values(cache::TierKind::kDevice, cache::TierKind::kHost, cache::TierKind::kDisk)),
    [](const auto& param) {
      return absl::StrCat("M", std::get<0>(param.param), "_", std::string(kernels::Name(std::get<1>(param.param))), "_",
                          std::get<2>(param.param) == Memory::kUnified ? "unified" : "separate", "_",
                          cache::Name(std::get<3>(param.param)));
    });

TEST_P(SnapshotExactness, RestoredAndContinuedEveryBitIsThatOfTheUninterruptedRun) {
  const Tokens tokens(num_householder(), state_dtype(), 1'300);
  // Boundaries are multiples of 32 tokens; 500 is none.
  const std::vector<std::vector<std::int64_t>> splits = {{500}, {128, 160, 500}};
  for (const How how : {How::kUnary, How::kStreamInPlace, How::kStreamInSegments}) {
    for (const std::vector<std::int64_t>& cuts : splits) {
      SCOPED_TRACE(::testing::Message() << "how " << static_cast<int>(how) << ", " << cuts.size() << " calls");
      World world(OptionsOf(how), memory(), TiersDownTo(tier()));
      const auto session = world.OpenSession(GeometryOf(tokens.layers[0], kLayers, kAuxiliary));
      const cache::Cache& cache = *session->cache();
      const auto key = [](std::int64_t position) { return KeyOf(absl::StrCat(position)); };
      const std::vector<std::int64_t> positions = {0, 96, 192, 480, 500};
      for (std::int64_t layer = 0; layer < kLayers; ++layer) {
        LoadState(cache, layer, tokens.layers[layer].state);
        std::int64_t first = 0;
        for (const std::int64_t end : cuts) {
          std::vector<std::string> keys;
          std::vector<std::string> auxiliary;
          std::vector<SnapshotDirective> directives;
          for (const std::int64_t position : positions) {
            if (position < first || position > end || (position == first && first > 0)) continue;
            keys.push_back(key(position));
            auxiliary.push_back(AuxiliaryOf(layer, position));
            directives.push_back({.sequence = 0, .boundary = (position - first + 31) / 32, .key = "", .auxiliary = ""});
          }
          for (std::size_t i = 0; i < directives.size(); ++i) {
            directives[i].key = keys[i];
            directives[i].auxiliary = auxiliary[i];
          }
          const auto ran =
              Prefill(world, session, how, layer, tokens.Part(layer, first, end - first, kSource), directives);
          ASSERT_TRUE(ran.ok()) << ran.status();
          ASSERT_EQ(ran->result.snapshots.size(), directives.size());
          for (const cache::SnapshotOutcome& outcome : ran->result.snapshots) {
            EXPECT_EQ(outcome.result, layer + 1 < kLayers ? SnapshotResult::kPending : SnapshotResult::kStored);
          }
          first = end;
        }
        LoadAuxiliary(cache, layer, kSource, AuxiliaryOf(layer, 500));
      }
      const auto saved = Save(world, session, {{kSource, KeyOf("saved")}});
      ASSERT_TRUE(saved.ok()) << saved.status();
      ASSERT_EQ(saved->at(0).result, SnapshotResult::kStored);
      EXPECT_EQ(saved->at(0).position, 500);
      WaitUntilAllIn(world, session, tier());

      for (const std::int64_t position : positions) {
        SCOPED_TRACE(::testing::Message() << "position " << position);
        ExpectToGoOn(world, session, how, tokens, key(position), cuts, position);
      }
      ExpectToGoOn(world, session, how, tokens, KeyOf("saved"), cuts, 500);
    }
  }
}

TEST(SnapshotBatches, WithSequencesOf500And700And900TokensEachSnapshotIsThatOfASoloRun) {
  testing::ProblemSpec spec;
  spec.shape = {.heads = 2,
                .key_dim = 16,
                .value_dim = 12,
                .num_householder = 2,
                .chunk_size = 64,
                .input_dtype = kernels::DataType::kBFloat16};
  spec.lengths = {500, 700, 900};
  spec.state_indices = {1, 3, 0};
  const Problem batch = testing::RandomProblem(spec, 5);
  for (const How how : {How::kUnary, How::kStreamInPlace, How::kStreamInSegments}) {
    SCOPED_TRACE(static_cast<int>(how));
    World world(OptionsOf(how));
    const auto session = world.OpenSession(GeometryOf(batch));
    LoadState(*session->cache(), 0, batch.state);
    std::vector<std::string> keys;
    std::vector<SnapshotDirective> directives;
    for (std::int64_t n = 0; n < batch.sequences(); ++n) {
      for (std::int64_t boundary = 0; boundary <= batch.BoundaryCount(n); ++boundary) {
        directives.push_back({.sequence = n, .boundary = boundary, .key = "", .auxiliary = ""});
        keys.push_back(KeyOf(absl::StrCat(n, ".", boundary)));
      }
    }
    for (std::size_t i = 0; i < keys.size(); ++i) directives[i].key = keys[i];
    const auto ran = Prefill(world, session, how, 0, batch, directives);
    ASSERT_TRUE(ran.ok()) << ran.status();

    for (std::size_t i = 0; i < directives.size(); ++i) {
      SCOPED_TRACE(keys[i]);
      const auto& [n, boundary, key, auxiliary] = directives[i];
      const testing::Results solo = testing::RunProblem(*world.cpu, testing::OneSequence(batch, n));
      const bool final = boundary == batch.BoundaryCount(n);
      const auto kept = ReadSnapshot(world, *session, keys[i]);
      ASSERT_TRUE(kept.ok()) << kept.status();
      EXPECT_EQ(kept->position, std::min(boundary * 64, spec.lengths[n]));
      EXPECT_TRUE(kept->states[0] == Bytes(final ? solo.final_state : testing::Rows(solo.h, boundary, 1)));
    }
  }
}

/// Every boundary of a random problem, under several keys, by both kinds of call, against the kernel alone.
class RandomSnapshots : public ::testing::TestWithParam<Memory> {};
INSTANTIATE_TEST_SUITE_P(Memories, RandomSnapshots, ::testing::Values(Memory::kUnified, Memory::kSeparate));

TEST_P(RandomSnapshots, OfEveryBoundaryUnderSeveralKeysAreTheKernelsStates) {
  World world({.segment_bytes = 5'000}, GetParam());
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    Problem problem = testing::RandomSmallProblem(seed);
    const cache::Geometry geometry = GeometryOf(problem);
    problem.states_dtype = geometry.state_dtype;
    Problem reference = problem;
    reference.output_final_state = true;
    const testing::Results alone = testing::RunProblem(*world.cpu, reference);

    const auto session = world.OpenSession(geometry);
    const cache::Cache& cache = *session->cache();
    if (problem.state.present()) LoadState(cache, 0, problem.state);
    for (std::int64_t slot = 0; slot < geometry.slots; ++slot) session->cache()->slots().SetPosition(0, slot, slot + 9);
    std::vector<std::string> keys;
    std::vector<SnapshotDirective> directives;
    for (std::int64_t n = problem.sequences() - 1; n >= 0; --n) {  // in no order that the call would need
      for (std::int64_t boundary = 0; boundary <= problem.BoundaryCount(n); ++boundary) {
        for (std::uint64_t copy = 0; copy < 1 + seed % 4; ++copy) {
          directives.push_back({.sequence = n, .boundary = boundary, .key = "", .auxiliary = ""});
          keys.push_back(KeyOf(absl::StrCat(seed, ".", n, ".", boundary, ".", copy)));
        }
      }
    }
    for (std::size_t i = 0; i < keys.size(); ++i) directives[i].key = keys[i];
    const bool streamed = seed % 3 != 0;
    PrefillRequest request = RequestOf(problem, streamed ? TensorTransport::kStream : TensorTransport::kInline);
    request.snapshots = directives;
    if (seed % 2 == 0) request.states = StateSelectionMode::kNone;
    const auto ran =
        streamed ? RunStreamed(world, session, problem, request, seed) : RunUnary(world, session, problem, request);
    ASSERT_TRUE(ran.ok()) << ran.status();
    if (seed % 2 == 1) {
      EXPECT_TRUE(ran->outputs.h.bytes == alone.h.bytes);
    }
    EXPECT_TRUE(problem.output_final_state ? ran->outputs.final_state.bytes == alone.final_state.bytes : true);

    std::vector<std::int64_t> first_boundary = {0};
    for (std::int64_t n = 0; n < problem.sequences(); ++n) {
      first_boundary.push_back(first_boundary.back() + problem.BoundaryCount(n));
    }
    for (std::size_t i = 0; i < directives.size(); ++i) {
      SCOPED_TRACE(keys[i]);
      const auto& [n, boundary, key, auxiliary] = directives[i];
      ASSERT_EQ(ran->result.snapshots[i].result, SnapshotResult::kStored) << ran->result.snapshots[i].message;
      const auto kept = ReadSnapshot(world, *session, keys[i]);
      ASSERT_TRUE(kept.ok()) << kept.status();
      const bool final = boundary == problem.BoundaryCount(n);
      const HostTensor final_state = testing::Rows(alone.final_state, n, 1);
      EXPECT_TRUE(kept->states[0] ==
                  Bytes(final ? testing::Encode(geometry.state_dtype, final_state.shape, testing::Decode(final_state))
                              : testing::Rows(alone.h, first_boundary[n] + boundary, 1)));
      const std::int64_t slot = problem.state_indices.empty() ? -1 : problem.state_indices[n];
      const std::int64_t base = problem.initial == testing::InitialState::kSlot && slot >= 0 ? slot + 9 : 0;
      const std::int64_t tokens = (problem.cu_seqlens[n + 1] - problem.cu_seqlens[n]) / problem.shape.num_householder;
      EXPECT_EQ(kept->position, base + std::min(boundary * problem.shape.chunk_size, tokens));
    }
    if (problem.state.present()) {
      EXPECT_TRUE(StoreState(cache, 0).bytes == alone.state.bytes);
    }
    EXPECT_EQ(world.engine->staging().used(), 0);
    EXPECT_EQ(world.engine->device_staging().used(), 0);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace gdpcache::engine
