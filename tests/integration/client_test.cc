#include "gdpcache/client.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/eventually.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kDim = 32;

/// A server with the cache "model" of 2 layers and 4 slots, and a session on it.
class ClientTest : public ::testing::Test {
 protected:
  ClientTest() : client_(Client::Connect(server_.unix_address())), session_(OpenSession()) {}

  absl::StatusOr<Session> OpenSession() {
    if (!client_.ok()) return client_.status();
    CacheSpec spec;
    spec.name = "model";
    spec.geometry = {.layers = 2, .slots = 4, .heads = kHeads, .key_dim = kDim, .value_dim = kDim};
    spec.geometry.auxiliary_bytes = 10;
    const absl::StatusOr<CreatedCache> created = client_->CreateCache(spec);
    if (!created.ok()) return created.status();
    return client_->OpenSession("model");
  }

  void SetUp() override { ASSERT_TRUE(session_.ok()) << session_.status(); }

  /// `tokens` tokens for these slots, of equal shares.
  PrefillCall Call(std::int64_t tokens, const std::vector<std::int64_t>& slots) {
    values_.assign(static_cast<std::size_t>(tokens * kHeads * kDim), 0.01F);
    slots_ = slots;
    PrefillCall call;
    call.k = {DataType::kFloat32, {tokens, kHeads, kDim}, values_.data()};
    call.w = call.k;
    call.u = call.k;
    call.batch = static_cast<std::int64_t>(slots.size());
    call.state_indices = slots_;
    return call;
  }

  std::string State(std::int64_t slot) {
    absl::StatusOr<SlotContents> contents = session_->ReadSlots({slot});
    EXPECT_TRUE(contents.ok()) << contents.status();
    return std::string(reinterpret_cast<const char*>(contents->state.data()),
                       static_cast<std::size_t>(contents->state.byte_size()));
  }

  ServerProcess server_;
  absl::StatusOr<Client> client_;
  absl::StatusOr<Session> session_;
  std::vector<float> values_;
  std::vector<std::int64_t> slots_;
};

TEST_F(ClientTest, ForksResetsAndReleasesSlots) {
  const std::vector<std::int64_t> slots = session_->AcquireSlots(3).value();
  ASSERT_TRUE(session_->Prefill(Call(64, {slots[0]})).ok());
  const std::string zero = State(slots[1]);
  EXPECT_EQ(zero, std::string(zero.size(), '\0'));
  EXPECT_NE(State(slots[0]), zero);
  ASSERT_TRUE(session_->CopySlots({{slots[0], {slots[1], slots[2]}}}).ok());
  EXPECT_EQ(State(slots[1]), State(slots[0]));
  EXPECT_EQ(State(slots[2]), State(slots[0]));
  ASSERT_TRUE(session_->ResetSlots({slots[0]}).ok());
  EXPECT_EQ(State(slots[0]), zero);
  ASSERT_TRUE(session_->ReleaseSlots(slots).ok());
  EXPECT_EQ(client_->ListSlots("model")->free_slots, 4);
  EXPECT_EQ(session_->ReadSlots({slots[0]}).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ClientTest, ReadsBackWhatItWrote) {
  const std::vector<std::int64_t> slots = session_->AcquireSlots(2).value();
  const std::vector<std::int64_t> layers = {1};
  const std::vector<std::int64_t> positions = {7, 8};
  std::vector<float> state(2 * kHeads * kDim * kDim);
  for (std::size_t i = 0; i < state.size(); ++i) state[i] = static_cast<float>(i);
  const std::string auxiliary = "0123456789abcdefghij";
  SlotUpdate update;
  update.slots = slots;
  update.layers = layers;
  update.positions = positions;
  update.state = {DataType::kFloat32, {2, 1, kHeads, kDim, kDim}, state.data()};
  update.auxiliary = ConstTensor{DataType::kUInt8, {2, 1, 10}, auxiliary.data()};
  ASSERT_TRUE(session_->WriteSlots(update).ok());
  const absl::StatusOr<SlotContents> contents = session_->ReadSlots(slots, layers);
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_THAT(contents->positions, ElementsAre(7, 8));
  EXPECT_EQ(contents->state.As<float>(), absl::MakeConstSpan(state));
  EXPECT_EQ(std::memcmp(contents->auxiliary.data(), auxiliary.data(), auxiliary.size()), 0);
  const absl::StatusOr<SlotContents> all = session_->ReadSlots(slots);
  EXPECT_THAT(all->positions, ElementsAre(0, 7, 0, 8));
}

TEST_F(ClientTest, TellsWhetherALostCallWasApplied) {
  const std::vector<std::int64_t> slots = session_->AcquireSlots(1).value();
  PrefillCall call = Call(64, slots);
  const std::vector<std::int64_t> expected = {0};
  call.expected_positions = expected;
  const absl::StatusOr<PrefillResult> result = session_->Prefill(call);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->positions, ElementsAre(64));
  // The same call again, as if its answer had been lost.
  for (const Transport transport : {Transport::kUnary, Transport::kStream}) {
    call.transport = transport;
    const absl::Status again = session_->Prefill(call).status();
    EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
    const std::vector<PositionMismatch> mismatches = PositionMismatches(again);
    ASSERT_EQ(mismatches.size(), 1);
    EXPECT_EQ(mismatches[0].slot, slots[0]);
    EXPECT_EQ(mismatches[0].expected, 0);
    EXPECT_EQ(mismatches[0].actual, 64);
  }
}

