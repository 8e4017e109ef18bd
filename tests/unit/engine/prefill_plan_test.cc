#include "server/engine/prefill_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "server/cache/errors.h"
#include "server/engine/segment.h"

namespace gdpcache::engine {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr absl::string_view kKey = "0123456789abcdef";
constexpr absl::string_view kAuxiliary = "6bytes";

/// A request that owns what it points to: H = 3, K = 4, V = 5, bfloat16, ragged.
struct Request {
  cache::Geometry geometry = {.layers = 2,
                              .slots = 8,
                              .heads = 3,
                              .key_dim = 4,
                              .value_dim = 5,
                              .num_householder = 2,
                              .state_dtype = kernels::DataType::kFloat32,
                              .auxiliary_bytes = 6};
  std::vector<std::int64_t> k_shape = {100, 3, 4};
  std::vector<std::int64_t> w_shape = {100, 3, 4};
  std::vector<std::int64_t> u_shape = {100, 3, 5};
  std::vector<std::int64_t> g_shape = {100, 3};
  std::vector<std::int64_t> cu_seqlens = {0, 70, 70, 96};
  std::vector<std::int64_t> chunk_offsets;
  std::vector<std::int64_t> chunk_indices;
  std::vector<std::int64_t> state_indices = {4, -1, 0};
  std::vector<std::int64_t> initial_state_shape = {3, 3, 4, 5};
  std::vector<std::int64_t> auxiliary_shape = {3, 6};
  std::vector<std::int64_t> expected_positions;
  PrefillRequest request;

  Request() {
    request.transport = TensorTransport::kStream;
    request.k = {.present = true, .dtype = ElementType::kBFloat16};
    request.w = request.k;
    request.u = request.k;
    request.g = {.present = true, .dtype = ElementType::kFloat32};
    request.chunk_size = 16;
    request.states = StateSelectionMode::kAll;
    request.save_new_value = true;
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  absl::StatusOr<PrefillPlan> Plan() {
    request.k.shape = k_shape;
    request.w.shape = w_shape;
    request.u.shape = u_shape;
    request.g.shape = g_shape;
    request.cu_seqlens = cu_seqlens;
    request.chunk_offsets = chunk_offsets;
    request.chunk_indices = chunk_indices;
    request.state_indices = state_indices;
    request.initial_state.shape = initial_state_shape;
    request.auxiliary_state.shape = auxiliary_shape;
    request.expected_positions = expected_positions;
    return PlanPrefill(request, geometry);
  }
};

void SetRows(Request& request, std::int64_t rows) {
  for (auto* shape : {&request.k_shape, &request.w_shape, &request.u_shape, &request.g_shape}) (*shape)[0] = rows;
}

TEST(PrefillPlan, DerivesSequencesBoundariesAndSizes) {
  Request request;
  const auto plan = request.Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->rows, 100);
  EXPECT_EQ(plan->used_rows(), 96);
  EXPECT_EQ(plan->shape.num_householder, 2);
  EXPECT_THAT(plan->chunk_offsets, ::testing::ElementsAre(0, 3, 3, 4));
  EXPECT_EQ(plan->sequences[2].begin, 70);
  EXPECT_EQ(plan->sequences[2].length, 26);
  EXPECT_EQ(plan->sequences[2].h_begin, 3);
  EXPECT_EQ(plan->h_states, 4);
  EXPECT_EQ(plan->states_dtype, kernels::DataType::kBFloat16);
  EXPECT_EQ(plan->k_bytes, 100 * 3 * 4 * 2);
  EXPECT_EQ(plan->u_bytes, 100 * 3 * 5 * 2);
  EXPECT_EQ(plan->g_bytes, 100 * 3 * 4);
  EXPECT_EQ(plan->v_new_bytes, plan->u_bytes);
  EXPECT_EQ(plan->h_bytes, 4 * 3 * 4 * 5 * 2);
  EXPECT_EQ(plan->final_state_bytes, 0);
}

TEST(PrefillPlan, DefaultsAreChunksOf64AndTheCachesHouseholders) {
  Request request;
  request.request.chunk_size = 0;
  const auto plan = request.Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->shape.chunk_size, 64);
  EXPECT_THAT(plan->chunk_offsets, ::testing::ElementsAre(0, 1, 1, 2));
}

