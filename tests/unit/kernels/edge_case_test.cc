// The cases at the edge of the contract, and the arithmetic faults that systems like this one have had.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/reference/exact_recurrence.h"
#include "tests/reference/numbers.h"
#include "tests/reference/problem_edit.h"
#include "tests/reference/random_problem.h"
#include "tests/unit/kernels/backend_test.h"
#include "tests/unit/kernels/problem_runner.h"

namespace gdpcache::testing {
namespace {

using kernels::DataType;

class EdgeCaseTest : public BackendTest {
 protected:
  /// How far a backend may be from float64: what rounding S and x to the input dtype costs, and storing the result.
  static double Tolerance(DataType input, DataType stored) {
    const auto roundoff = [](DataType dtype) {
      return dtype == DataType::kFloat32 ? 5e-6 : dtype == DataType::kBFloat16 ? 0x1p-8 : 0x1p-11;
    };
    return roundoff(input) + roundoff(stored);
  }

  void ExpectAccurate(const Problem& problem, const Results& results) const {
    const ExactOutputs exact = ExactRecurrence(problem);
    const DataType input = problem.shape.input_dtype;
    const DataType inside = GetParam().keeps_float32 ? DataType::kFloat32 : input;
    EXPECT_LE(RelativeError(Decode(results.h), exact.h), Tolerance(inside, problem.states_dtype)) << "h";
    EXPECT_LE(RelativeError(Decode(results.v_new), exact.v_new), Tolerance(inside, input)) << "v_new";
    EXPECT_LE(RelativeError(Decode(results.state), exact.state), Tolerance(inside, problem.state.dtype)) << "state";
    EXPECT_LE(RelativeError(Decode(results.final_state), exact.final_state), Tolerance(inside, DataType::kFloat32))
        << "final_state";
  }
};
GDPCACHE_INSTANTIATE_BACKEND_TESTS(EdgeCaseTest);

ProblemSpec Spec(std::vector<std::int64_t> lengths, std::int64_t key_dim = 64, std::int64_t value_dim = 48) {
  ProblemSpec spec;
  spec.shape = {.heads = 2,
                .key_dim = key_dim,
                .value_dim = value_dim,
                .num_householder = 1,
                .chunk_size = 64,
                .input_dtype = DataType::kBFloat16};
  spec.lengths = std::move(lengths);
  return spec;
}

bool AllFinite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

TEST_P(EdgeCaseTest, RandomProblemsMatchFloat64) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = RandomSmallProblem(seed);
    ExpectAccurate(problem, RunProblem(backend(), problem));
  }
}

TEST_P(EdgeCaseTest, LengthsAroundTheChunkMatchFloat64) {
  for (const std::int64_t length : {1, 2, 3, 4, 5, 8, 63, 64, 65, 127, 128, 129}) {
    SCOPED_TRACE(length);
    const Problem problem = RandomProblem(Spec({length}), static_cast<std::uint64_t>(length));
    ExpectAccurate(problem, RunProblem(backend(), problem));
  }
}

TEST_P(EdgeCaseTest, EveryKeyAndValueSizeMatchesFloat64) {
  for (const std::int64_t key_dim : {1, 8, 32, 96, 192, 256}) {
    for (const std::int64_t value_dim : {1, 40, 64, 96, 130}) {
      SCOPED_TRACE(::testing::Message() << "K " << key_dim << " V " << value_dim);
      const Problem problem = RandomProblem(Spec({66, 1, 2}, key_dim, value_dim), 3);
      ExpectAccurate(problem, RunProblem(backend(), problem));
    }
  }
}

TEST_P(EdgeCaseTest, WidestValuesMatchFloat64) {
  const Problem problem = RandomProblem(Spec({17, 1}, 16, kernels::kMaxValueDim), 4);
  ExpectAccurate(problem, RunProblem(backend(), problem));
}

TEST_P(EdgeCaseTest, EveryChunkSizeMatchesFloat64) {
  for (const std::int64_t chunk_size : {16, 32, 64, 128}) {
    SCOPED_TRACE(chunk_size);
    ProblemSpec spec = Spec({2 * chunk_size + 5, chunk_size});
    spec.shape.chunk_size = chunk_size;
    const Problem problem = RandomProblem(spec, 5);
    ExpectAccurate(problem, RunProblem(backend(), problem));
  }
}

TEST_P(EdgeCaseTest, ManySequencesAndHeadsMatchFloat64) {
  ProblemSpec spec = Spec(std::vector<std::int64_t>(35000, 1), 2, 3);
  spec.lengths[17] = 40;
  spec.spare_slots = 0;
  const Problem problem = RandomProblem(spec, 6);
  ASSERT_GT(problem.sequences() * problem.shape.heads, 65535);
  ExpectAccurate(problem, RunProblem(backend(), problem));
}

