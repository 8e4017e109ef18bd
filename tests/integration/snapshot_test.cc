// Snapshots through the running server and the client library, over TCP and the Unix socket.

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/snapshot_support.h"
#include "tests/support/eventually.h"
#include "tests/support/file_content.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

enum class Wire { kTcp, kUnix };

class SnapshotTest : public ::testing::TestWithParam<Wire> {
 protected:
  std::string AddressOf(const ServerProcess& server) const {
    return GetParam() == Wire::kTcp ? server.tcp_address() : server.unix_address();
  }

  TemporaryDirectory directory_;
  ServerProcess server_{{"--snapshot-device-memory=16MiB", "--max-pin-ttl=10m"}};
  SnapshotModel model_{AddressOf(server_)};
};

INSTANTIATE_TEST_SUITE_P(Wires, SnapshotTest, ::testing::Values(Wire::kTcp, Wire::kUnix),
                         [](const auto& instance) { return instance.param == Wire::kTcp ? "Tcp" : "Unix"; });

TEST_P(SnapshotTest, ABoundaryKeptByAChunkedPrefillIsFoundRestoredAndContinuedBitForBit) {
  for (const Transport transport : {Transport::kUnary, Transport::kStream}) {
    const int prompt = transport == Transport::kUnary ? 1 : 2;
    const std::string middle = Key(10 * prompt);
    const std::string late = Key(10 * prompt + 1);
    const std::string end = Key(10 * prompt + 2);
    const std::int64_t whole = model_.AcquireSlot();
    // 32 tokens, then 33 more: boundary 1 of the second call is at 48, its end at 65.
    EXPECT_THAT(model_.Prefill(whole, prompt, 0, 32, {{0, 1, middle, ""}}, transport), SizeIs(1));
    const std::vector<SnapshotOutcome> outcomes = model_.Prefill(
        whole, prompt, 32, 65, {{0, 1, late, ""}, {0, 3, end, std::string(5, 'e')}, {0, 1, middle, ""}}, transport);
    ASSERT_THAT(outcomes, SizeIs(3));
    EXPECT_EQ(outcomes[0].result, SnapshotResult::kStored);
    EXPECT_EQ(outcomes[0].position, 48);
    EXPECT_EQ(outcomes[1].result, SnapshotResult::kStored);
    EXPECT_EQ(outcomes[1].position, 65);
    EXPECT_EQ(outcomes[2].result, SnapshotResult::kPresent);
    EXPECT_EQ(outcomes[2].position, 16) << "of the one that was there";

    const auto match = model_.client().LookupPrefix("model", {middle, late, Key(999)});
    ASSERT_TRUE(match.ok() && match->has_value()) << match.status();
    EXPECT_EQ((*match)->index, 1);
    EXPECT_EQ((*match)->snapshot.position, 48);
    for (const auto& [key, position] : {std::pair(middle, 16), {late, 48}}) {
      const std::int64_t resumed = model_.AcquireSlot();
      const absl::StatusOr<std::vector<std::int64_t>> positions = model_.Restore(key, {resumed});
      ASSERT_TRUE(positions.ok()) << positions.status();
      EXPECT_THAT(*positions, ElementsAre(position));
      model_.Prefill(resumed, prompt, position, 65, {}, transport);
      EXPECT_TRUE(model_.State(resumed) == model_.State(whole));
    }
  }
}

TEST_P(SnapshotTest, ASnapshotIsFoundOnlyWhenItsLastLayerHasCome) {
  const std::int64_t slot = model_.AcquireSlot();
  const absl::StatusOr<PrefillResult> first = model_.PrefillLayer(0, slot, 1, 0, 16, {{0, 1, Key(1), ""}});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->snapshots.at(0).result, SnapshotResult::kPending);
  EXPECT_FALSE(model_.client().LookupPrefix("model", {Key(1)}).value().has_value());
  EXPECT_EQ(model_.Restore(Key(1), {slot}).status().code(), absl::StatusCode::kNotFound);
  const absl::StatusOr<PrefillResult> second = model_.PrefillLayer(1, slot, 1, 0, 16, {{0, 1, Key(1), ""}});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->snapshots.at(0).result, SnapshotResult::kStored);
  EXPECT_TRUE(model_.client().LookupPrefix("model", {Key(1)}).value().has_value());
}

