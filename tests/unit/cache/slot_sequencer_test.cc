#include "server/cache/slot_sequencer.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdpcache::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Claim = SlotSequencer::Claim;

class SlotSequencerTest : public ::testing::Test {
 protected:
  Claim Enqueue(int name, const std::vector<std::int64_t>& layers, const std::vector<std::int64_t>& slots) {
    return sequencer_.Enqueue(layers, slots, [this, name] { ready_.push_back(name); });
  }

  SlotSequencer sequencer_{8};
  std::vector<int> ready_;
};

TEST_F(SlotSequencerTest, AFreePlaceIsReadyBeforeEnqueueReturns) {
  const Claim claim = Enqueue(1, {0}, {3});
  EXPECT_THAT(ready_, ElementsAre(1));
}

TEST_F(SlotSequencerTest, ClaimsOnOnePlaceGoInOrder) {
  Claim first = Enqueue(1, {0}, {3});
  Claim second = Enqueue(2, {0}, {3});
  Claim third = Enqueue(3, {0}, {3});
  EXPECT_THAT(ready_, ElementsAre(1));
  first.Release();
  EXPECT_THAT(ready_, ElementsAre(1, 2));
  first.Release();
  EXPECT_THAT(ready_, ElementsAre(1, 2)) << "a second release means nothing";
  second.Release();
  EXPECT_THAT(ready_, ElementsAre(1, 2, 3));
}

TEST_F(SlotSequencerTest, DisjointClaimsDoNotWait) {
  const Claim a = Enqueue(1, {0}, {3});
  const Claim same_slot_other_layer = Enqueue(2, {1}, {3});
  const Claim same_layer_other_slot = Enqueue(3, {0}, {4});
  EXPECT_THAT(ready_, ElementsAre(1, 2, 3));
}

TEST_F(SlotSequencerTest, AClaimWaitsForAllItsPlaces) {
  Claim a = Enqueue(1, {0}, {1});
  Claim b = Enqueue(2, {1}, {2});
  const Claim both = Enqueue(3, {0, 1}, {1, 2});
  const Claim behind = Enqueue(4, {1}, {1});
  a.Release();
  EXPECT_THAT(ready_, ElementsAre(1, 2));
  b.Release();
  EXPECT_THAT(ready_, ElementsAre(1, 2, 3)) << "the fourth waits for the third, not only for the first two";
}

TEST_F(SlotSequencerTest, DuplicatePlacesCountOnce) {
  Claim first = Enqueue(1, {0, 0}, {1, 1, 2, 1});
  const Claim second = Enqueue(2, {0, 0}, {1, 2, 1});
  EXPECT_THAT(ready_, ElementsAre(1));
  first.Release();
  EXPECT_THAT(ready_, ElementsAre(1, 2));
}

TEST_F(SlotSequencerTest, PlacesThatAreHandedOverTellLaterClaimsOfTheWorkUntilItsClaimIsReleased) {
  const auto work = std::make_shared<kernels::Event>();
  Claim first = Enqueue(1, {0, 1}, {3});
  Claim second = Enqueue(2, {0}, {3, 4});
  const Claim elsewhere = Enqueue(3, {0}, {5});
  EXPECT_THAT(first.Unfinished(), IsEmpty());
  first.HandOver(work);
  EXPECT_THAT(ready_, ElementsAre(1, 3, 2));
  EXPECT_THAT(second.Unfinished(), ElementsAre(work));
  EXPECT_THAT(elsewhere.Unfinished(), IsEmpty());
  second.Release();  // which has nothing to do with whether the work is complete
  Claim third = Enqueue(4, {0, 1}, {3, 4});
  EXPECT_THAT(ready_, ElementsAre(1, 3, 2, 4));
  EXPECT_THAT(third.Unfinished(), ElementsAre(work)) << "once, though at two places";
  first.Release();
  EXPECT_THAT(third.Unfinished(), IsEmpty());
  EXPECT_EQ(work.use_count(), 1);
}