TEST_P(EdgeCaseTest, NumHouseholderBeyondTheChunkMatchesFloat64) {
  ProblemSpec spec = Spec({3, 1});
  spec.shape.num_householder = 100;  // one token spans several chunks; there is one boundary
  const Problem problem = RandomProblem(spec, 7);
  ASSERT_EQ(problem.BoundaryCount(0), 1);
  ExpectAccurate(problem, RunProblem(backend(), problem));
}

TEST_P(EdgeCaseTest, EmptyBatchDoesNothing) {
  const kernels::RecurrenceShape shape{.heads = 1, .key_dim = 8, .value_dim = 8};
  EXPECT_TRUE(backend().RunRecurrence(shape, {}, stream()).ok());
}

TEST_P(EdgeCaseTest, EmptySequenceLeavesItsSlotUntouchedBitForBit) {
  for (const auto dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    ProblemSpec spec = Spec({0, 5, 0});
    spec.state_dtype = dtype;
    Problem problem = RandomProblem(spec, 8);
    const std::int64_t slot = problem.state_indices[0];
    const std::int64_t bytes = problem.state_elements() * ByteSize(dtype);
    // Signalling NaNs and negative zeros survive a copy, but no arithmetic.
    for (std::int64_t i = 0; i < bytes; ++i) {
      problem.state.bytes[static_cast<std::size_t>(slot * bytes + i)] = std::byte(i % 2 == 0 ? 0x01 : 0x7F);
    }
    problem.output_final_state = false;
    const Results results = RunProblem(backend(), problem);
    EXPECT_TRUE(Rows(results.state, slot, 1).bytes == Rows(problem.state, slot, 1).bytes);
    EXPECT_EQ(results.h.shape[0], 1);
  }
}