TEST(PrefillPlan, OverriddenHouseholderCounts) {
  Request request;
  request.request.num_householder = 1;
  request.cu_seqlens = {0, 33, 100};
  request.state_indices = {1, 2};
  const auto plan = request.Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->shape.num_householder, 1);
  EXPECT_THAT(plan->chunk_offsets, ::testing::ElementsAre(0, 3, 8));
}

TEST(PrefillPlan, DenseBatchesSplitEvenlyAndTakeEitherShape) {
  Request request;
  request.cu_seqlens.clear();
  request.request.batch = 5;
  request.state_indices = {0, 1, 2, 3, 4};
  request.k_shape = {5, 20, 3, 4};
  request.u_shape = {5, 20, 3, 5};
  const auto plan = request.Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->sequence_count(), 5);
  EXPECT_EQ(plan->sequences[3].begin, 60);
  EXPECT_EQ(plan->sequences[3].length, 20);
}

TEST(PrefillPlan, RaggedBatchesTakeALeadingOne) {
  Request request;
  request.k_shape = {1, 100, 3, 4};
  request.g_shape = {1, 100, 3};
  EXPECT_TRUE(request.Plan().ok());
}

TEST(PrefillPlan, SelectedStatesComeInTheirOrder) {
  Request request;
  request.request.states = StateSelectionMode::kSelected;
  request.request.selected = {{0, 0}, {0, 2}, {2, 0}};
  request.request.states_dtype = ElementType::kFloat32;
  const auto plan = request.Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->h_states, 3);
  EXPECT_EQ(plan->h_bytes, 3 * 3 * 4 * 5 * 4);
  EXPECT_EQ(plan->sequences[0].h_end, 2);
  EXPECT_EQ(plan->sequences[1].h_begin, 2);
  EXPECT_EQ(plan->sequences[2].h_end, 3);
}

TEST(PrefillPlan, SnapshotsLieBetweenTheSequencesStartAndItsEnd) {
  Request request;
  const std::string keys[] = {"0123456789abcdef0", "0123456789abcdef1", "0123456789abcdef2", "0123456789abcdef3"};
  request.request.snapshots = {
      {2, 1, keys[0], kAuxiliary}, {0, 0, keys[1], kAuxiliary}, {0, 3, keys[2], "other6"}, {1, 0, keys[3], kAuxiliary}};
  const auto plan = request.Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->snapshots.size(), 4U);
  EXPECT_EQ(plan->snapshots[0].tokens, 13);
  EXPECT_EQ(plan->snapshots[1].tokens, 0);
  EXPECT_EQ(plan->snapshots[2].tokens, 35);
  EXPECT_EQ(plan->snapshots[2].key, keys[2]);
  EXPECT_EQ(plan->snapshots[2].auxiliary, "other6");
  EXPECT_EQ(plan->snapshots[3].tokens, 0);
  request.request.snapshots = {{0, 2, keys[0], kAuxiliary}};
  EXPECT_EQ(request.Plan()->snapshots[0].tokens, 32);
}

TEST(PrefillPlan, RightChunkTablesPass) {
  Request request;
  request.chunk_offsets = {0, 3, 3, 4};
  request.chunk_indices = {0, 0, 0, 1, 0, 2, 2, 0};
  EXPECT_TRUE(request.Plan().ok());
}

TEST(PrefillPlan, NothingAtAllIsACall) {
  Request request;
  SetRows(request, 0);
  request.cu_seqlens = {0, 0, 0};
  request.state_indices = {1, 2};
  const auto plan = request.Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->h_states, 0);
}

struct Fault {
  std::string name;
  std::function<void(Request&)> make;
  std::string message;  // begins with the field
};

class PrefillPlanFault : public ::testing::TestWithParam<Fault> {};