TEST_F(SlotSequencerTest, WorkThatComesBehindOtherWorkTakesItsPlace) {
  const auto earlier = std::make_shared<kernels::Event>();
  const auto later = std::make_shared<kernels::Event>();
  Claim first = Enqueue(1, {0}, {3, 4});
  first.HandOver(earlier);
  Claim second = Enqueue(2, {0}, {4, 5});
  second.HandOver(later);
  const Claim third = Enqueue(3, {0}, {3, 4, 5});
  EXPECT_THAT(third.Unfinished(), ElementsAre(earlier, later));
  first.Release();
  EXPECT_THAT(third.Unfinished(), ElementsAre(later));
  second.Release();
  EXPECT_THAT(third.Unfinished(), IsEmpty());
}

TEST_F(SlotSequencerTest, AClaimMayOutliveItsSequencerWithWorkUnderWay) {
  const auto work = std::make_shared<kernels::Event>();
  auto sequencer = std::make_unique<SlotSequencer>(4);
  Claim claim = sequencer->Enqueue(std::vector<std::int64_t>{0}, std::vector<std::int64_t>{1}, [] {});
  claim.HandOver(work);
  sequencer.reset();
  claim.Release();
  EXPECT_EQ(work.use_count(), 1);
}

TEST_F(SlotSequencerTest, AClaimOfNothingIsReadyAtOnce) {
  const Claim all = Enqueue(1, {0}, {0, 1, 2, 3, 4, 5, 6, 7});
  const Claim none = Enqueue(2, {0}, {});
  EXPECT_THAT(ready_, ElementsAre(1, 2));
}

TEST_F(SlotSequencerTest, AClaimReleasedBeforeItsTurnGivesWayInOrder) {
  Claim first = Enqueue(1, {0}, {3});
  Claim cancelled = Enqueue(2, {0}, {3, 4});
  Claim third = Enqueue(3, {0}, {3});
  const Claim other = Enqueue(4, {0}, {4});
  cancelled.Release();
  EXPECT_THAT(ready_, ElementsAre(1)) << "the order of the others stands";
  first.Release();
  EXPECT_THAT(ready_, ::testing::UnorderedElementsAre(1, 3, 4));
}

TEST_F(SlotSequencerTest, ACancelledCallbackIsDestroyedWithItsClaim) {
  auto token = std::make_shared<int>(0);
  Claim first = Enqueue(1, {0}, {3});
  {
    const std::vector<std::int64_t> layers = {0};
    const std::vector<std::int64_t> slots = {3};
    const Claim cancelled = sequencer_.Enqueue(layers, slots, [token] {});
    EXPECT_EQ(token.use_count(), 2);
  }
  EXPECT_EQ(token.use_count(), 1);
}

TEST_F(SlotSequencerTest, MovingAClaimMovesItsHold) {
  Claim first = Enqueue(1, {0}, {3});
  const Claim second = Enqueue(2, {0}, {3});
  Claim moved = std::move(first);
  EXPECT_THAT(ready_, ElementsAre(1));
  moved = Claim();
  EXPECT_THAT(ready_, ElementsAre(1, 2));
}

TEST_F(SlotSequencerTest, AClaimMayOutliveItsSequencer) {
  std::optional<SlotSequencer> sequencer(std::in_place, 8);
  const std::vector<std::int64_t> place = {0};
  Claim first = sequencer->Enqueue(place, place, [] {});
  bool ran = false;
  const Claim second = sequencer->Enqueue(place, place, [&ran] { ran = true; });
  sequencer.reset();
  first.Release();
  EXPECT_TRUE(ran);
}

TEST_F(SlotSequencerTest, ALongQueueOfCallsThatEndAtOnceDoesNotRecurse) {
  constexpr int kClaims = 200'000;
  const std::vector<std::int64_t> place = {0};
  std::vector<Claim> claims(kClaims);
  int ran = 0;
  for (int n = 0; n < kClaims; ++n) {
    claims[n] = sequencer_.Enqueue(place, place, [&claims, &ran, n] {
      ++ran;
      if (n > 0) claims[n].Release();
    });
  }
  claims[0].Release();
  EXPECT_EQ(ran, kClaims);
}