TEST_P(EdgeCaseTest, EmptySequenceFromZeroZeroesItsSlot) {
  ProblemSpec spec = Spec({0, 5});
  spec.initial = InitialState::kZero;
  const Problem problem = RandomProblem(spec, 9);
  const Results results = RunProblem(backend(), problem);
  const std::vector<std::byte> slot = Rows(results.state, problem.state_indices[0], 1).bytes;
  EXPECT_TRUE(std::all_of(slot.begin(), slot.end(), [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_TRUE(Rows(results.final_state, 0, 1).bytes == slot);
}

TEST_P(EdgeCaseTest, EmptySequenceFromATensorTakesTheTensor) {
  ProblemSpec spec = Spec({0, 5});
  spec.initial = InitialState::kTensor;
  const Problem problem = RandomProblem(spec, 10);
  const Results results = RunProblem(backend(), problem);
  EXPECT_TRUE(Rows(results.state, problem.state_indices[0], 1).bytes == Rows(problem.initial_state, 0, 1).bytes);
  EXPECT_TRUE(Rows(results.final_state, 0, 1).bytes == Rows(problem.initial_state, 0, 1).bytes);
}

TEST_P(EdgeCaseTest, SkippedSlotStartsFromZeroAndStoresNothing) {
  ProblemSpec spec = Spec({70, 70});
  spec.state_indices = {-1, -1};
  const Problem problem = RandomProblem(spec, 11);
  const Results results = RunProblem(backend(), problem);
  EXPECT_TRUE(results.state.bytes == problem.state.bytes);
  ExpectAccurate(problem, results);  // h, v_new and final_state are there all the same
}

TEST_P(EdgeCaseTest, OneTokenFirstPrefillOfAZeroSlotEqualsAStartFromZero) {
  Problem problem = RandomProblem(Spec({1, 1}), 12);
  problem.state = ZeroTensor(DataType::kFloat32, problem.state.shape);
  const Results from_slot = RunProblem(backend(), problem);
  problem.initial = InitialState::kZero;
  const Results from_zero = RunProblem(backend(), problem);
  EXPECT_TRUE(from_slot.state.bytes == from_zero.state.bytes);
  EXPECT_TRUE(from_slot.v_new.bytes == from_zero.v_new.bytes);
}

TEST_P(EdgeCaseTest, NonFiniteInputsStayInTheirSequenceAndHead) {
  const Problem clean = RandomProblem(Spec({70, 66, 1}), 13);
  const Results expected = RunProblem(backend(), clean);
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double poison : {nan, infinity}) {
    for (HostTensor Problem::*tensor : {&Problem::k, &Problem::w, &Problem::u, &Problem::g}) {
      // Poison one row of head 1 of sequence 1.
      Problem problem = clean;
      HostTensor& target = problem.*tensor;
      const std::int64_t width = target.elements() / (target.shape[0] * target.shape[1]);
      const std::int64_t row = problem.cu_seqlens[1] + 20;
      for (std::int64_t i = 0; i < width; ++i) {
        Encode(target.dtype, poison, target.bytes.data() + ((row * 2 + 1) * width + i) * ByteSize(target.dtype));
      }
      const Results results = RunProblem(backend(), problem);
      std::int64_t differing_rows = 0;
      for (std::int64_t t = 0; t < problem.tokens(); ++t) {
        const HostTensor now = Rows(results.v_new, t, 1);
        const HostTensor before = Rows(expected.v_new, t, 1);
        const auto half = static_cast<std::ptrdiff_t>(now.bytes.size() / 2);
        const bool own = t >= problem.cu_seqlens[1] && t < problem.cu_seqlens[2];
        EXPECT_TRUE(std::equal(now.bytes.begin(), now.bytes.begin() + half, before.bytes.begin()))
            << "head 0, row " << t;
        EXPECT_TRUE(own || now.bytes == before.bytes) << "row " << t;
        differing_rows += now.bytes == before.bytes ? 0 : 1;
      }
      EXPECT_GT(differing_rows, 0);
      for (std::int64_t slot = 0; slot < problem.state.shape[0]; ++slot) {
        const std::vector<double> state = Decode(Rows(results.state, slot, 1));
        if (slot != problem.state_indices[1]) {
          EXPECT_TRUE(Rows(results.state, slot, 1).bytes == Rows(expected.state, slot, 1).bytes);
        } else {
          // An infinite g makes the row's factor 0, which is finite.
          EXPECT_TRUE(!AllFinite(state) || (tensor == &Problem::g && std::isinf(poison)));
          EXPECT_TRUE(AllFinite({state.begin(), state.begin() + static_cast<std::ptrdiff_t>(state.size() / 2)}));
        }
      }
    }
  }
}

TEST_P(EdgeCaseTest, NonFiniteStateStaysInItsSequenceAndHead) {
  const Problem clean = RandomProblem(Spec({3, 70}), 14);
  const Results expected = RunProblem(backend(), clean);
  Problem problem = clean;
  const std::int64_t slot = problem.state_indices[0];
  Encode(DataType::kFloat32, std::numeric_limits<double>::quiet_NaN(),
         problem.state.bytes.data() + slot * problem.state_elements() * 4);
  const Results results = RunProblem(backend(), problem);
  EXPECT_TRUE(Rows(results.v_new, 3, 70).bytes == Rows(expected.v_new, 3, 70).bytes);
  for (std::int64_t other = 0; other < problem.state.shape[0]; ++other) {
    if (other == slot) continue;
    EXPECT_TRUE(Rows(results.state, other, 1).bytes == Rows(expected.state, other, 1).bytes);
  }
  EXPECT_FALSE(AllFinite(Decode(Rows(results.state, slot, 1))));
}

TEST_P(EdgeCaseTest, StrongDecayForgetsWithoutError) {
  Problem problem = RandomProblem(Spec({128}), 15);
  std::vector<double> g(static_cast<std::size_t>(problem.g.elements()));
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = -40.0 * static_cast<double>(i / 2 % 64 + 1);
  problem.g = Encode(DataType::kFloat32, problem.g.shape, g);
  const Results results = RunProblem(backend(), problem);
  EXPECT_TRUE(AllFinite(Decode(results.state)));
  ExpectAccurate(problem, results);
}

TEST_P(EdgeCaseTest, DecaysThatOverflowOrUnderflowMatchFloat64) {
  // Hostile, but legal: g need not be negative. 2^100 and 2^-140, a subnormal, are exact in float32.
  for (const double decay : {100.0, -140.0}) {
    ProblemSpec spec = Spec({1});
    spec.shape.input_dtype = DataType::kFloat32;
    Problem problem = RandomProblem(spec, 16);
    problem.g = Encode(DataType::kFloat32, problem.g.shape, {decay, decay});
    problem.k = ZeroTensor(DataType::kFloat32, problem.k.shape);
    const Results results = RunProblem(backend(), problem);
    const std::int64_t slot = problem.state_indices[0];
    const std::vector<double> before = Decode(Rows(problem.state, slot, 1));
    const std::vector<double> after = Decode(Rows(results.state, slot, 1));
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(after[i], static_cast<float>(std::ldexp(before[i], static_cast<int>(decay))));
      if (HasFailure()) break;
    }
  }
}

/// A pool of more than 2^32 float32 elements, of which only the ends are ever touched.
class LargePoolTest : public EdgeCaseTest {
 protected:
  void SetUp() override {
    EdgeCaseTest::SetUp();
    if (IsSkipped()) return;
    slots_ = (std::int64_t{1} << 32) / problem_.state_elements() + 3;
    const std::int64_t pool_bytes = slots_ * slot_bytes();
    if (pool_bytes > backend().device_info().memory_bytes) GTEST_SKIP() << "the backend has less than " << pool_bytes;
    auto pool = backend().Allocate(static_cast<std::size_t>(pool_bytes), kernels::MemoryKind::kDevice);
    if (absl::IsResourceExhausted(pool.status())) GTEST_SKIP() << pool.status();
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    expected_ = Rows(RunProblem(backend(), problem_).state, problem_.state_indices[0], 1).bytes;
    for (const HostTensor* tensor : {&problem_.k, &problem_.w, &problem_.u, &problem_.g}) {
      inputs_.push_back(std::make_unique<GuardedMemory>(backend(), stream(), tensor->bytes.size(), 0));
      inputs_.back()->Upload(tensor->bytes);
    }
  }

  std::int64_t slot_bytes() const { return problem_.state_elements() * 4; }
  std::byte* slot(std::int64_t index) const { return pool_.bytes() + index * slot_bytes(); }

  void Write(std::byte* to, const std::vector<std::byte>& bytes) {
    ASSERT_TRUE(backend().CopyBytes({{to, bytes.data(), bytes.size()}}, stream()).ok());
    ASSERT_TRUE(backend().Synchronize(stream()).ok());
  }

  std::vector<std::byte> Read(const std::byte* from, std::int64_t size) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(size));
    EXPECT_TRUE(backend().CopyBytes({{bytes.data(), from, bytes.size()}}, stream()).ok());
    EXPECT_TRUE(backend().Synchronize(stream()).ok());
    return bytes;
  }

  void RunInPlace(const kernels::StateView& view) {
    kernels::Sequence sequence;
    sequence.length = problem_.tokens();
    sequence.k = inputs_[0]->data();
    sequence.w = inputs_[1]->data();
    sequence.u = inputs_[2]->data();
    sequence.g = reinterpret_cast<const float*>(inputs_[3]->data());
    sequence.initial_state = view;
    sequence.slot = view;
    ASSERT_TRUE(backend().RunRecurrence(problem_.shape, {sequence}, stream()).ok());
    ASSERT_TRUE(backend().Synchronize(stream()).ok());
  }

  const Problem problem_ = RandomProblem(Spec({2}, 128, 128), 17);
  const std::vector<std::byte> before_ = Rows(problem_.state, problem_.state_indices[0], 1).bytes;
  std::vector<std::byte> expected_;
  std::int64_t slots_ = 0;
  kernels::Buffer pool_;
  std::vector<std::unique_ptr<GuardedMemory>> inputs_;
};
GDPCACHE_INSTANTIATE_BACKEND_TESTS(LargePoolTest);

