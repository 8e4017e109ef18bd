// What operators see of a real server: the log of calls, and the admin address.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "tests/integration/ready_line.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"
#include "tests/support/loopback.h"
#include "tests/support/process.h"
#include "tests/support/raw_call.h"
#include "tests/support/server_process.h"

namespace gdpcache::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Has the server say all that it has to say.
std::string LogOf(ServerProcess& server) {
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
  return server.process().Errors();
}

std::vector<nlohmann::json> LinesWith(const std::string& log, const std::string& message) {
  std::vector<nlohmann::json> lines;
  for (const absl::string_view line : absl::StrSplit(log, '\n', absl::SkipEmpty())) {
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(object.is_object()) << line;
    if (object.is_object() && object["message"].get<std::string>().starts_with(message)) lines.push_back(object);
  }
  return lines;
}

/// A prefill of one token of zeros.
v1::PrefillRequest OneToken(const std::string& session, std::int64_t slot) {
  v1::PrefillRequest request;
  request.set_session(session);
  const auto set = [](std::int64_t width, v1::Tensor& tensor) {
    tensor.set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const std::int64_t size : {std::int64_t{1}, std::int64_t{2}, width}) tensor.add_shape(size);
    tensor.set_inline_(std::string(2 * width * sizeof(float), '\0'));
  };
  set(4, *request.mutable_k());
  set(4, *request.mutable_w());
  set(3, *request.mutable_u());
  request.add_cu_seqlens(0);
  request.add_cu_seqlens(1);
  request.add_state_indices(slot);
  request.set_initial_state_source(v1::INITIAL_STATE_SOURCE_SLOT);
  return request;
}