TEST_F(SlotSequencerTest, ALongQueueOfCancelledClaimsDoesNotRecurse) {
  constexpr int kClaims = 200'000;
  const std::vector<std::int64_t> place = {0};
  Claim first = Enqueue(1, place, place);
  for (int n = 0; n < kClaims; ++n) Enqueue(2, place, place);
  const Claim last = Enqueue(3, place, place);
  first.Release();
  EXPECT_THAT(ready_, ElementsAre(1, 3));
}

// Each of many threads enqueues claims on random places, some of which it takes back at once; whoever is ready notes
// on each of its places that it is there, sees nobody else, and sees the numbers that Enqueue's order promises.
TEST(SlotSequencerThreadsTest, EveryPlaceIsHeldByOneAtATimeInOrderOfEnqueueing) {
  constexpr int kThreads = 6;
  constexpr int kRounds = 1'500;
  constexpr std::int64_t kLayers = 2;
  constexpr std::int64_t kSlots = 6;
  struct Place {
    int holders = 0;           // not atomic: TSan would see two at a time
    std::int64_t ticket = -1;  // of the last holder
  };
  struct Work {
    std::vector<std::int64_t> layers;
    std::vector<std::int64_t> slots;
    std::int64_t ticket = 0;
    std::mutex mutex;
    Claim claim;
    bool ready = false;
    bool enqueued = false;
  };
  SlotSequencer sequencer(kSlots);
  Place places[kLayers][kSlots];
  std::mutex enqueue_mutex;  // tickets in the order of the enqueueing
  std::int64_t next_ticket = 0;
  std::atomic<int> done = 0;
  std::atomic<int> cancelled = 0;

  // Both the callback and Enqueue's caller have been here before the claim is used.
  const auto run = [&](const std::shared_ptr<Work>& work) {
    for (const std::int64_t layer : work->layers) {
      for (const std::int64_t slot : work->slots) {
        Place& place = places[layer][slot];
        EXPECT_EQ(place.holders++, 0);
        EXPECT_LT(place.ticket, work->ticket);
        place.ticket = work->ticket;
      }
    }
    for (const std::int64_t layer : work->layers) {
      for (const std::int64_t slot : work->slots) --places[layer][slot].holders;
    }
    ++done;
    work->claim.Release();
  };

  std::vector<std::thread> threads;
  for (int n = 0; n < kThreads; ++n) {
    threads.emplace_back([&, n] {
      std::mt19937 random(n);
      for (int round = 0; round < kRounds; ++round) {
        auto work = std::make_shared<Work>();
        for (std::int64_t layer = 0; layer < kLayers; ++layer) {
          if (random() % 2 == 0) work->layers.push_back(layer);
        }
        for (std::int64_t slot = 0; slot < kSlots; ++slot) {
          if (random() % 3 == 0) work->slots.push_back(slot);
        }
        Claim claim;
        {
          const std::lock_guard lock(enqueue_mutex);
          work->ticket = next_ticket++;
          claim = sequencer.Enqueue(work->layers, work->slots, [work, &run] {
            bool both = false;
            {
              const std::lock_guard work_lock(work->mutex);
              work->ready = true;
              both = work->enqueued;
            }
            if (both) run(work);
          });
        }
        bool both = false;
        {
          const std::lock_guard lock(work->mutex);
          if (!work->ready && random() % 4 == 0) {
            ++cancelled;
          } else {
            work->claim = std::move(claim);
            work->enqueued = true;
            both = work->ready;
          }
        }
        claim.Release();  // NOLINT(bugprone-use-after-move): the cancelled one; else it has been moved from
        if (both) run(work);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done + cancelled, kThreads * kRounds);
}

}  // namespace
}  // namespace gdpcache::cache
