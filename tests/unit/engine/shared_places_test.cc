#include "server/engine/shared_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/cache/memory/region.h"
#include "tests/reference/random_problem.h"
#include "tests/support/eventually.h"
#include "tests/unit/engine/engine_world.h"

/// Prefills whose tensors lie in regions, in host memory and in a device's.
namespace gdpcache::engine {
namespace {

using ::testing::HasSubstr;
using testing::HostTensor;
using testing::Problem;

/// With rows behind the last sequence, which nobody computes.
Problem ProblemWithUnusedRows(testing::InitialState initial) {
  testing::ProblemSpec spec;
  spec.shape = {.heads = 3,
                .key_dim = 16,
                .value_dim = 8,
                .num_householder = 1,
                .chunk_size = 16,
                .input_dtype = kernels::DataType::kBFloat16};
  spec.lengths = {100, 1, 40, 9};
  spec.state_indices = {2, -1, 0, 1};
  spec.initial = initial;
  Problem problem = testing::RandomProblem(spec, 11);
  problem.cu_seqlens.pop_back();
  problem.state_indices.pop_back();
  if (problem.initial_state.present()) {
    problem.initial_state.shape[0] = 3;
    problem.initial_state.bytes.resize(problem.initial_state.bytes.size() / 4 * 3);
  }
  return problem;
}

/// A region of either kind, filled from and read into host memory.
class Block {
 public:
  Block(kernels::Backend& backend, cache::RegionKind kind, std::size_t size)
      : backend_(backend),
        stream_(*backend.CreateStream()),
        buffer_(*backend.Allocate(
            size, kind == cache::RegionKind::kCuda ? kernels::MemoryKind::kDevice : kernels::MemoryKind::kHost)),
        region_(std::make_shared<cache::Region>(kind, buffer_.data(), size, [] {})) {
    Write(0, std::string(size, '\xff'));  // NaN
  }

  const std::shared_ptr<cache::Region>& region() const { return region_; }

  template <typename Bytes>
  void Write(std::uint64_t offset, const Bytes& bytes) {
    Copy({region_->At(offset), bytes.data(), bytes.size()});
  }
  std::vector<std::byte> Read(std::uint64_t offset, std::size_t size) {
    std::vector<std::byte> bytes(size);
    Copy({bytes.data(), region_->At(offset), size});
    return bytes;
  }

 private:
  void Copy(const kernels::ByteCopy& copy) {
    EXPECT_EQ(backend_.CopyBytes({&copy, 1}, *stream_), absl::OkStatus());
    EXPECT_EQ(backend_.Synchronize(*stream_), absl::OkStatus());
  }