TEST(CallLog, FailedCallsTellWhoseTheyWereInJson) {
  ServerProcess server({"--log-format=json"});
  ControlClient client(Connect(server.tcp_address()));
  client.CreateCache(ControlClient::SmallCache("model"));
  const std::string session = client.OpenSession("model", 0, "an engine");
  v1::PrefillRequest request = OneToken(session, 5);  // not acquired
  request.set_request_id("request-7");
  v1::PrefillResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(client.stub().Prefill(&context, request, &response).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  const auto trailer = context.GetServerTrailingMetadata().find("x-request-id");
  ASSERT_NE(trailer, context.GetServerTrailingMetadata().end());
  EXPECT_EQ(trailer->second, "request-7");

  const std::string log = LogOf(server);
  const std::vector<nlohmann::json> lines = LinesWith(log, "Prefill failed: PERMISSION_DENIED: state_indices[0] is 5");
  ASSERT_EQ(lines.size(), 1u) << log;
  EXPECT_EQ(lines[0]["level"], "info");
  EXPECT_EQ(lines[0]["method"], "Prefill");
  EXPECT_EQ(lines[0]["request"], "request-7");
  EXPECT_EQ(lines[0]["session"], 1);
  EXPECT_EQ(lines[0]["tenant"], "default");
  EXPECT_EQ(lines[0]["client"], "an engine");
  EXPECT_EQ(lines[0]["cache"], "model");
  EXPECT_THAT(lines[0]["peer"].get<std::string>(), StartsWith("ipv4:127.0.0.1:"));
  EXPECT_GE(lines[0]["duration_us"].get<std::int64_t>(), 0);
  EXPECT_THAT(log, Not(HasSubstr(session))) << "a session's id is a secret";
}

TEST(CallLog, RequestIdsOfAnyCharactersComeBackPrintable) {
  ServerProcess server({"--log-format=json"});
  ControlClient client(Connect(server.tcp_address()));
  const auto returned = [&client](const std::string& id) {
    v1::PrefillRequest request;
    request.set_session("none");
    request.set_request_id(id);
    v1::PrefillResponse response;
    grpc::ClientContext context;
    EXPECT_EQ(client.stub().Prefill(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
    const auto trailer = context.GetServerTrailingMetadata().find("x-request-id");
    return trailer == context.GetServerTrailingMetadata().end()
               ? ""
               : std::string(trailer->second.data(), trailer->second.size());
  };
  EXPECT_EQ(returned("a \"b\""), "a \"b\"");
  EXPECT_EQ(returned("a\nb"), "a\\nb");
  EXPECT_EQ(returned(std::string("\0\x1b[2J", 5)), "\\x00\\x1b[2J");
  EXPECT_EQ(returned("caf\u00e9"), "caf\\xc3\\xa9");
  EXPECT_EQ(returned(std::string(1'000, '\x01')).size(), 4 * 128u);

  const std::string log = LogOf(server);
  const std::vector<nlohmann::json> lines = LinesWith(log, "Prefill failed: NOT_FOUND");
  ASSERT_EQ(lines.size(), 5u) << log;
  EXPECT_EQ(lines[1]["request"], "a\nb");
  EXPECT_EQ(lines[3]["request"], "caf\u00e9");
}

TEST(CallLog, SnapshotCallsTellTheirCacheAndTheIdInTheirMetadata) {
  ServerProcess server({"--log-format=json"});
  ControlClient client(Connect(server.tcp_address()));
  client.CreateCache(ControlClient::SmallCache("model"));
  v1::ReadSnapshotRequest request;
  request.set_cache("model");
  request.set_key(std::string(16, 'k'));
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "from-a-proxy");
  const auto stream = client.stub().ReadSnapshot(&context, request);
  v1::ReadSnapshotResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  const std::string log = LogOf(server);
  const std::vector<nlohmann::json> lines = LinesWith(log, "ReadSnapshot failed: NOT_FOUND");
  ASSERT_EQ(lines.size(), 1u) << log;
  EXPECT_EQ(lines[0]["cache"], "model");
  EXPECT_EQ(lines[0]["request"], "from-a-proxy");
}

TEST(CallLog, CallsAboutSlotsAndCachesAreThereToo) {
  ServerProcess server({"--log-format=json"});
  ControlClient client(Connect(server.tcp_address()));
  client.CreateCache(ControlClient::SmallCache("model", 8));
  v1::AcquireSlotsRequest acquire;
  acquire.set_session(client.OpenSession("model", 0, "an engine"));
  acquire.set_count(9);
  EXPECT_FALSE(client.Call(&v1::StateCache::Stub::AcquireSlots, acquire).ok());
  v1::DeleteCacheRequest remove;
  remove.set_name("absent");
  EXPECT_FALSE(client.Call(&v1::StateCache::Stub::DeleteCache, remove).ok());
  v1::LookupPrefixRequest lookup;
  lookup.set_cache("model");
  lookup.add_keys("short");
  EXPECT_FALSE(client.Call(&v1::StateCache::Stub::LookupPrefix, lookup).ok());

  const std::string log = LogOf(server);
  std::vector<nlohmann::json> lines = LinesWith(log, "AcquireSlots failed: RESOURCE_EXHAUSTED: count is 9");
  ASSERT_EQ(lines.size(), 1u) << log;
  EXPECT_EQ(lines[0]["client"], "an engine");
  EXPECT_EQ(lines[0]["cache"], "model");
  EXPECT_EQ(lines[0]["request"].get<std::string>().size(), 16u) << "made up";
  lines = LinesWith(log, "DeleteCache failed: NOT_FOUND");
  ASSERT_EQ(lines.size(), 1u) << log;
  EXPECT_EQ(lines[0]["cache"], "absent");
  lines = LinesWith(log, "LookupPrefix failed: INVALID_ARGUMENT");
  ASSERT_EQ(lines.size(), 1u) << log;
  EXPECT_EQ(lines[0]["cache"], "model");
}

TEST(CallLog, SlowCallsTellWhereTheTimeWent) {
  ServerProcess server({"--slow-call=1ns"});
  ControlClient client(Connect(server.unix_address()));
  client.CreateCache(ControlClient::SmallCache("model"));
  const std::string session = client.OpenSession("model");
  const std::int64_t slot = client.AcquireSlots(session, 1)[0];
  ASSERT_TRUE(client.Call(&v1::StateCache::Stub::Prefill, OneToken(session, slot)).ok());
  const std::string log = LogOf(server);
  EXPECT_THAT(log, HasSubstr(" warning Prefill was slow method=Prefill request="));
  for (const char* field : {" client=test ", " cache=model ", " peer=unix:", " duration_us=", " queue_us=",
                            " stage_in_us=", " compute_us=", " stage_out_us="}) {
    EXPECT_THAT(log, HasSubstr(field));
  }
}

TEST(CallLog, AHostileClientCannotFillTheDisk) {
  constexpr int kCalls = 3'000;
  ServerProcess server;
  ControlClient client(Connect(server.unix_address()));
  for (int n = 0; n < kCalls; ++n) {
    v1::PrefillRequest request;
    request.set_session("nobody's\n" + std::string(1'000, 'x'));
    request.set_request_id(std::string(1'000, 'y'));
    EXPECT_EQ(client.Call(&v1::StateCache::Stub::Prefill, request).error_code(), grpc::StatusCode::NOT_FOUND);
  }
  EXPECT_LT(LogOf(server).size(), kCalls * 200u);
}

TEST(CallLog, WhatProtobufHasToSayOfAHostileClientIsInItToo) {
  constexpr int kCalls = 1'000;
  ServerProcess server({"--log-format=json"});
  const auto channel = Connect(server.tcp_address());
  for (int n = 0; n < kCalls; ++n) {  // a session's id that is no UTF-8
    EXPECT_FALSE(CallRaw(channel, "/gdpcache.v1.StateCache/KeepAlive", "\x0a\x03\xff\xfe\x0a").status.ok());
  }
  const std::vector<nlohmann::json> lines = LinesWith(LogOf(server), "protobuf: ");
  EXPECT_GE(lines.size(), 1u);
  EXPECT_LT(lines.size(), kCalls / 2u);
}

TEST(Log, HasWhatGrpcSaysInTheSameForm) {
  setenv("GRPC_VERBOSITY", "debug", 1);
  ServerProcess server({"--log-format=json", "--log-level=debug"});
  unsetenv("GRPC_VERBOSITY");
  const std::string log = LogOf(server);
  EXPECT_FALSE(LinesWith(log, "gRPC: ").empty()) << log;
}

constexpr char kGetServers[] = "/grpc.channelz.v1.Channelz/GetServers";

std::string AdminAddressOf(const ServerProcess& server) { return ReadyValue(server, "admin"); }

TEST(AdminAddress, ServesChannelzAndHealthAndNothingElse) {
  ServerProcess server({"--admin=127.0.0.1:0"});
  const auto admin = Connect(AdminAddressOf(server));
  const RawAnswer servers = CallRaw(admin, kGetServers, "");
  EXPECT_TRUE(servers.status.ok()) << servers.status.error_message();
  EXPECT_THAT(servers.bytes, HasSubstr("listener " + server.unix_address()));
  EXPECT_EQ(CheckHealth(admin, ""), 1);
  EXPECT_EQ(CheckHealth(admin, "gdpcache.v1.StateCache"), 1);
  EXPECT_EQ(CallRaw(admin, "/gdpcache.v1.StateCache/GetServerInfo", "").status.error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST(AdminAddress, IsOffByDefaultAndClientsGetNoChannelz) {
  const ServerProcess server;
  EXPECT_EQ(AdminAddressOf(server), "");
  EXPECT_EQ(CallRaw(Connect(server.tcp_address()), kGetServers, "").status.error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  const ServerProcess with({"--admin=127.0.0.1:0"});
  EXPECT_EQ(CallRaw(Connect(with.tcp_address()), kGetServers, "").status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST(AdminAddress, ATakenPortIsAClearError) {
  const ServerProcess server({"--admin=127.0.0.1:0"});
  const ProgramResult second = RunProgram(
      ServerProgram(), {"--backend=cpu", "--listen=127.0.0.1:0", "--unix=", "--admin=" + AdminAddressOf(server)});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.errors, HasSubstr("cannot listen on " + AdminAddressOf(server)));
}

/// An idle connection.
class RawConnection {
 public:
  explicit RawConnection(const std::string& address) : descriptor_(ConnectRaw(address)) { EXPECT_GE(descriptor_, 0); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;
  ~RawConnection() { close(descriptor_); }

  /// Reads to the end, which only comes when the server ends it.
  void WaitForEnd() const {
    std::array<char, 256> bytes;
    while (read(descriptor_, bytes.data(), bytes.size()) > 0) {
    }
  }

 private:
  const int descriptor_;
};

TEST(Connections, BeyondTheFileDescriptorsAreRefusedAndTheServerGoesOnListening) {
  Process server("/bin/sh", {"-c", R"(ulimit -n 100 && exec "$0" "$@")", ServerProgram(), "--backend=cpu",
                             "--listen=127.0.0.1:0", "--unix="});
  const std::string ready = server.ReadLine().value_or("");
  const std::string address_is = "address=127.0.0.1:";
  const std::size_t at = ready.find(address_is);
  ASSERT_NE(at, std::string::npos) << server.Errors();
  const std::string address = "127.0.0.1:" + std::to_string(std::stoi(ready.substr(at + address_is.size())));
  {
    std::list<RawConnection> connections;
    for (int n = 0; n < 200; ++n) connections.emplace_back(address);
    connections.back().WaitForEnd();
  }
  EXPECT_TRUE(Eventually([&address] { return CheckHealth(Connect(address), "") == 1; }));
  EXPECT_THAT(server.Errors(), HasSubstr("connections are refused"));
}

/// The numbers of a process's descriptors.
std::set<int> DescriptorsOf(pid_t process) {
  std::set<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", process, "/fd"))) {
    numbers.insert(std::stoi(entry.path().filename()));
  }
  return numbers;
}

// As clients can have it who hand over memory that they do not register then.
TEST(Connections, AreRefusedWhileThereIsNoFileDescriptorAndTheServerGoesOnListening) {
  ServerProcess server;
  const pid_t process = server.process().pid();
  std::list<RawConnection> connections;
  std::set<int> numbers;
  ASSERT_TRUE(Eventually([&] {
    connections.emplace_back(server.tcp_address());  // takes the lowest number that is free
    numbers = DescriptorsOf(process);
    return *numbers.rbegin() + 1 == std::ssize(numbers);
  }));
  rlimit before = {};
  ASSERT_EQ(prlimit(process, RLIMIT_NOFILE, nullptr, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = numbers.size();
  ASSERT_EQ(prlimit(process, RLIMIT_NOFILE, &limit, nullptr), 0);
  for (int n = 0; n < 8; ++n) connections.emplace_back(server.tcp_address());  // more than may have become free
  connections.back().WaitForEnd();
  ASSERT_EQ(prlimit(process, RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_EQ(CheckHealth(Connect(server.tcp_address()), ""), 1);
  EXPECT_THAT(LogOf(server), HasSubstr("connections are refused: there is no file descriptor left"));
}

TEST(Connections, HaveSoManyCallsAtATime) {
  constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";  // goes on until its client has enough
  const std::string serving = "\x08\x01";
  const ServerProcess server({"--max-connection-calls=2"});
  for (const std::string& address : {server.tcp_address(), server.unix_address()}) {
    const auto channel = Connect(address);
    std::list<RawStream> watches;
    for (int n = 0; n < 2; ++n) {
      watches.emplace_back(channel, kWatch, "");
      EXPECT_EQ(watches.back().Read(), serving);
    }
    const auto ask = [](const std::shared_ptr<grpc::Channel>& on, std::chrono::milliseconds deadline) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + deadline);
      v1::GetServerInfoResponse response;
      return v1::StateCache::NewStub(on)->GetServerInfo(&context, {}, &response).error_code();
    };
    EXPECT_EQ(ask(channel, std::chrono::milliseconds(300)), grpc::StatusCode::DEADLINE_EXCEEDED)
        << "it waits at its client";
    EXPECT_EQ(ask(Connect(address), std::chrono::minutes(1)), grpc::StatusCode::OK) << "another connection";
    watches.pop_back();
    EXPECT_EQ(ask(channel, std::chrono::minutes(1)), grpc::StatusCode::OK) << "there is room";
  }
}

TEST(BuildInformation, IsTheSameEverywhere) {
  const ServerProcess server;
  ControlClient client(Connect(server.tcp_address()));
  const v1::GetServerInfoResponse info = client.GetServerInfo();
  const std::string version = RunProgram(ServerProgram(), {"--version"}).output;
  EXPECT_THAT(version, StartsWith("gdpcached " + info.version() + "\ncommit " + info.build().commit() + "\n" +
                                  info.build().compiler() + "\n"));
  ASSERT_GT(info.build().libraries_size(), 0);
  for (const std::string& library : info.build().libraries()) EXPECT_THAT(version, HasSubstr("\n" + library + "\n"));
}

TEST(Limits, SlotsOfATenantAreCountedThroughAcquireReleaseAndTheEndOfSessions) {
  const ServerProcess server({"--max-tenant-slots=5"});
  ControlClient client(Connect(server.tcp_address()));
  client.CreateCache(ControlClient::SmallCache("one"));
  client.CreateCache(ControlClient::SmallCache("two"));
  const std::string first = client.OpenSession("one");
  const std::string second = client.OpenSession("two");
  const std::vector<std::int64_t> slots = client.AcquireSlots(first, 3);
  const auto acquire = [&client](const std::string& session, std::int64_t count) {
    v1::AcquireSlotsRequest request;
    request.set_session(session);
    request.set_count(count);
    return client.Call(&v1::StateCache::Stub::AcquireSlots, request);
  };
  const grpc::Status refused = acquire(second, 3);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(), "count is 3; the tenant holds 3 of the 5 slots that it may hold");
  EXPECT_EQ(acquire(second, -1).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::ReleaseSlotsRequest release;
  release.set_session(first);
  release.add_slots(slots[0]);
  ASSERT_TRUE(client.Call(&v1::StateCache::Stub::ReleaseSlots, release).ok());
  EXPECT_TRUE(acquire(second, 3).ok());
  v1::CloseSessionRequest close;
  close.set_session(first);
  ASSERT_TRUE(client.Call(&v1::StateCache::Stub::CloseSession, close).ok());
  EXPECT_TRUE(acquire(second, 2).ok());
  EXPECT_EQ(acquire(second, 1).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace gdpcache::test