TEST_P(LargePoolTest, LastSlotReadsBackRightAndSlotZeroIsUntouched) {
  const std::vector<std::byte> pattern(static_cast<std::size_t>(slot_bytes()), std::byte{0x3C});
  // 32-bit offsets, of elements or of bytes, would reach one of the first slots.
  for (const std::int64_t other : {0, 1, 2}) Write(slot(other), pattern);
  Write(slot(slots_ - 1), before_);
  RunInPlace({slot(slots_ - 1), DataType::kFloat32, problem_.state_elements() / 2});
  EXPECT_TRUE(Read(slot(slots_ - 1), slot_bytes()) == expected_);
  for (const std::int64_t other : {0, 1, 2}) EXPECT_TRUE(Read(slot(other), slot_bytes()) == pattern) << other;
}

TEST_P(LargePoolTest, HeadsMoreThanTwoToTheThirtyTwoElementsApartReadBackRight) {
  const std::int64_t head_bytes = slot_bytes() / 2;
  const auto middle = before_.begin() + head_bytes;
  Write(slot(0), {before_.begin(), middle});
  Write(slot(slots_ - 1), {middle, before_.end()});
  RunInPlace({slot(0), DataType::kFloat32, (slots_ - 1) * problem_.state_elements()});
  std::vector<std::byte> after = Read(slot(0), head_bytes);
  const std::vector<std::byte> last = Read(slot(slots_ - 1), head_bytes);
  after.insert(after.end(), last.begin(), last.end());
  EXPECT_TRUE(after == expected_);
}

TEST_P(LargePoolTest, StatesCopyFromOneEndToTheOther) {
  Write(slot(0), before_);
  const std::int64_t head_elements = problem_.state_elements() / 2;
  ASSERT_TRUE(backend()
                  .CopyStates(problem_.shape,
                              {{{slot(slots_ - 1), DataType::kFloat32, head_elements},
                                {slot(0), DataType::kFloat32, head_elements}}},
                              stream())
                  .ok());
  ASSERT_TRUE(backend().Synchronize(stream()).ok());
  EXPECT_TRUE(Read(slot(slots_ - 1), slot_bytes()) == before_);
}

}  // namespace
}  // namespace gdpcache::testing