  kernels::Backend& backend_;
  std::unique_ptr<kernels::Stream> stream_;
  kernels::Buffer buffer_;
  std::shared_ptr<cache::Region> region_;
};

struct Way {
  std::string name;
  Memory memory;
  cache::RegionKind kind;
};

class SharedPlacesTest : public ::testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(Ways, SharedPlacesTest,
                         ::testing::Values(Way{"Unified", Memory::kUnified, cache::RegionKind::kSystem},
                                           Way{"SystemBesideADevice", Memory::kSeparate, cache::RegionKind::kSystem},
                                           Way{"OnTheDevice", Memory::kSeparate, cache::RegionKind::kCuda}),
                         [](const auto& way) { return way.param.name; });

TEST_P(SharedPlacesTest, HoldTheSameBitsAsAMessage) {
  for (const auto initial : {testing::InitialState::kSlot, testing::InitialState::kTensor}) {
    for (const bool natural : {false, true}) {
      for (const bool alone : {false, true}) {  // checked calls are never merged: the other way through the engine
        SCOPED_TRACE(::testing::Message() << static_cast<int>(initial) << natural << alone);
        const Problem problem = ProblemWithUnusedRows(initial);
        World world({}, GetParam().memory);
        const auto session = world.OpenSession(GeometryOf(problem));
        LoadState(*session->cache(), 0, problem.state);
        PrefillRequest request = RequestOf(problem, TensorTransport::kInline);
        request.natural_decay = natural;
        request.check_finite = alone;
        const absl::StatusOr<Ran> wanted = RunUnary(world, session, problem, request);
        ASSERT_TRUE(wanted.ok()) << wanted.status();
        const HostTensor wanted_state = StoreState(*session->cache(), 0);

        LoadState(*session->cache(), 0, problem.state);
        Block block(world.backend, GetParam().kind, std::size_t{1} << 20);
        request.regions = {block.region()};
        std::uint64_t next = 0;
        const auto place = [&](std::size_t size) {
          const RegionPlace at = {block.region().get(), next};
          next += (size + 63) / 64 * 64;
          return at;
        };
        const auto share = [&](TensorArgument& argument, const HostTensor& tensor) {
          if (!tensor.present()) return;
          argument.place = place(tensor.bytes.size());
          block.Write(argument.place.offset, tensor.bytes);
          argument.data = nullptr;
          argument.data_bytes = 0;
        };
        share(request.k, problem.k);
        share(request.w, problem.w);
        share(request.u, problem.u);
        share(request.g, problem.g);
        share(request.initial_state, problem.initial_state);
        request.outputs = {.h = place(wanted->outputs.h.bytes.size()),
                           .v_new = place(wanted->outputs.v_new.bytes.size()),
                           .final_state = place(wanted->outputs.final_state.bytes.size())};
        Block flags(world.backend, cache::RegionKind::kSystem, 64);
        request.regions.push_back(flags.region());
        request.done_flag = {.place = {flags.region().get(), 8}, .value = 0x01010101};
        const absl::StatusOr<Ran> shared = RunUnary(world, session, problem, request);
        ASSERT_TRUE(shared.ok()) << shared.status();
        EXPECT_TRUE(flags.Read(8, 4) == std::vector<std::byte>(4, std::byte{1}));
        EXPECT_TRUE(flags.Read(12, 4) == std::vector<std::byte>(4, std::byte{0xff}));
        const auto read = [&](const RegionPlace& at, const HostTensor& like) {
          return block.Read(at.offset, like.bytes.size());
        };
        EXPECT_TRUE(read(request.outputs.h, wanted->outputs.h) == wanted->outputs.h.bytes);
        EXPECT_TRUE(read(request.outputs.v_new, wanted->outputs.v_new) == wanted->outputs.v_new.bytes);
        EXPECT_TRUE(read(request.outputs.final_state, wanted->outputs.final_state) ==
                    wanted->outputs.final_state.bytes);
        EXPECT_TRUE(StoreState(*session->cache(), 0).bytes == wanted_state.bytes);
        request = {};
        EXPECT_TRUE(test::Eventually([&] { return block.region().use_count() == 1; })) << "the call has let go of it";
      }
    }
  }
}

/// But for system memory beside a device, which passes through the device's staging memory.
class UnstagedPlacesTest : public SharedPlacesTest {};

INSTANTIATE_TEST_SUITE_P(Ways, UnstagedPlacesTest,
                         ::testing::Values(Way{"Unified", Memory::kUnified, cache::RegionKind::kSystem},
                                           Way{"OnTheDevice", Memory::kSeparate, cache::RegionKind::kCuda}),
                         [](const auto& way) { return way.param.name; });

TEST_P(UnstagedPlacesTest, ReserveNoMemory) {
  const Problem problem = ProblemWithUnusedRows(testing::InitialState::kSlot);
  World world({.staging_bytes = std::int64_t{36} << 10}, GetParam().memory);
  const auto session = world.OpenSession(GeometryOf(problem));
  PrefillRequest request = RequestOf(problem, TensorTransport::kInline);
  EXPECT_EQ(RunUnary(world, session, problem, request).status().code(), absl::StatusCode::kResourceExhausted);
  Block block(world.backend, GetParam().kind, std::size_t{1} << 20);
  request.regions = {block.region()};
  std::uint64_t next = 0;
  for (const auto& [argument, tensor] : {std::pair(&request.k, &problem.k), std::pair(&request.w, &problem.w),
                                         std::pair(&request.u, &problem.u), std::pair(&request.g, &problem.g)}) {
    argument->place = {block.region().get(), next};
    argument->data = nullptr;
    block.Write(next, tensor->bytes);
    next += (std::uint64_t{1} << 15);
  }
  request.outputs = {.h = {block.region().get(), next},
                     .v_new = {block.region().get(), next + (1 << 17)},
                     .final_state = {block.region().get(), next + (1 << 18)}};
  EXPECT_EQ(RunUnary(world, session, problem, request).status(), absl::OkStatus());
}

TEST(CheckPlaceTest, KnowsEdgesOverflowAndAlignment) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  float values[16];
  const cache::Region region(cache::RegionKind::kSystem, values, sizeof(values), [] {});
  const cache::Region event(cache::RegionKind::kCudaEvent, values, 0, [] {});
  EXPECT_EQ(CheckPlace("x", {&region, 0}, 64, 4), absl::OkStatus());
  EXPECT_EQ(CheckPlace("x", {&region, 64}, 0, 4), absl::OkStatus());
  EXPECT_THAT(CheckPlace("x", {&region, 4}, 64, 4).message(),
              HasSubstr("x.offset is 4 and the tensor has 64 bytes; the region has 64"));
  EXPECT_FALSE(CheckPlace("x", {&region, kMost - 3}, 8, 4).ok());
  EXPECT_FALSE(CheckPlace("x", {&region, 0}, std::int64_t{1} << 62, 4).ok());
  EXPECT_THAT(CheckPlace("x", {&region, 2}, 8, 4).message(), HasSubstr("must be a multiple of the element size 4"));
  EXPECT_THAT(CheckPlace("x", {&event, 0}, 0, 4).message(), HasSubstr("is an event"));
}

}  // namespace
}  // namespace gdpcache::engine