TEST_F(ClientTest, ErrorsNameFieldsAndWhenToRetry) {
  const std::vector<std::int64_t> slots = session_->AcquireSlots(1).value();
  for (const Transport transport : {Transport::kUnary, Transport::kStream}) {
    PrefillCall call = Call(64, slots);
    call.transport = transport;
    call.layer = 9;
    const absl::Status status = session_->Prefill(call).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    ASSERT_FALSE(FieldViolations(status).empty());
    EXPECT_EQ(FieldViolations(status)[0].field, "layer");
  }
  const absl::Status exhausted = session_->AcquireSlots(4).status();
  EXPECT_EQ(exhausted.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryDelay(exhausted).has_value());
  const absl::Status absent = client_->OpenSession("other").status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ResourceOf(absent)->name, "other");
}

TEST_F(ClientTest, StreamsMoreThanAMessageHoldsAndMatchesTheUnaryResult) {
  const std::vector<std::int64_t> slots = session_->AcquireSlots(2).value();
  PrefillCall call = Call(20'000, {slots[0]});  // 15 MB
  call.save_new_value = true;
  const absl::StatusOr<PrefillResult> streamed = session_->Prefill(call);
  ASSERT_TRUE(streamed.ok()) << streamed.status();
  EXPECT_EQ(streamed->transport, Transport::kStream);
  call.state_indices = slots_ = {slots[1]};
  call.transport = Transport::kUnary;
  const absl::StatusOr<PrefillResult> unary = session_->Prefill(call);
  ASSERT_TRUE(unary.ok()) << unary.status();
  EXPECT_EQ(streamed->v_new.As<float>(), unary->v_new.As<float>());
  EXPECT_EQ(State(slots[0]), State(slots[1]));
}

TEST_F(ClientTest, AnExpiredCallChangesNothingAndTheSlotIsUsableAtOnce) {
  const std::vector<std::int64_t> slots = session_->AcquireSlots(1).value();
  const std::string before = State(slots[0]);
  PrefillCall call = Call(400'000, slots);  // 300 MB: no machine takes it in a millisecond
  const absl::Status status = session_->Prefill(call, {.timeout = absl::Milliseconds(1)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(State(slots[0]), before);
  EXPECT_THAT(session_->Prefill(Call(64, slots))->positions, ElementsAre(64));
}

TEST_F(ClientTest, ThreadsShareASession) {
  const std::vector<std::int64_t> slots = session_->AcquireSlots(4).value();
  const PrefillCall call = Call(2'000, {slots[0]});
  std::vector<std::thread> threads;
  std::atomic<int> calls = 0;
  for (const std::int64_t slot : slots) {
    threads.emplace_back([&, slot] {
      const std::vector<std::int64_t> mine = {slot};
      PrefillCall own = call;
      own.state_indices = mine;
      for (const Transport transport : {Transport::kUnary, Transport::kStream, Transport::kAuto}) {
        own.transport = transport;
        if (session_->Prefill(own).ok()) ++calls;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(calls, 12);
  for (const std::int64_t slot : slots) EXPECT_EQ(State(slot), State(slots[0]));
}

// The server still holds the call of an answer that has just arrived when the session's end comes to cancel it.
TEST_F(ClientTest, SessionsMayEndRightBehindAnAnswer) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 40;
  PrefillCall call = Call(4096, {});  // large enough to be computed on another thread than the one that received it
  call.batch = 1;
  call.transport = Transport::kUnary;
  std::atomic<int> answered = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, own = call]() mutable {
      for (int round = 0; round < kRounds; ++round) {
        absl::StatusOr<Session> session = client_->OpenSession("model");
        if (!session.ok()) return;
        const auto slot = session->AcquireSlots(1);
        if (!slot.ok()) return;
        own.state_indices = *slot;
        if (!session->Prefill(own).ok()) return;
        ++answered;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, kThreads * kRounds);
  EXPECT_TRUE(client_->GetServerInfo().ok()) << "the server is gone";
}

TEST_F(ClientTest, IsRenewedWhileItLivesAndEndsWithItsObject) {
  SessionOptions options;
  options.ttl = absl::Milliseconds(300);
  absl::StatusOr<Session> renewed = client_->OpenSession("model", options);
  options.keep_alive = false;
  absl::StatusOr<Session> neglected = client_->OpenSession("model", options);
  ASSERT_TRUE(renewed.ok() && neglected.ok());
  ASSERT_TRUE(neglected->AcquireSlots(1).ok());
  ASSERT_TRUE(renewed->AcquireSlots(1).ok());
  // The neglected one's slot comes back, and the other's stays.
  EXPECT_TRUE(Eventually([this] { return client_->ListSlots("model")->free_slots == 3; }));
  EXPECT_TRUE(renewed->AcquireSlots(1).ok());
  EXPECT_EQ(neglected->AcquireSlots(1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(renewed->status().ok());
  EXPECT_TRUE(renewed->Close().ok());
  EXPECT_EQ(client_->ListSlots("model")->free_slots, 4);
}

TEST_F(ClientTest, ADeadServerIsUnavailable) {
  const std::vector<std::int64_t> slots = session_->AcquireSlots(1).value();
  std::thread killer([this] { server_.process().Signal(SIGKILL); });
  // Wherever the calls stand when the server goes: they end, with an error.
  const absl::Status streamed = session_->Prefill(Call(100'000, slots)).status();
  killer.join();
  server_.process().Wait();
  EXPECT_TRUE(streamed.ok() || streamed.code() == absl::StatusCode::kUnavailable) << streamed;
  const absl::Status after = session_->Prefill(Call(64, slots)).status();
  EXPECT_EQ(after.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(after.message()), HasSubstr(server_.unix_address()));
}

TEST(ClientSocketTest, ASocketThatAnotherUserMayHavePutThereIsNotUsed) {
  const TemporaryDirectory shared;  // like /tmp
  ASSERT_EQ(chmod(shared.path().c_str(), 01777), 0);
  const std::string path = shared.path() + "/socket";
  const absl::Status free = Client::Connect("unix:" + path, {.wait_for_server = true}).status();
  EXPECT_EQ(free.code(), absl::StatusCode::kFailedPrecondition) << "whose it will be is open: " << free;
  EXPECT_THAT(std::string(free.message()), HasSubstr(path + " is not there, and everybody may put it there"));
  const ServerProcess server({"--unix=" + path});
  const absl::StatusOr<Client> client = Client::Connect("unix:" + path);
  ASSERT_TRUE(client.ok()) << client.status();
  if (chown(path.c_str(), 54'321, 54'321) != 0) GTEST_SKIP() << "only root can give files to another user";
  for (const absl::Status& status : {Client::Connect("unix:" + path).status(), CheckHealth("unix:" + path).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path + " belongs to the user 54321, not to this one (0)"));
  }
}

}  // namespace
}  // namespace gdpcache::test
