// Calls whose clients announce a message and never send the whole of it: gRPC keeps what has come, and the server keeps
// that in bounds.

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/access_support.h"
#include "tests/integration/ready_line.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"
#include "tests/support/half_sent_calls.h"
#include "tests/support/raw_call.h"
#include "tests/support/server_process.h"

namespace gdpcache {
namespace {

using test::HalfSentCalls;
using ::testing::HasSubstr;

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
constexpr std::size_t kUnfinished = 16;  // calls to the health service that may be
constexpr std::size_t kUnread = 64;      // of them that may have an answer that their client does not take

TEST(UnfinishedCalls, ToTheHealthServiceGiveWayToNewOnes) {
  SecureServer server(SecureServer::Transport::kLoopback);
  const std::string& address = server.server().tcp_address();
  const auto probe = test::Connect(address);
  HalfSentCalls calls(address);
  HalfSentCalls others(address);
  for (int n = 0; n < 20; ++n) {
    calls.Begin("/grpc.health.v1.Health/Check", 2 * kMebibyte, kMebibyte);
    others.Begin("/grpc.health.v1.Health/Watch", 2 * kMebibyte, kMebibyte);
    calls.Send(absl::ZeroDuration());
    others.Send(absl::ZeroDuration());
    ASSERT_EQ(test::CheckHealth(probe, ""), 1) << "a probe is answered all the time";
  }
  EXPECT_TRUE(test::Eventually([&] {
    calls.Send(absl::Milliseconds(10));
    others.Send(absl::Milliseconds(10));
    return calls.open() + others.open() <= kUnfinished;
  })) << calls.open()
      << " and " << others.open();
  EXPECT_GT(calls.open() + others.open(), 0u) << "it takes more to end them all";
  EXPECT_EQ(test::CheckHealth(probe, ""), 1);
}

TEST(UnfinishedCalls, ToTheHealthServiceCannotBeHeldOpenByRefusingTheAnswer) {
  SecureServer server(SecureServer::Transport::kLoopback);
  for (const char* method : {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}) {
    HalfSentCalls calls(server.server().tcp_address(), HalfSentCalls::Answers::kRefused);
    for (std::size_t n = 0; n < 2 * (kUnfinished + kUnread); ++n) {
      calls.Begin(method, 0, 64);  // an empty message, and more behind it
      calls.Send(absl::ZeroDuration());
      calls.Send(absl::Milliseconds(5));  // until it is read, lest the next ones push it out before
    }
    EXPECT_TRUE(test::Eventually([&] {
      calls.Send(absl::Milliseconds(10));
      return calls.open() <= kUnfinished + kUnread;
    })) << method
        << ": " << calls.open();
    EXPECT_TRUE(calls.connected());
    EXPECT_EQ(test::CheckHealth(test::Connect(server.server().tcp_address()), ""), 1);
  }
}

TEST(UnfinishedCalls, ToReflectionTakeSoManyThreads) {
  const test::ServerProcess server;
  constexpr std::size_t kThreads = 64;
  HalfSentCalls calls(server.tcp_address());
  for (std::size_t n = 0; n < 4 * kThreads; ++n) {
    calls.Begin("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kMebibyte, 1);
  }
  EXPECT_TRUE(test::Eventually([&] {
    calls.Send(absl::Milliseconds(10));
    return calls.open() <= kThreads;
  })) << calls.open();
  EXPECT_GT(calls.open(), 0u) << "there is room for some";
  test::ControlClient client(test::Connect(server.tcp_address()));
  client.CreateCache(test::ControlClient::SmallCache("a"));
}

TEST(UnfinishedCalls, ToReflectionLeaveTheAdminAddressAlone) {
  const test::ServerProcess server({"--admin=127.0.0.1:0"});
  HalfSentCalls calls(server.tcp_address());
  for (int n = 0; n < 200; ++n) {
    calls.Begin("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kMebibyte, 1);
  }
  ASSERT_TRUE(test::Eventually([&] {
    calls.Send(absl::Milliseconds(10));
    return calls.open() < 100;
  })) << "there is a thread for no more of them";
  const test::RawAnswer answer =
      test::CallRaw(test::Connect(test::ReadyValue(server, "admin")), "/grpc.channelz.v1.Channelz/GetServers", "");
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
}

TEST(UnfinishedCalls, WithoutCredentialsAreEndedBeforeTheirMessageIsTakenIn) {
  SecureServer server(SecureServer::Transport::kLoopback);
  HalfSentCalls calls(server.server().tcp_address());
  for (const char* method : {"/gdpcache.v1.StateCache/Prefill", "/gdpcache.v1.StateCache/PrefillStream",
                             "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/no/such"}) {
    calls.Begin(method, 2 * kMebibyte, kMebibyte);
  }
  EXPECT_TRUE(test::Eventually([&] {
    calls.Send(absl::Milliseconds(10));
    return calls.open() == 0;
  })) << calls.open();
}

// One thread takes in what a call says while another one ends it: what they share must be there before. Where the
// server is built with ThreadSanitizer it tells.
TEST(UnfinishedCalls, MayBeGivenUpWhileTheyAreTakenIn) {
  SecureServer server(SecureServer::Transport::kLoopback);
  const auto channel = test::Connect(server.server().tcp_address());
  const auto call = [&](const char* method, const google::protobuf::Message& request,
                        google::protobuf::Message& response) {
    const test::RawAnswer answer = test::CallRaw(channel, absl::StrCat("/gdpcache.v1.StateCache/", method),
                                                 request.SerializeAsString(), kEngine.metadata());
    return answer.status.ok() && response.ParseFromString(answer.bytes);
  };
  v1::CreateCacheResponse created;
  ASSERT_TRUE(call("CreateCache", test::ControlClient::SmallCache("model"), created));
  v1::OpenSessionRequest open;
  open.set_cache("model");
  v1::OpenSessionResponse opened;
  ASSERT_TRUE(call("OpenSession", open, opened));

  v1::WriteSlotsFrame slots;
  slots.mutable_header()->set_session("none");
  v1::PrefillFrame prefill;
  prefill.mutable_request()->set_session("none");
  v1::WriteSnapshotRequest snapshot;
  snapshot.mutable_header()->set_cache("none");
  v1::RegisterSystemMemoryRequest memory;
  memory.set_session(opened.session());
  memory.set_name("memory");
  const std::pair<const char*, std::string> requests[] = {{"WriteSlots", slots.SerializeAsString()},
                                                          {"PrefillStream", prefill.SerializeAsString()},
                                                          {"WriteSnapshot", snapshot.SerializeAsString()},
                                                          {"RegisterSystemMemory", memory.SerializeAsString()}};
  for (int round = 0; round < 20; ++round) {
    HalfSentCalls calls(server.server().tcp_address());
    for (int n = 0; n < 20; ++n) {
      for (const auto& [method, request] : requests) {
        calls.BeginWhole(absl::StrCat("/gdpcache.v1.StateCache/", method), request, kEngine.metadata());
      }
    }
    ASSERT_EQ(test::CheckHealth(channel, ""), 1);  // meanwhile the server begins to read
    calls.Send(absl::ZeroDuration());
    calls.Reset();
  }
  v1::CloseSessionRequest close;
  close.set_session(opened.session());
  v1::CloseSessionResponse closed;
  EXPECT_TRUE(call("CloseSession", close, closed));
}

// A message of 16 MiB may become 16 GiB.
TEST(UnfinishedCalls, ThatAnnounceCompressedMessagesAreEndedBeforeTheyAreTakenIn) {
  const test::ServerProcess server({"--admin=127.0.0.1:0"});
  for (const std::string& address : {server.tcp_address(), test::ReadyValue(server, "admin")}) {
    HalfSentCalls calls(address);
    for (const char* encoding : {"gzip", "deflate"}) {
      for (const char* method :
           {"/grpc.health.v1.Health/Check", "/gdpcache.v1.StateCache/Prefill", "/gdpcache.v1.StateCache/WriteSlots",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
        calls.Begin(method, 1'000, 100, {{"grpc-encoding", encoding}});
      }
    }
    EXPECT_TRUE(test::Eventually([&] {
      calls.Send(absl::Milliseconds(10));
      return calls.open() == 0;
    })) << calls.open();
    EXPECT_TRUE(calls.connected());
  }
}

TEST(UnfinishedCalls, OfWhateverKindTakeNoMoreThanGrpcMayKeep) {
  const test::ServerProcess server({"--rpc-memory=64MiB"});
  constexpr std::int64_t kSent = 15 * kMebibyte;
  constexpr int kCalls = 30;
  HalfSentCalls calls(server.tcp_address());
  for (int n = 0; n < kCalls; ++n) {
    calls.Begin(n % 2 == 0 ? "/gdpcache.v1.StateCache/Prefill" : "/gdpcache.v1.StateCache/CopySlots", 16'000'000,
                kSent);
  }
  calls.Send();
  EXPECT_LT(calls.sent(), 128 * kMebibyte) << "is kept of " << kCalls << " calls";
  EXPECT_TRUE(calls.connected());
  EXPECT_TRUE(test::Eventually([&] { return test::CheckHealth(test::Connect(server.tcp_address()), "") == 1; }));
  test::ControlClient client(test::Connect(server.tcp_address()));
  client.CreateCache(test::ControlClient::SmallCache("a"));
}

TEST(UnfinishedCalls, HaveAllTheRoomThereIs) {
  const test::ServerProcess server({"--rpc-memory=256MiB"});
  HalfSentCalls calls(server.tcp_address());
  for (int n = 0; n < 10; ++n) calls.Begin("/gdpcache.v1.StateCache/Prefill", 16'000'000, 15 * kMebibyte);
  calls.Send();
  EXPECT_EQ(calls.open(), 10u);
  EXPECT_EQ(calls.sent(), 150 * kMebibyte);
}

TEST(UntakenAnswers, CountAsStagingMemory) {
  const test::ServerProcess server({"--staging-memory=4MiB"});
  const auto channel = test::Connect(server.tcp_address());
  test::ControlClient client(channel);
  constexpr std::int64_t kSlots = 4'000;
  client.CreateCache(test::ControlClient::SmallCache("a", kSlots));
  const std::string session = client.OpenSession("a");
  client.AcquireSlots(session, kSlots);
  constexpr char kListSlots[] = "/gdpcache.v1.StateCache/ListSlots";
  const std::string request =
      "\x0a\x01"
      "a";
  std::optional<HalfSentCalls> calls(std::in_place, server.tcp_address(), HalfSentCalls::Answers::kRefused);
  grpc::Status refused;
  ASSERT_TRUE(test::Eventually([&] {
    calls->BeginWhole(kListSlots, request);
    calls->Send(absl::Milliseconds(5));
    return !(refused = test::CallRaw(channel, kListSlots, request).status).ok();
  }));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("bytes of staging memory"));
  const std::int64_t used = client.GetServerInfo().staging_used_bytes();  // is answered all the time
  EXPECT_GT(used, 2 * kMebibyte);
  EXPECT_LE(used, 4 * kMebibyte);
  calls.reset();
  EXPECT_TRUE(test::Eventually([&] { return test::CallRaw(channel, kListSlots, request).status.ok(); }));
  EXPECT_TRUE(test::Eventually([&] { return client.GetServerInfo().staging_used_bytes() == 0; }));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what has been freed
TEST(LargeAnswers, GiveTheirMemoryBackToTheSystem) {
  test::ServerProcess server;
  const auto channel = test::Connect(server.tcp_address());
  test::ControlClient client(channel);
  constexpr std::int64_t kSlots = 200'000;
  client.CreateCache(test::ControlClient::SmallCache("a", kSlots));
  client.AcquireSlots(client.OpenSession("a", 0, std::string(128, 'c')), kSlots);
  const auto memory = [&server] {
    std::int64_t total = 0;
    std::int64_t resident = 0;
    std::ifstream(absl::StrCat("/proc/", server.process().pid(), "/statm")) >> total >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  };
  const std::int64_t before = memory();
  const test::RawAnswer answer = test::CallRaw(channel, "/gdpcache.v1.StateCache/ListSlots",
                                               "\x0a\x01"
                                               "a");
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_GT(answer.bytes.size(), 128u * kSlots);
  EXPECT_TRUE(test::Eventually([&] { return memory() < before + 32 * kMebibyte; })) << memory() - before;
}
#endif

// Java's "never" is in 292 years: as nanoseconds since 1970 that does not fit.
TEST(Deadlines, OfCenturiesHaveNotPassed) {
  const test::ServerProcess server;
  test::ControlClient client(test::Connect(server.tcp_address()));
  client.CreateCache(test::ControlClient::SmallCache("a"));
  v1::ResetSlotsRequest reset;
  reset.set_session(client.OpenSession("a"));
  reset.add_slots(client.AcquireSlots(reset.session(), 1)[0]);
  v1::ReadSlotsRequest read;
  read.set_session(reset.session());
  read.add_slots(reset.slots(0));
  HalfSentCalls calls(server.tcp_address());
  std::size_t answers = 0;
  for (const char* timeout : {"1H", "2562047H", "99999999H"}) {
    const std::vector<std::pair<std::string, std::string>> metadata = {{"grpc-timeout", timeout}};
    for (const auto& [method, request] :
         {std::pair("ResetSlots", reset.SerializeAsString()), std::pair("ReadSlots", read.SerializeAsString())}) {
      calls.BeginWhole(absl::StrCat("/gdpcache.v1.StateCache/", method), request, metadata);
      EXPECT_TRUE(test::Eventually([&] {
        calls.Send(absl::Milliseconds(5));
        return calls.open() == 0;
      }));
      EXPECT_GT(calls.answers(), answers) << method << " " << timeout;  // an error has none
      answers = calls.answers();
    }
  }
}

TEST(Health, AnswersWhatIsNotItsProtocolWithAnError) {
  const test::ServerProcess server;
  const auto channel = test::Connect(server.tcp_address());
  for (const char* method : {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}) {
    for (const std::string& bytes :
         {std::string("\x07"), std::string("\x0a\x7f"), "\x0a\xc9\x01" + std::string(201, 's')}) {
      EXPECT_EQ(test::CallRaw(channel, method, bytes).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    }
    EXPECT_NE(test::CallRaw(channel, method, std::string(17 << 20, 'x')).status.error_code(), grpc::StatusCode::OK);
  }
  EXPECT_EQ(test::CallRaw(channel, "/grpc.health.v1.Health/Check", "\x0a\x01x").status.error_code(),
            grpc::StatusCode::NOT_FOUND);
  test::RawStream unknown(channel, "/grpc.health.v1.Health/Watch", "\x0a\x01x");
  EXPECT_EQ(unknown.Read(), std::string("\x08\x03")) << "SERVICE_UNKNOWN";
}

}  // namespace
}  // namespace gdpcache