TEST_P(SnapshotTest, WhatASessionHasNotFinishedGoesWithIt) {
  std::int64_t slot = model_.AcquireSlot();
  ASSERT_TRUE(model_.PrefillLayer(0, slot, 1, 0, 16, {{0, 1, Key(1), ""}}).ok());
  model_.EndSession();
  model_.NewSession();
  slot = model_.AcquireSlot();
  const absl::StatusOr<PrefillResult> other_half = model_.PrefillLayer(1, slot, 1, 0, 16, {{0, 1, Key(1), ""}});
  ASSERT_TRUE(other_half.ok()) << other_half.status();
  EXPECT_EQ(other_half->snapshots.at(0).result, SnapshotResult::kPending);
  model_.EndSession();
  EXPECT_EQ(model_.client().GetServerInfo()->snapshot_tiers.at(0).used_bytes, 0);
}

TEST_P(SnapshotTest, SavedSlotsAreRestoredIntoOthers) {
  const std::int64_t slot = model_.AcquireSlot();
  model_.Fill(slot, 7);
  EXPECT_EQ(model_.Save(slot, Key(7)).result, SnapshotResult::kStored);
  EXPECT_EQ(model_.Save(slot, Key(7)).result, SnapshotResult::kPresent);
  model_.Fill(slot, 8);
  EXPECT_EQ(model_.Save(slot, Key(8)).position, 8);
  const std::vector<std::int64_t> slots = model_.session().AcquireSlots(3).value();
  const auto positions = model_.session().RestoreSnapshots({{Key(7), {slots[0], slots[2]}}, {Key(8), {slots[1]}}});
  ASSERT_TRUE(positions.ok()) << positions.status();
  EXPECT_THAT(*positions, ElementsAre(7, 8));
  EXPECT_TRUE(model_.IsFilled(slots[0], 7));
  EXPECT_TRUE(model_.IsFilled(slots[1], 8));
  EXPECT_TRUE(model_.IsFilled(slots[2], 7));
}

TEST_P(SnapshotTest, SnapshotsOutliveTheirCache) {
  const std::int64_t slot = model_.AcquireSlot();
  model_.Fill(slot, 7);
  model_.Save(slot, Key(7));
  model_.EndSession();
  ASSERT_TRUE(model_.client().DeleteCache("model").ok());
  SnapshotModel again(AddressOf(server_));
  const std::int64_t restored = again.AcquireSlot();
  ASSERT_TRUE(again.Restore(Key(7), {restored}).ok());
  EXPECT_TRUE(again.IsFilled(restored, 7));
  again.EndSession();
  ASSERT_TRUE(again.client().DeleteCache("model").ok());
  SnapshotModel other(AddressOf(server_), "model@2");
  EXPECT_FALSE(other.Has(Key(7))) << "another fingerprint is another space";
}

