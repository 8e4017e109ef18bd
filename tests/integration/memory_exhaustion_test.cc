// A server whose operating system has no more memory for it: what is large is refused with RESOURCE_EXHAUSTED, nothing
// is lost, and all goes on when there is memory again.

#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gdpcache/client.h"
#include "gtest/gtest.h"
#include "tests/support/server_process.h"

namespace gdpcache::test {
namespace {

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
constexpr std::int64_t kLayers = 25;  // of 1 MiB in each slot

class MemoryExhaustionTest : public ::testing::Test {
 protected:
  MemoryExhaustionTest()
      : server_({"--threads=2", "--state-memory=8GiB", "--snapshot-device-memory=4GiB", "--staging-memory=2GiB"}),
        client_(Client::Connect(server_.unix_address())) {}

  static CacheSpec Spec(const std::string& name, std::int64_t slots) {
    CacheSpec spec;
    spec.name = name;
    spec.geometry = {.layers = kLayers, .slots = slots, .heads = 4, .key_dim = 256, .value_dim = 256};
    return spec;
  }

  /// The address space that the server may still take.
  void Allow(std::int64_t bytes) {
    rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    if (bytes >= 0) limit.rlim_cur = static_cast<rlim_t>(SizeInKilobytes() * 1'024 + bytes);
    ASSERT_EQ(prlimit(server_.process().pid(), RLIMIT_AS, &limit, nullptr), 0);
  }

  std::int64_t SizeInKilobytes() {
    std::ifstream status(absl::StrCat("/proc/", server_.process().pid(), "/status"));
    std::string word;
    std::int64_t kilobytes = 0;
    while (status >> word && word != "VmSize:") {
    }
    status >> kilobytes;
    return kilobytes;
  }

  ServerProcess server_;
  absl::StatusOr<Client> client_;
};

/// A streamed prefill of one token each for 200 sequences, whose initial states of 1 MiB have to be staged.
absl::Status PrefillManySequences(Session& session) {
  constexpr std::int64_t kSequences = 200;
  constexpr std::int64_t kStateElements = std::int64_t{4} * 256 * 256;
  const std::vector<float> operand(kSequences * 4 * 256);
  const std::vector<float> states(static_cast<std::size_t>(kSequences * kStateElements), 0.25F);
  PrefillCall call;
  call.k = call.w = call.u = {DataType::kFloat32, {kSequences, 4, 256}, operand.data()};
  call.batch = kSequences;
  call.initial_state_source = InitialState::kTensor;
  call.initial_state = ConstTensor{DataType::kFloat32, {kSequences, 4, 256, 256}, states.data()};
  call.transport = Transport::kStream;
  return session.Prefill(call).status();
}

TEST_F(MemoryExhaustionTest, WhatIsLargeIsRefusedAndNothingIsLost) {
  ASSERT_TRUE(client_->CreateCache(Spec("model", 8)).ok());
  Session session = client_->OpenSession("model").value();
  const std::vector<std::int64_t> slots = session.AcquireSlots(8).value();
  const std::int64_t elements = 8 * kLayers * 4 * 256 * 256;
  std::vector<float> values(static_cast<std::size_t>(elements), 0.5F);
  SlotUpdate update;
  update.slots = slots;
  update.state = {DataType::kFloat32, {8, kLayers, 4, 256, 256}, values.data()};
  const ServerInfo before = client_->GetServerInfo().value();

  Allow(100 * kMebibyte);
  EXPECT_TRUE(absl::IsResourceExhausted(client_->CreateCache(Spec("another", 40)).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(session.WriteSlots(update)));  // 200 MiB that have to be staged
  EXPECT_TRUE(absl::IsResourceExhausted(PrefillManySequences(session)));
  EXPECT_TRUE(absl::IsResourceExhausted(session.ShareMemory(200 * kMebibyte).status()));
  const std::string key = "0123456789abcdef";
  // 25 MiB, for which the snapshots' memory is to grow by more.
  std::vector<SlotSave> saves;
  for (const std::int64_t slot : slots) saves.push_back({slot, absl::StrCat(key, slot)});
  const absl::StatusOr<std::vector<SnapshotOutcome>> refused = session.SaveSnapshots(saves);
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_EQ(refused->back().result, SnapshotResult::kNoSpace) << refused->back().message;
  // The server is alive and holds nothing of what it refused.
  const ServerInfo meanwhile = client_->GetServerInfo().value();
  EXPECT_EQ(meanwhile.state_memory_used_bytes, before.state_memory_used_bytes);
  EXPECT_EQ(meanwhile.staging_used_bytes, 0);
  ASSERT_EQ(meanwhile.caches.size(), 1);
  const absl::StatusOr<SlotContents> unchanged = session.ReadSlots({slots[7]}, {3});
  ASSERT_TRUE(unchanged.ok()) << unchanged.status();
  for (const float value : unchanged->state.As<float>()) ASSERT_EQ(value, 0);

  Allow(-1);
  EXPECT_TRUE(session.WriteSlots(update).ok());
  const SlotContents written = session.ReadSlots({slots[7]}, {3}).value();
  for (const float value : written.state.As<float>()) ASSERT_EQ(value, 0.5F);
  EXPECT_TRUE(client_->CreateCache(Spec("another", 40)).ok());
  EXPECT_TRUE(PrefillManySequences(session).ok());
  EXPECT_TRUE(session.ShareMemory(200 * kMebibyte).ok());
}

}  // namespace
}  // namespace gdpcache::test