TEST_P(PrefillPlanFault, IsRefusedNamingTheFieldAndBothValues) {
  Request request;
  GetParam().make(request);
  const auto plan = request.Plan();
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plan.status().message(), GetParam().message);
  const auto violation = cache::FieldViolationOf(plan.status());
  ASSERT_TRUE(violation.has_value());
  EXPECT_EQ(GetParam().message.rfind(violation->field, 0), 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Faults, PrefillPlanFault,
    ::testing::ValuesIn(std::vector<Fault>{
        {"LayerBelow", [](Request& r) { r.request.layer = -1; }, "layer is -1; the cache has 2 layers"},
        {"LayerAbove", [](Request& r) { r.request.layer = 2; }, "layer is 2; the cache has 2 layers"},
        {"ChunkSize", [](Request& r) { r.request.chunk_size = 48; }, "chunk_size is 48; it must be 16, 32, 64 or 128"},
        {"NegativeChunkSize", [](Request& r) { r.request.chunk_size = -64; },
         "chunk_size is -64; it must be 16, 32, 64 or 128"},
        {"NegativeHouseholder", [](Request& r) { r.request.num_householder = -2; },
         "num_householder is -2; it must be from 1 to 64"},
        {"HugeHouseholder", [](Request& r) { r.request.num_householder = kHuge; },
         "num_householder is 9223372036854775807; it must be from 1 to 64"},
        {"NoK", [](Request& r) { r.request.k.present = false; }, "k is missing"},
        {"NoW", [](Request& r) { r.request.w.present = false; }, "w is missing"},
        {"NoU", [](Request& r) { r.request.u.present = false; }, "u is missing"},
        {"KDtype", [](Request& r) { r.request.k.dtype = ElementType::kUint8; },
         "k.dtype is uint8; it must be float32, bfloat16 or float16"},
        {"KNoDtype", [](Request& r) { r.request.k.dtype = ElementType::kUnspecified; },
         "k.dtype is unspecified; it must be float32, bfloat16 or float16"},
        {"WDtype", [](Request& r) { r.request.w.dtype = ElementType::kFloat16; },
         "w.dtype is float16; it must be bfloat16"},
        {"UDtype", [](Request& r) { r.request.u.dtype = ElementType::kFloat32; },
         "u.dtype is float32; it must be bfloat16"},
        {"GDtype", [](Request& r) { r.request.g.dtype = ElementType::kBFloat16; },
         "g.dtype is bfloat16; it must be float32"},
        {"KRank", [](Request& r) { r.k_shape = {100, 12}; }, "k.shape is [100, 12]; it must have 3 or 4 dimensions"},
        {"KHugeRank", [](Request& r) { r.k_shape.assign(1000, 1); },
         "k.shape is [1, 1, 1, 1, 1, 1, 1, 1, ... 1000 dimensions]; it must have 3 or 4 dimensions"},
        {"KEmptyShape", [](Request& r) { r.k_shape.clear(); }, "k.shape is []; it must have 3 or 4 dimensions"},
        {"KNegative", [](Request& r) { r.k_shape[0] = -100; },
         "k.shape is [-100, 3, 4]; its dimensions must not be negative nor its size exceed 2^62 bytes"},
        {"KTwiceNegative", [](Request& r) { r.k_shape = {-1, -100, 3, 4}; },
         "k.shape is [-1, -100, 3, 4]; its dimensions must not be negative nor its size exceed 2^62 bytes"},
        {"KOverflow", [](Request& r) { r.k_shape = {kHuge, kHuge, 3, 4}; },
         "k.shape is [9223372036854775807, 9223372036854775807, 3, 4]; its dimensions must not be negative nor its "
         "size exceed 2^62 bytes"},
        {"KBytesOverflow", [](Request& r) { SetRows(r, std::int64_t{1} << 60); },
         "k.shape is [1152921504606846976, 3, 4]; its size must not exceed 2^62 bytes"},
        {"KHeads", [](Request& r) { r.k_shape[1] = 4; },
         "k.shape is [100, 4, 4]; it must be [100, 3, 4] or [1, 100, 3, 4]"},
        {"KKeyDim", [](Request& r) { r.k_shape[2] = -4; },
         "k.shape is [100, 3, -4]; it must be [100, 3, 4] or [1, 100, 3, 4]"},
        {"WRows", [](Request& r) { r.w_shape[0] = 99; },
         "w.shape is [99, 3, 4]; it must be [100, 3, 4] or [1, 100, 3, 4]"},
        {"UValueDim", [](Request& r) { r.u_shape[2] = 4; },
         "u.shape is [100, 3, 4]; it must be [100, 3, 5] or [1, 100, 3, 5]"},
        {"GShape", [](Request& r) { r.g_shape = {3, 100}; }, "g.shape is [3, 100]; it must be [100, 3] or [1, 100, 3]"},
        {"NegativeBatch",
         [](Request& r) {
           r.cu_seqlens.clear();
           r.request.batch = -1;
         },
         "batch is -1; it must be from 0 to 65536"},
        {"HugeBatch",
         [](Request& r) {
           r.cu_seqlens.clear();
           r.request.batch = kHuge;
         },
         "batch is 9223372036854775807; it must be from 0 to 65536"},
        {"BatchAndRagged", [](Request& r) { r.request.batch = 1; }, "batch is 1; it must be left out with cu_seqlens"},
        {"BatchNoDivisor",
         [](Request& r) {
           r.cu_seqlens.clear();
           r.request.batch = 3;
         },
         "batch is 3; it must divide the 100 rows of k"},
        {"DenseLeadingDimension",
         [](Request& r) {
           r.cu_seqlens.clear();
           r.request.batch = 2;
           r.state_indices = {1, 2};
           r.k_shape = {5, 20, 3, 4};
         },
         "k.shape is [5, 20, 3, 4]; it must be [100, 3, 4] or [2, 50, 3, 4]"},
        {"DenseHouseholder",
         [](Request& r) {
           r.cu_seqlens.clear();
           r.request.batch = 4;
         },
         "k.shape gives sequences of 25 expanded tokens; num_householder is 2"},
        {"OneBound", [](Request& r) { r.cu_seqlens = {0}; }, "cu_seqlens has 1 entries; it must have from 2 to 65537"},
        {"ManyBounds", [](Request& r) { r.cu_seqlens.assign(65'538, 0); },
         "cu_seqlens has 65538 entries; it must have from 2 to 65537"},
        {"FirstBound", [](Request& r) { r.cu_seqlens[0] = 2; }, "cu_seqlens[0] is 2; it must be 0"},
        {"FallingBounds", [](Request& r) { r.cu_seqlens[2] = 68; },
         "cu_seqlens[2] is 68; it must not be below the 70 before it"},
        {"NegativeBound", [](Request& r) { r.cu_seqlens[1] = -2; },
         "cu_seqlens[1] is -2; it must not be below the 0 before it"},
        {"OddBound", [](Request& r) { r.cu_seqlens[3] = 97; },
         "cu_seqlens[3] is 97; it must be a multiple of num_householder 2"},
        {"LastBound", [](Request& r) { r.cu_seqlens[3] = 102; }, "cu_seqlens[3] is 102; k has 100 rows"},
        {"HugeBound", [](Request& r) { r.cu_seqlens[3] = kHuge - 1; },
         "cu_seqlens[3] is 9223372036854775806; k has 100 rows"},
        {"FewSlots", [](Request& r) { r.state_indices.pop_back(); },
         "state_indices has 2 entries; it must have 3 for 3 sequences"},
        {"NoSlots", [](Request& r) { r.state_indices.clear(); },
         "initial_state_source is SLOT; without state_indices it must be ZERO or TENSOR"},
        {"NoInitialState", [](Request& r) { r.request.initial_state_source = InitialStateSource::kTensor; },
         "initial_state is missing; initial_state_source is TENSOR"},
        {"UnaskedInitialState", [](Request& r) { r.request.initial_state.present = true; },
         "initial_state is given; initial_state_source is not TENSOR"},
        {"InitialStateDtype",
         [](Request& r) {
           r.request.initial_state_source = InitialStateSource::kTensor;
           r.request.initial_state = {.present = true, .dtype = ElementType::kBFloat16};
         },
         "initial_state.dtype is bfloat16; it must be float32"},
        {"InitialStateShape",
         [](Request& r) {
           r.request.initial_state_source = InitialStateSource::kTensor;
           r.request.initial_state = {.present = true, .dtype = ElementType::kFloat32};
           r.initial_state_shape = {3, 3, 5, 4};
         },
         "initial_state.shape is [3, 3, 5, 4]; it must be [3, 3, 4, 5]"},
        {"PositionCount", [](Request& r) { r.expected_positions = {1}; },
         "expected_positions has 1 entries; it must have 3 for 3 sequences"},
        {"PositionBelow", [](Request& r) { r.expected_positions = {0, -1, -2}; },
         "expected_positions[2] is -2; it must be at least -1"},
        {"AuxiliaryDtype",
         [](Request& r) {
           r.request.auxiliary_state = {.present = true, .dtype = ElementType::kFloat32};
         },
         "auxiliary_state.dtype is float32; it must be uint8"},
        {"AuxiliaryShape",
         [](Request& r) {
           r.request.auxiliary_state = {.present = true, .dtype = ElementType::kUint8};
           r.auxiliary_shape = {6, 3};
         },
         "auxiliary_state.shape is [6, 3]; it must be [3, 6]"},
        {"AuxiliaryNotKept",
         [](Request& r) {
           r.geometry.auxiliary_bytes = 0;
           r.request.auxiliary_state = {.present = true, .dtype = ElementType::kUint8};
         },
         "auxiliary_state is given; the cache keeps 0 auxiliary bytes"},
        {"ChunkOffsetCount", [](Request& r) { r.chunk_offsets = {0, 3}; },
         "chunk_offsets has 2 entries; it must have 4 for 3 sequences"},
        {"ChunkOffset", [](Request& r) { r.chunk_offsets = {0, 3, 4, 4}; }, "chunk_offsets[2] is 4; the lengths give 3"},
        {"ChunkIndexCount", [](Request& r) { r.chunk_indices = {0, 0, 0}; },
         "chunk_indices has 3 entries; the lengths give 4 pairs"},
        {"ChunkIndex", [](Request& r) { r.chunk_indices = {0, 0, 0, 1, 0, 2, 1, 0}; },
         "chunk_indices[6] begins the pair (1, 0); the lengths give (2, 0)"},
        {"StatesDtype", [](Request& r) { r.request.states_dtype = ElementType::kUint8; },
         "states_dtype is uint8; it must be float32, bfloat16 or float16"},
        {"UnaskedSelection",
         [](Request& r) {
           r.request.selected = {{0, 0}};
         },
         "states.selected has 1 entries; states.mode is not SELECTED"},
        {"SelectedSequence",
         [](Request& r) {
           r.request.states = StateSelectionMode::kSelected;
           r.request.selected = {{0, 0}, {3, 0}};
         },
         "states.selected[1] names sequence 3; the call has 3"},
        {"SelectedBoundary",
         [](Request& r) {
           r.request.states = StateSelectionMode::kSelected;
           r.request.selected = {{0, 3}};
         },
         "states.selected[0] names boundary 3; sequence 0 has 3"},
        {"SelectedOfEmpty",
         [](Request& r) {
           r.request.states = StateSelectionMode::kSelected;
           r.request.selected = {{1, 0}};
         },
         "states.selected[0] names boundary 0; sequence 1 has 0"},
        {"SelectedTwice",
         [](Request& r) {
           r.request.states = StateSelectionMode::kSelected;
           r.request.selected = {{0, 1}, {0, 1}};
         },
         "states.selected[1] is (0, 1); it must come after (0, 1)"},
        {"SelectedNegative",
         [](Request& r) {
           r.request.states = StateSelectionMode::kSelected;
           r.request.selected = {{-1, 0}};
         },
         "states.selected[0] names sequence -1; the call has 3"},
        {"DataInStream",
         [](Request& r) {
           r.request.u.data = "x";
           r.request.u.data_bytes = 1;
         },
         "u.inline holds 1 bytes; in a stream they follow in frames"},
        {"ShortInlineData",
         [](Request& r) {
           r.request.transport = TensorTransport::kInline;
           r.request.k.data_bytes = 2399;
         },
         "k.inline holds 2399 bytes; the shape [100, 3, 4] needs 2400"},
        {"HugeResults",
         [](Request& r) {
           r.geometry = {.layers = 1, .slots = 4, .heads = 1, .key_dim = 256, .value_dim = 1024};
           r.geometry.num_householder = 1;
           const std::int64_t rows = std::int64_t{1} << 47;
           r.k_shape = r.w_shape = {rows, 1, 256};
           r.u_shape = {rows, 1, 1024};
           r.g_shape = {rows, 1};
           r.cu_seqlens = {0, rows};
           r.state_indices = {0};
           r.request.states_dtype = ElementType::kFloat32;
         },
         "states selects 8796093022208 states; h would exceed 2^62 bytes"},
        {"SnapshotSequence", [](Request& r) { r.request.snapshots = {{3, 0, kKey, kAuxiliary}}; },
         "snapshots[0].sequence is 3; the call has 3 sequences"},
        {"SnapshotSequenceBelow", [](Request& r) { r.request.snapshots = {{-1, 0, kKey, kAuxiliary}}; },
         "snapshots[0].sequence is -1; the call has 3 sequences"},
        {"SnapshotBoundary", [](Request& r) { r.request.snapshots = {{0, 4, kKey, kAuxiliary}}; },
         "snapshots[0].boundary is 4; sequence 0 of 35 tokens has boundaries 0 to 3"},
        {"SnapshotBoundaryBelow", [](Request& r) { r.request.snapshots = {{0, -1, kKey, kAuxiliary}}; },
         "snapshots[0].boundary is -1; sequence 0 of 35 tokens has boundaries 0 to 3"},
        {"SnapshotHugeBoundary", [](Request& r) { r.request.snapshots = {{2, kHuge, kKey, kAuxiliary}}; },
         "snapshots[0].boundary is 9223372036854775807; sequence 2 of 13 tokens has boundaries 0 to 1"},
        {"SnapshotBoundaryOfNoTokens", [](Request& r) { r.request.snapshots = {{1, 1, kKey, kAuxiliary}}; },
         "snapshots[0].boundary is 1; sequence 1 of 0 tokens has boundaries 0 to 0"},
        {"SnapshotShortKey",
         [](Request& r) { r.request.snapshots = {{0, 1, kKey, kAuxiliary}, {0, 1, "short", kAuxiliary}}; },
         "snapshots[1].key has 5 bytes; a key has 16 to 64"},
        {"SnapshotAuxiliary", [](Request& r) { r.request.snapshots = {{0, 1, kKey, "five5"}}; },
         "snapshots[0].auxiliary has 5 bytes; the cache keeps 6"},
        {"SnapshotCount", [](Request& r) { r.request.snapshots.resize(65'537); },
         "snapshots has 65537 entries; it may have 65536"},
    }),
    [](const auto& fault) { return fault.param.name; });

/// Every row, state and sequence belongs to exactly one segment, in order, and cuts are where they may be.
void ExpectSegmentsCover(const PrefillPlan& plan, std::int64_t target) {
  SegmentCutter cutter(plan, target);
  Segment before;
  std::int64_t segments = 0;
  while (!cutter.AtEnd()) {
    const Segment segment = cutter.Next();
    ASSERT_EQ(segment.row_begin, before.row_end);
    ASSERT_EQ(segment.h_begin, before.h_end);
    ASSERT_EQ(segment.final_begin, before.final_end);
    ASSERT_GE(segment.final_end, segment.final_begin);
    if (segment.sequence_begin < segment.sequence_end) {
      const SequencePlan& first = plan.sequences[segment.sequence_begin];
      ASSERT_EQ((std::max(segment.row_begin, first.begin) - first.begin) % plan.boundary_rows(), 0);
      ASSERT_TRUE(segment.final_end == segment.sequence_end || segment.final_end == segment.sequence_end - 1);
    } else {
      ASSERT_GE(segment.row_begin, plan.used_rows());
    }
    before = segment;
    ++segments;
  }
  EXPECT_GE(segments, 1);
  EXPECT_EQ(before.row_end, plan.rows);
  EXPECT_EQ(before.h_end, plan.h_states);
  EXPECT_EQ(before.final_end, plan.sequence_count());
}

TEST(Segments, CoverEveryCallWhateverTheirSize) {
  for (const std::int64_t target : {1, 100, 3'000, 10'000, 1'000'000}) {
    for (const bool finals : {false, true}) {
      SCOPED_TRACE(target);
      Request request;
      SetRows(request, 2000);
      request.request.output_final_state = finals;
      request.cu_seqlens = {0, 0, 0, 500, 502, 502, 530, 1600, 1632, 1632, 1632};
      request.state_indices.assign(10, -1);
      auto plan = request.Plan();
      ASSERT_TRUE(plan.ok()) << plan.status();
      ExpectSegmentsCover(*plan, target);
      request.request.states = StateSelectionMode::kSelected;
      request.request.selected = {{2, 1}, {2, 7}, {6, 0}, {6, 1}, {6, 33}};
      plan = request.Plan();
      ASSERT_TRUE(plan.ok()) << plan.status();
      ExpectSegmentsCover(*plan, target);
    }
  }
}

TEST(Segments, StayWithinTheirMaximum) {
  Request request;
  SetRows(request, 20'000);
  request.cu_seqlens = {0, 20'000};
  request.state_indices = {1};
  const auto plan = request.Plan();
  ASSERT_TRUE(plan.ok());
  SegmentCutter cutter(*plan, 50'000);
  const std::int64_t row = 2 * KeyRowBytes(*plan) + 2 * ValueRowBytes(*plan) + 12;
  while (!cutter.AtEnd()) {
    const Segment segment = cutter.Next();
    const std::int64_t states = (segment.h_end - segment.h_begin) * StateBytes(*plan, plan->states_dtype);
    EXPECT_LE(segment.rows() * row + states, cutter.MaxSegmentBytes());
    if (!cutter.AtEnd()) {
      EXPECT_GT(segment.rows() * row + states, 45'000);
    }
  }
}

}  // namespace
}  // namespace gdpcache::engine