TEST_P(SnapshotTest, ALookupsLeaseKeepsTheSnapshotUntilItIsRestored) {
  const std::int64_t slot = model_.AcquireSlot();
  model_.Fill(slot, 7);
  model_.Save(slot, Key(7));
  const auto match = model_.client().LookupPrefix("model", {Key(7)}, absl::Minutes(5));
  ASSERT_TRUE(match.ok() && match->has_value()) << match.status();
  EXPECT_NE((*match)->pin, "");
  EXPECT_TRUE(model_.List().at(0).pinned);
  EXPECT_EQ(model_.client().DeleteSnapshots("model", {Key(7)}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(model_.Restore(Key(9), {slot}, (*match)->pin).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(model_.List().at(0).pinned) << "a restore that fails releases nothing";
  ASSERT_TRUE(model_.Restore(Key(7), {slot}, (*match)->pin).ok());
  EXPECT_FALSE(model_.List().at(0).pinned);
  EXPECT_EQ(model_.client().DeleteSnapshots("model", {Key(7)}).value(), 1);
}

TEST_P(SnapshotTest, PinsLastUntilTheyAreReleasedOrForced) {
  const std::int64_t slot = model_.AcquireSlot();
  for (const int number : {1, 2}) {
    model_.Fill(slot, number);
    model_.Save(slot, Key(number));
  }
  const absl::StatusOr<SnapshotPin> pin = model_.client().PinSnapshots("model", {Key(1), Key(2)});
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_EQ(pin->ttl, absl::Minutes(10)) << "what the server allows at most";
  const absl::Status absent = model_.client().PinSnapshots("model", {Key(1), Key(3)}).status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.message()), HasSubstr("keys[1]"));
  EXPECT_EQ(model_.client().DeleteSnapshots("model", {Key(2)}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(model_.client().DeleteSnapshots("model", {Key(2)}, true).value(), 1);
  EXPECT_TRUE(model_.client().UnpinSnapshots("model", pin->pin).ok());
  EXPECT_EQ(model_.client().UnpinSnapshots("model", pin->pin).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(model_.client().DeleteSnapshots("model", {Key(1), Key(2)}).value(), 1);
}

TEST_P(SnapshotTest, ListsComeInPagesInTheKeysOrder) {
  const std::int64_t slot = model_.AcquireSlot();
  for (const int number : {5, 1, 4, 2, 3}) {
    model_.Fill(slot, number);
    model_.Save(slot, Key(number));
  }
  std::vector<std::string> keys;
  std::string token;
  int pages = 0;
  do {
    const absl::StatusOr<SnapshotPage> page = model_.client().ListSnapshots("model", 2, token);
    ASSERT_TRUE(page.ok()) << page.status();
    for (const Snapshot& snapshot : page->snapshots) {
      keys.push_back(snapshot.key);
      EXPECT_EQ(Key(static_cast<int>(snapshot.position)), snapshot.key);
      EXPECT_EQ(snapshot.bytes, 2 * (2 * 8 * 12 * 4 + 5));
      EXPECT_THAT(snapshot.tiers, ElementsAre(SnapshotTier::kDevice));
    }
    token = page->next_page_token;
    ++pages;
  } while (!token.empty());
  EXPECT_THAT(keys, ElementsAre(Key(1), Key(2), Key(3), Key(4), Key(5)));
  EXPECT_EQ(pages, 3);
}

using Told = std::vector<std::pair<SnapshotEvent::Type, std::string>>;

/// The next events until there are `count`.
Told Take(SnapshotWatch& watch, std::size_t count) {
  Told told;
  while (told.size() < count) {
    const absl::StatusOr<std::vector<SnapshotEvent>> events = watch.Next();
    EXPECT_TRUE(events.ok()) << events.status();
    if (!events.ok()) break;
    for (const SnapshotEvent& event : *events) told.emplace_back(event.type, event.key);
  }
  return told;
}

TEST_P(SnapshotTest, AWatcherIsToldWhatIsThereAndWhatHappens) {
  using Type = SnapshotEvent::Type;
  const std::int64_t slot = model_.AcquireSlot();
  model_.Fill(slot, 1);
  model_.Save(slot, Key(1));
  SnapshotWatch watch = model_.client().WatchSnapshots("model", true);
  SnapshotWatch fresh = model_.client().WatchSnapshots("model", false);
  EXPECT_EQ(Take(watch, 2), (Told{{Type::kStored, Key(1)}, {Type::kSynced, ""}}));
  model_.Fill(slot, 2);
  model_.Save(slot, Key(2));
  ASSERT_TRUE(model_.client().DeleteSnapshots("model", {Key(1)}).ok());
  const Told happened = {{Type::kStored, Key(2)}, {Type::kDeleted, Key(1)}};
  EXPECT_EQ(Take(watch, 2), happened);
  EXPECT_EQ(Take(fresh, 2), happened);
}

TEST_P(SnapshotTest, WhatIsUsedStaysAndEvictionsAreTold) {
  using Type = SnapshotEvent::Type;
  ServerProcess server({"--snapshot-device-memory=20KiB"});
  SnapshotModel model(AddressOf(server));
  SnapshotWatch watch = model.client().WatchSnapshots("model", false);
  const std::int64_t slot = model.AcquireSlot();
  constexpr int kCount = 30;
  for (int number = 1; number <= kCount; ++number) {
    model.Fill(slot, number);
    EXPECT_EQ(model.Save(slot, Key(number)).result, SnapshotResult::kStored);
    EXPECT_TRUE(model.Restore(Key(1), {slot}).ok());
  }
  // What fits are fewer than ten.
  const Told told = Take(watch, 2 * kCount - 10);
  EXPECT_GE(std::count_if(told.begin(), told.end(), [](const auto& event) { return event.first == Type::kEvicted; }),
            kCount - 10);
  EXPECT_EQ(std::count(told.begin(), told.end(), std::pair(Type::kEvicted, Key(1))), 0);
  EXPECT_TRUE(model.Has(Key(1)));
}

TEST_P(SnapshotTest, WhatFindsNoRoomIsAnOutcomeAndTheCallGoesOn) {
  ServerProcess server({"--snapshot-device-memory=0"});
  SnapshotModel model(AddressOf(server));
  const std::int64_t slot = model.AcquireSlot();
  const std::vector<SnapshotOutcome> outcomes = model.Prefill(slot, 1, 0, 16, {{0, 1, Key(1), ""}});
  ASSERT_THAT(outcomes, SizeIs(1));
  EXPECT_EQ(outcomes[0].result, SnapshotResult::kNoSpace);
  EXPECT_NE(outcomes[0].message, "");
  EXPECT_EQ(model.Save(slot, Key(2)).result, SnapshotResult::kNoSpace);
  EXPECT_FALSE(model.client().LookupPrefix("model", {Key(1)}).value().has_value());
}

TEST_P(SnapshotTest, ATenantsQuotaAndPinBudgetHold) {
  const std::int64_t bytes = std::int64_t{2} * (2 * 8 * 12 * 4 + 5);
  ServerProcess server(
      {"--snapshot-tenant-quota=" + std::to_string(3 * bytes), "--snapshot-pin-budget=" + std::to_string(2 * bytes)});
  SnapshotModel model(AddressOf(server));
  const std::int64_t slot = model.AcquireSlot();
  const auto save = [&](int number) {
    model.Fill(slot, number);
    EXPECT_EQ(model.Save(slot, Key(number)).result, SnapshotResult::kStored);
  };
  for (const int number : {1, 2, 3}) save(number);
  EXPECT_TRUE(model.client().PinSnapshots("model", {Key(1), Key(2)}).ok());
  EXPECT_EQ(model.client().PinSnapshots("model", {Key(3)}).status().code(), absl::StatusCode::kResourceExhausted);
  const auto match = model.client().LookupPrefix("model", {Key(3)}, absl::Minutes(1));
  ASSERT_TRUE(match.ok() && match->has_value()) << match.status();
  EXPECT_EQ((*match)->pin, "") << "found all the same";
  save(4);
  EXPECT_TRUE(model.Has(Key(1)) && model.Has(Key(2)) && model.Has(Key(4)));
  EXPECT_FALSE(model.Has(Key(3))) << "the only one that may go";
}

TEST_P(SnapshotTest, AnExportedSnapshotIsTheSameWhereverItIsImported) {
  const std::int64_t slot = model_.AcquireSlot();
  model_.Fill(slot, 7);
  model_.Save(slot, Key(7));
  const std::string file = directory_.path() + "/exported.safetensors";
  const absl::StatusOr<ExportedSnapshot> exported = model_.client().ExportSnapshot("model", Key(7), file);
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(exported->position, 7);
  EXPECT_EQ(exported->file_bytes, static_cast<std::int64_t>(FileContent(file).size()));

  const ServerProcess other;
  SnapshotModel elsewhere(AddressOf(other));
  absl::StatusOr<SnapshotOutcome> outcome = elsewhere.client().ImportSnapshot("model", file);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->result, SnapshotResult::kStored);
  EXPECT_EQ(outcome->position, 7);
  EXPECT_EQ(elsewhere.client().ImportSnapshot("model", file)->result, SnapshotResult::kPresent);
  outcome = elsewhere.client().ImportSnapshot("model", file, Key(70));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  for (const std::string& key : {Key(7), Key(70)}) {
    const std::int64_t restored = elsewhere.AcquireSlot();
    ASSERT_TRUE(elsewhere.Restore(key, {restored}).ok());
    EXPECT_TRUE(elsewhere.IsFilled(restored, 7));
  }
  const std::string again = directory_.path() + "/again.safetensors";
  ASSERT_TRUE(elsewhere.client().ExportSnapshot("model", Key(7), again).ok());
  EXPECT_TRUE(FileContent(again) == FileContent(file)) << "to the byte";
}

TEST_P(SnapshotTest, FilesThatAreDamagedOrOfAnotherSpaceAreRefused) {
  const std::int64_t slot = model_.AcquireSlot();
  model_.Fill(slot, 7);
  model_.Save(slot, Key(7));
  const std::string file = directory_.path() + "/exported.safetensors";
  ASSERT_TRUE(model_.client().ExportSnapshot("model", Key(7), file).ok());
  ASSERT_TRUE(model_.client().DeleteSnapshots("model", {Key(7)}).ok());
  const std::string whole = FileContent(file);

  const ServerProcess other;
  SnapshotModel fingerprint(AddressOf(other), "model@2");
  absl::Status status = fingerprint.client().ImportSnapshot("model", file).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("fingerprint is 'model@1', not 'model@2'"));
  const ServerProcess third;
  SnapshotModel geometry(AddressOf(third), "model@1", /*heads=*/3);
  status = geometry.client().ImportSnapshot("model", file).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("heads is 2, not 3"));

  const auto import = [&](const std::string& bytes) {
    const std::string path = directory_.path() + "/bad.safetensors";
    std::ofstream(path, std::ios::binary) << bytes;
    return model_.client().ImportSnapshot("model", path).status().code();
  };
  for (const std::size_t place : {std::size_t{0}, std::size_t{20}, whole.size() / 2, whole.size() - 1}) {
    std::string damaged = whole;
    damaged[place] = static_cast<char>(damaged[place] ^ 4);
    EXPECT_EQ(import(damaged), absl::StatusCode::kDataLoss) << place;
  }
  EXPECT_EQ(import(whole.substr(0, whole.size() - 1)), absl::StatusCode::kDataLoss);
  EXPECT_EQ(import(whole + "x"), absl::StatusCode::kDataLoss);
  EXPECT_NE(import("no safetensors file"), absl::StatusCode::kOk);
  EXPECT_NE(import(""), absl::StatusCode::kOk);
  EXPECT_FALSE(model_.Has(Key(7)));
  EXPECT_EQ(import(whole), absl::StatusCode::kOk);
}

TEST_P(SnapshotTest, TheServersInfoShowsItsTiers) {
  const std::int64_t slot = model_.AcquireSlot();
  model_.Fill(slot, 7);
  model_.Save(slot, Key(7));
  const absl::StatusOr<ServerInfo> info = model_.client().GetServerInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  ASSERT_THAT(info->snapshot_tiers, SizeIs(1));
  EXPECT_EQ(info->snapshot_tiers[0].tier, SnapshotTier::kDevice);
  EXPECT_EQ(info->snapshot_tiers[0].capacity_bytes, 16 << 20);
  EXPECT_EQ(info->snapshot_tiers[0].snapshots, 1);
  EXPECT_GT(info->snapshot_tiers[0].used_bytes, 2 * 2 * 8 * 12 * 4);
}

}  // namespace
}  // namespace gdpcache::test
