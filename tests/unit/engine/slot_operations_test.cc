#include "server/engine/slot_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/cache/errors.h"
#include "tests/reference/random_problem.h"
#include "tests/unit/engine/engine_world.h"

namespace gdpcache::engine {
namespace {

cache::Geometry SmallGeometry(std::int64_t slots, kernels::DataType dtype = kernels::DataType::kFloat32) {
  return {.layers = 3,
          .slots = slots,
          .heads = 2,
          .key_dim = 4,
          .value_dim = 3,
          .num_householder = 1,
          .state_dtype = dtype,
          .auxiliary_bytes = 5};
}

/// Different bytes and positions everywhere; NaN where `nan`.
void Fill(cache::Cache& cache, bool nan = false) {
  const cache::Geometry& geometry = cache.geometry();
  for (std::int64_t layer = 0; layer < geometry.layers; ++layer) {
    for (std::int64_t slot = 0; slot < geometry.slots; ++slot) {
      const auto mark = static_cast<float>(layer * 100 + slot + 1);
      auto* state = static_cast<float*>(cache.pool().State(layer, slot).data);
      std::fill_n(state, geometry.state_bytes() / 4, nan ? std::numeric_limits<float>::quiet_NaN() : mark);
      const kernels::ByteRange auxiliary = cache.pool().Auxiliary(layer, slot);
      std::memset(auxiliary.data, static_cast<int>(mark), auxiliary.size);
      cache.slots().SetPosition(layer, slot, static_cast<std::int64_t>(mark) * 10);
    }
  }
}

/// One slot's bytes and positions in all layers.
std::string Contents(const cache::Cache& cache, std::int64_t slot) {
  std::string contents;
  for (std::int64_t layer = 0; layer < cache.geometry().layers; ++layer) {
    contents.append(static_cast<const char*>(cache.pool().State(layer, slot).data), cache.geometry().state_bytes());
    const kernels::ByteRange auxiliary = cache.pool().Auxiliary(layer, slot);
    contents.append(static_cast<const char*>(auxiliary.data), auxiliary.size);
    contents += std::to_string(cache.slots().Position(layer, slot));
  }
  return contents;
}

std::string ZeroContents(const cache::Cache& cache) {
  std::string contents;
  for (std::int64_t layer = 0; layer < cache.geometry().layers; ++layer) {
    contents.append(cache.geometry().state_bytes() + cache.geometry().auxiliary_bytes, '\0');
    contents += '0';
  }
  return contents;
}

TEST(AcquireSlots, AreZeroInEveryLayerWhateverTheirLastOwnerLeft) {
  World world;
  const auto first = world.OpenSession(SmallGeometry(4));
  const cache::Cache& cache = *first->cache();
  Fill(*first->cache(), /*nan=*/true);
  ASSERT_TRUE(Release(world, first, {1, 3}).ok());
  const auto second = world.OpenSessionOn(cache);
  const auto slots = Acquire(world, second, 2);
  ASSERT_TRUE(slots.ok()) << slots.status();
  EXPECT_THAT(*slots, ::testing::ElementsAre(1, 3));
  for (const std::int64_t slot : *slots) EXPECT_EQ(Contents(cache, slot), ZeroContents(cache));
}

TEST(AcquireSlots, AllOrNoneNamingHowManyAreFree) {
  World world;
  const auto first = world.OpenSession(SmallGeometry(4));
  ASSERT_TRUE(Release(world, first, {1}).ok());
  const auto second = world.OpenSessionOn(*first->cache());
  const auto slots = Acquire(world, second, 2);
  EXPECT_EQ(slots.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(first->cache()->slots().free_count(), 1);
  EXPECT_EQ(Acquire(world, second, 0).status().message(), "count is 0; it must be at least 1");
  EXPECT_EQ(Acquire(world, second, -3).status().message(), "count is -3; it must be at least 1");
}

TEST(AcquireSlots, GiveTheSlotsBackWhenTheyCannotBeZeroed) {
  World world;
  const auto first = world.OpenSession(SmallGeometry(4));
  ASSERT_TRUE(Release(world, first, {1, 2}).ok());
  world.backend.FailAfter(Operation::kZeroBytes, 0, absl::InternalError("cannot zero"));
  EXPECT_EQ(Acquire(world, first, 2).status(), absl::InternalError("cannot zero"));
  EXPECT_EQ(first->cache()->slots().free_count(), 2);
  EXPECT_TRUE(Acquire(world, first, 2).ok());
}

TEST(ReleaseSlots, AllOrNone) {
  World world;
  const auto first = world.OpenSession(SmallGeometry(4));
  const auto second = world.OpenSessionOn(*first->cache());
  EXPECT_EQ(Release(world, second, {1}).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Release(world, first, {1, 4}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Release(world, first, {1, 1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(first->cache()->slots().free_count(), 0);
  EXPECT_TRUE(Release(world, first, {1}).ok());
  EXPECT_EQ(Release(world, first, {1}).code(), absl::StatusCode::kPermissionDenied);
}

TEST(ResetSlots, ZeroesThoseAndNoOthers) {
  World world;
  const auto session = world.OpenSession(SmallGeometry(4));
  const cache::Cache& cache = *session->cache();
  Fill(*session->cache());
  const std::string kept = Contents(cache, 1) + Contents(cache, 2);
  ASSERT_TRUE(Reset(world, session, {3, 0}).ok());
  EXPECT_EQ(Contents(cache, 0), ZeroContents(cache));
  EXPECT_EQ(Contents(cache, 3), ZeroContents(cache));
  EXPECT_EQ(Contents(cache, 1) + Contents(cache, 2), kept);
}

TEST(CopySlots, RandomCopiesDoWhatCopyingOneAfterTheOtherDoes) {
  World world;
  constexpr std::int64_t kSlots = 7;
  const auto session = world.OpenSession(SmallGeometry(kSlots));
  const cache::Cache& cache = *session->cache();
  std::mt19937_64 random(1);
  int set_aside = 0;
  for (int round = 0; round < 300; ++round) {
    Fill(*session->cache());
    std::vector<std::string> model;
    for (std::int64_t slot = 0; slot < kSlots; ++slot) model.push_back(Contents(cache, slot));
    Slots destinations(kSlots);
    std::iota(destinations.begin(), destinations.end(), 0);
    std::shuffle(destinations.begin(), destinations.end(), random);
    std::vector<SlotCopyRequest> copies(random() % 5);
    for (SlotCopyRequest& copy : copies) {
      copy.source = static_cast<std::int64_t>(random() % kSlots);
      for (std::size_t i = random() % 3; i > 0 && !destinations.empty(); --i) {
        copy.destinations.push_back(destinations.back());
        destinations.pop_back();
        model[copy.destinations.back()] = model[copy.source];
      }
    }
    const std::int64_t copied = world.backend.calls(Operation::kCopyBytes);
    ASSERT_TRUE(Copy(world, session, copies).ok());
    set_aside += world.backend.calls(Operation::kCopyBytes) - copied == 2 ? 1 : 0;
    for (std::int64_t slot = 0; slot < kSlots; ++slot) ASSERT_TRUE(Contents(cache, slot) == model[slot]) << round;
  }
  EXPECT_GT(set_aside, 10);  // both ways have been walked
  EXPECT_LT(set_aside, 290);
}

TEST(CopySlots, RefusesWhatIsNotHeldOrNamedTwice) {
  World world;
  const auto first = world.OpenSession(SmallGeometry(4));
  const auto second = world.OpenSessionOn(*first->cache());
  EXPECT_EQ(Copy(world, second, {{0, {1}}}).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Copy(world, first, {{0, {1}}, {2, {3, 1}}}).message(),
            "copies[1].destinations[1] is 1, as is copies[0].destinations[0]; destinations must be distinct");
  EXPECT_EQ(Copy(world, first, {{0, {4}}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Copy(world, first, {{-1, {1}}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Copy(world, first, {{0, {-1}}}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CopySlots, RefusesMoreThanThereAreSlots) {
  World world;
  const auto session = world.OpenSession(SmallGeometry(4));
  EXPECT_TRUE(Copy(world, session, {{0, {}}, {0, {}}, {0, {}}, {0, {1, 2, 3}}}).ok());
  EXPECT_EQ(Copy(world, session, std::vector<SlotCopyRequest>(5, {0, {}})).message(),
            "copies has 5 entries with 0 destinations; the cache has 4 slots");
  EXPECT_EQ(Copy(world, session, {{0, {4, 5, 6, 7, 8}}}).message(),
            "copies has 1 entries with 5 destinations; the cache has 4 slots");
}

TEST(ReadSlots, WhatIsReadCanBeWrittenElsewhere) {
  World world({.segment_bytes = 100});  // pieces smaller than a state
  const auto from = world.OpenSession(SmallGeometry(5));
  const auto to = world.OpenSession(SmallGeometry(5));
  Fill(*from->cache());
  const ReadResult read = Read(world, from, {.slots = {4, 1}});
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_THAT(read.contents.selection.layers, ::testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(read.contents.positions, ::testing::ElementsAre(50, 1050, 2050, 20, 1020, 2020));
  ASSERT_TRUE(Write(world, to, {.slots = {0, 3}}, read.contents.positions, read.state, &read.auxiliary).ok());
  EXPECT_EQ(Contents(*to->cache(), 0), Contents(*from->cache(), 4));
  EXPECT_EQ(Contents(*to->cache(), 3), Contents(*from->cache(), 1));
  EXPECT_EQ(Contents(*to->cache(), 1), ZeroContents(*to->cache()));
  EXPECT_EQ(world.engine->staging().used(), 0);
}

TEST(ReadSlots, SingleLayersInTheOrderAskedFor) {
  World world;
  const auto session = world.OpenSession(SmallGeometry(2));
  Fill(*session->cache());
  const ReadResult read = Read(world, session, {.slots = {1}, .layers = {2, 0}});
  ASSERT_TRUE(read.status.ok());
  EXPECT_THAT(read.contents.positions, ::testing::ElementsAre(2020, 20));
  const std::size_t state = read.state.size() / 2;
  EXPECT_EQ(std::memcmp(read.state.data(), session->cache()->pool().State(2, 1).data, state), 0);
  EXPECT_EQ(std::memcmp(read.state.data() + state, session->cache()->pool().State(0, 1).data, state), 0);
}

TEST(ReadSlots, NothingIsAnAnswer) {
  World world;
  const auto session = world.OpenSession(SmallGeometry(2));
  const ReadResult read = Read(world, session, {});
  EXPECT_TRUE(read.status.ok());
  EXPECT_TRUE(read.state.empty());
}

TEST(ReadSlots, RefusesWrongSelections) {
  World world;
  const auto session = world.OpenSession(SmallGeometry(2));
  EXPECT_EQ(Read(world, session, {.slots = {2}}).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read(world, session, {.slots = {0, 0}}).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read(world, session, {.slots = {0}, .layers = {3}}).status.message(),
            "layers[0] is 3; the cache has 3 layers");
  EXPECT_EQ(Read(world, session, {.slots = {0}, .layers = {1, 1}}).status.message(), "layers[1] is 1, as is layers[0]");
  EXPECT_EQ(Read(world, world.OpenSessionOn(*session->cache()), {.slots = {0}}).status.code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(ReadSlots, SlotsAreFreeAgainWhenTheLastByteIsOutAndMemoryStaysBounded) {
  constexpr std::int64_t kPiece = 4096;
  World world({.segment_bytes = kPiece});
  cache::Geometry geometry = SmallGeometry(2);
  geometry.value_dim = 1000;
  const auto session = world.OpenSession(geometry);
  CollectingPeer peer;
  peer.Hold();
  Outcome<absl::Status> outcome;
  const auto call = world.engine->ReadSlots(
      {.session = session}, {.slots = {0, 1}}, [](const SlotContents&) {}, peer,
      [&](absl::Status status) { outcome.Set(std::move(status)); });
  ASSERT_TRUE(call.ok());
  (*call)->Start();
  // One piece is out, no more until it has been sent, and a reset waits behind the read.
  Outcome<absl::Status> reset;
  const auto resetting =
      world.engine->ResetSlots({.session = session}, {1}, [&](absl::Status status) { reset.Set(std::move(status)); });
  (*resetting)->Start();
  EXPECT_FALSE(reset.IsSet());
  (*call)->Cancel(absl::CancelledError("enough"));
  EXPECT_EQ(outcome.Take(), absl::CancelledError("enough"));
  EXPECT_TRUE(reset.Take().ok());
  EXPECT_LE(peer.received(), 2 * kPiece);
  EXPECT_EQ(world.engine->staging().used(), 0);
}

TEST(WriteSlots, AuxiliaryBytesLeftOutAreUntouched) {
  World world;
  const auto session = world.OpenSession(SmallGeometry(2));
  Fill(*session->cache());
  const std::vector<std::byte> zeros(3 * session->cache()->geometry().state_bytes());
  ASSERT_TRUE(Write(world, session, {.slots = {1}}, {}, zeros, nullptr).ok());
  const auto* auxiliary = static_cast<const char*>(session->cache()->pool().Auxiliary(1, 1).data);
  EXPECT_EQ(auxiliary[0], 102);
  EXPECT_EQ(session->cache()->slots().Position(1, 1), 0);
}

TEST(WriteSlots, TruncatedOrOverlongChangesNothing) {
  World world;
  const auto session = world.OpenSession(SmallGeometry(2));
  Fill(*session->cache());
  const std::size_t before = Fingerprint(*session->cache());
  const std::int64_t size = session->cache()->geometry().state_bytes();
  const SlotSelection selection{.slots = {1}, .layers = {0}};
  EXPECT_EQ(Write(world, session, selection, {}, std::vector<std::byte>(size - 1), nullptr).message(),
            "data of state ended after 95 bytes; the tensor has 96");
  EXPECT_EQ(Write(world, session, selection, {}, std::vector<std::byte>(size + 1), nullptr).message(),
            "data.payload of state holds 47 bytes at 50; the tensor has 96");
  EXPECT_EQ(Write(world, session, selection, {5, 6}, std::vector<std::byte>(size), nullptr).message(),
            "contents.positions has 2 entries; 1 states are selected");
  EXPECT_EQ(Write(world, session, selection, {-5}, std::vector<std::byte>(size), nullptr).message(),
            "contents.positions[0] is -5; it must be from 0 to 4611686018427387904");
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  EXPECT_EQ(Write(world, session, selection, {kMost + 1}, std::vector<std::byte>(size), nullptr).message(),
            "contents.positions[0] is 4611686018427387905; it must be from 0 to 4611686018427387904");
  EXPECT_EQ(Fingerprint(*session->cache()), before);
  EXPECT_EQ(world.engine->staging().used(), 0);
}

}  // namespace
}  // namespace gdpcache::engine
