// Memory shared with a real server, by clients that behave and by others.

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/library/memfd.h"
#include "gdpcache/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"
#include "tests/support/server_process.h"

namespace gdpcache::test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using Stub = v1::StateCache::Stub;

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kDim = 32;
constexpr std::int64_t kTokens = 128;
constexpr std::int64_t kBytes = kTokens * kHeads * kDim * 4;  // of k, w, u and v_new
constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

class SharedMemoryTest : public ::testing::Test {
 protected:
  SharedMemoryTest() : client_(Client::Connect(server_.unix_address())) {
    v1::CreateCacheRequest request = ControlClient::SmallCache("model", 8);
    request.mutable_geometry()->set_heads(kHeads);
    request.mutable_geometry()->set_key_dim(kDim);
    request.mutable_geometry()->set_value_dim(kDim);
    control_.CreateCache(request);
    session_ = client_->OpenSession("model");
    slots_ = session_->AcquireSlots(4).value();
  }

  void TearDown() override {
    EXPECT_TRUE(session_->status().ok());
    EXPECT_EQ(control_.GetServerInfo().version().empty(), false) << "the server must live";
  }

  /// A sealed memfd, registered in `session` as `name`.
  grpc::Status Register(const std::string& session, const std::string& name, std::uint64_t size,
                        std::uint64_t offset = 0) {
    return Register(*client::Memfd::Create(1 << 20), session, name, size, offset);
  }

  grpc::Status Register(const client::Memfd& memory, const std::string& session, const std::string& name,
                        std::uint64_t size, std::uint64_t offset = 0) {
    v1::RegisterSystemMemoryRequest request;
    request.set_session(session);
    request.set_name(name);
    request.set_token(memory.HandOver(control_.GetServerInfo().descriptor_socket()).value());
    request.set_offset(offset);
    request.set_size(size);
    return control_.Call(&Stub::RegisterSystemMemory, request);
  }

  grpc::Status Unregister(const std::string& session, const std::string& name) {
    v1::UnregisterMemoryRequest request;
    request.set_session(session);
    request.set_name(name);
    return control_.Call(&Stub::UnregisterMemory, request);
  }

  v1::ListSharedMemoryResponse List(const std::string& session) {
    v1::ListSharedMemoryRequest request;
    request.set_session(session);
    v1::ListSharedMemoryResponse response;
    EXPECT_TRUE(control_.Call(&Stub::ListSharedMemory, request, response).ok());
    return response;
  }

  /// A call whose k, w and u are one place of region "r".
  v1::PrefillRequest Request(std::int64_t tokens = kTokens) {
    v1::PrefillRequest request;
    request.set_session(session_->id());
    for (v1::Tensor* tensor : {request.mutable_k(), request.mutable_w(), request.mutable_u()}) {
      tensor->set_dtype(v1::DATA_TYPE_FLOAT32);
      for (const std::int64_t size : {tokens, kHeads, kDim}) tensor->add_shape(size);
      tensor->mutable_shared_memory()->set_region("r");
    }
    request.add_state_indices(slots_[0]);
    request.set_save_new_value(true);
    return request;
  }

  grpc::Status Prefill(const v1::PrefillRequest& request) { return control_.Call(&Stub::Prefill, request); }

  /// Everything of all four slots.
  std::string Contents() {
    const absl::StatusOr<SlotContents> contents = session_->ReadSlots(slots_);
    EXPECT_TRUE(contents.ok()) << contents.status();
    return std::string(reinterpret_cast<const char*>(contents->state.data()),
                       static_cast<std::size_t>(contents->state.byte_size()));
  }

  int ServerDescriptors() {
    int count = 0;
    DIR* directory = opendir(absl::StrCat("/proc/", server_.process().pid(), "/fd").c_str());
    while (readdir(directory) != nullptr) ++count;
    closedir(directory);
    return count;
  }

  /// Memfds that the server has mapped.
  int ServerMappings() {
    std::ifstream maps(absl::StrCat("/proc/", server_.process().pid(), "/maps"));
    int count = 0;
    for (std::string line; std::getline(maps, line);) count += absl::StrContains(line, "memfd:") ? 1 : 0;
    return count;
  }

  ServerProcess server_;
  ControlClient control_{Connect(server_.unix_address())};
  absl::StatusOr<Client> client_;
  absl::StatusOr<Session> session_{absl::UnknownError("")};
  std::vector<std::int64_t> slots_;
};

TEST_F(SharedMemoryTest, GivesTheResultsOfAnInlineCallBitForBitWhereTheyWereWanted) {
  absl::StatusOr<SharedMemory> memory = session_->ShareMemory(6 * kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  auto* const values = reinterpret_cast<float*>(memory->data());
  for (std::int64_t i = 0; i < 3 * kBytes / 4; ++i) values[i] = 0.01F * static_cast<float>(i % 17 - 8);
  PrefillCall call;
  const std::vector<std::int64_t> shape = {kTokens, kHeads, kDim};
  call.k = {DataType::kFloat32, shape, memory->data()};
  call.w = {DataType::kFloat32, shape, memory->data() + kBytes};
  call.u = {DataType::kFloat32, shape, memory->data() + 2 * kBytes};
  call.save_new_value = true;
  call.states = States::kAll;
  call.output_final_state = true;
  const std::vector<std::int64_t> inline_slot = {slots_[0]};
  call.state_indices = inline_slot;
  call.transport = Transport::kUnary;
  const absl::StatusOr<PrefillResult> wanted = session_->Prefill(call);
  ASSERT_TRUE(wanted.ok()) << wanted.status();

  const std::vector<std::int64_t> shared_slot = {slots_[1]};
  call.state_indices = shared_slot;
  call.transport = Transport::kSharedMemory;
  EXPECT_THAT(session_->Prefill(call).status().message(), HasSubstr("outputs.h does not lie"));
  std::byte* const results = memory->data() + 3 * kBytes;
  call.outputs.v_new = Tensor{DataType::kFloat32, shape, results};
  call.outputs.h = Tensor{DataType::kFloat32, {2, kHeads, kDim, kDim}, results + kBytes};
  call.outputs.final_state = Tensor{DataType::kFloat32, {1, kHeads, kDim, kDim}, results + 2 * kBytes};
  const absl::StatusOr<PrefillResult> shared = session_->Prefill(call);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(shared->transport, Transport::kSharedMemory);
  EXPECT_EQ(shared->positions, wanted->positions);
  const auto equal = [](const std::byte* got, const OwnedTensor& tensor) {
    return tensor.byte_size() > 0 && std::memcmp(got, tensor.data(), static_cast<std::size_t>(tensor.byte_size())) == 0;
  };
  EXPECT_TRUE(equal(results, wanted->v_new));
  EXPECT_TRUE(equal(results + kBytes, wanted->h));
  EXPECT_TRUE(equal(results + 2 * kBytes, wanted->final_state));
  const std::string states = Contents();
  const std::size_t slot = states.size() / 4;
  EXPECT_EQ(states.substr(0, slot), states.substr(slot, slot));
  EXPECT_EQ(memory->Release(), absl::OkStatus());
  EXPECT_EQ(List(session_->id()).regions_size(), 0);
}

TEST_F(SharedMemoryTest, TensorsInsideAndOutsideMixAndSizeDecidesAboutTheOthersAlone) {
  constexpr std::int64_t kLong = 16384;  // 4 MiB of each in float32: too much for the message
  constexpr std::int64_t kLongBytes = kLong * kHeads * kDim * 4;
  absl::StatusOr<SharedMemory> memory = session_->ShareMemory(4 * kLongBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::memset(memory->data(), 0x3c, static_cast<std::size_t>(4 * kLongBytes));
  const std::vector<std::int64_t> shape = {kLong, kHeads, kDim};
  PrefillCall call;
  call.k = {DataType::kFloat32, shape, memory->data()};
  call.w = {DataType::kFloat32, shape, memory->data() + kLongBytes};
  call.u = {DataType::kFloat32, shape, memory->data() + 2 * kLongBytes};
  const std::vector<float> decay(static_cast<std::size_t>(kLong * kHeads), 0.0F);
  call.g = ConstTensor{DataType::kFloat32, {kLong, kHeads}, decay.data()};
  const std::vector<std::int64_t> slot = {slots_[0]};
  call.state_indices = slot;
  call.output_final_state = true;
  call.save_new_value = true;
  call.outputs.v_new = Tensor{DataType::kFloat32, shape, memory->data() + 3 * kLongBytes};
  absl::StatusOr<PrefillResult> result = session_->Prefill(call);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kSharedMemory);
  EXPECT_GT(result->final_state.byte_size(), 0);
  call.outputs = {};
  result = session_->Prefill(call);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kStream) << "4 MiB of v_new have to travel";
}

TEST_F(SharedMemoryTest, PlacesThatAreNotTheCallsAreRefusedAndChangeNothing) {
  ASSERT_TRUE(Register(session_->id(), "r", 4 * kBytes).ok());
  ASSERT_TRUE(Prefill(Request()).ok());
  const std::string before = Contents();
  const auto refused = [&](const v1::PrefillRequest& request, grpc::StatusCode code, const std::string& message) {
    const grpc::Status status = Prefill(request);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(message));
  };
  for (const std::uint64_t offset : {std::uint64_t{3 * kBytes + 4}, kMax - 3, kMax - kBytes + 1, kMax / 2 + 1}) {
    v1::PrefillRequest request = Request();
    request.mutable_u()->mutable_shared_memory()->set_offset(offset);
    refused(request, grpc::StatusCode::INVALID_ARGUMENT, absl::StrCat("u.shared_memory.offset is ", offset));
    request = Request();
    *request.mutable_outputs()->mutable_v_new() = Request().u().shared_memory();
    request.mutable_outputs()->mutable_v_new()->set_offset(offset);
    refused(request, grpc::StatusCode::INVALID_ARGUMENT, absl::StrCat("outputs.v_new.offset is ", offset));
  }
  v1::PrefillRequest request = Request();
  request.mutable_w()->mutable_shared_memory()->set_offset(2);
  refused(request, grpc::StatusCode::INVALID_ARGUMENT, "w.shared_memory.offset is 2; it must be a multiple of");
  request = Request();
  request.mutable_k()->set_shape(0, std::int64_t{1} << 50);
  refused(request, grpc::StatusCode::INVALID_ARGUMENT,
          "k.shared_memory.offset is 0 and the tensor has 288230376151711744");
  request = Request();
  request.mutable_k()->mutable_shared_memory()->set_region("s");
  refused(request, grpc::StatusCode::NOT_FOUND, "no region or event 's'");
  request = Request();
  request.set_ready_event("r");
  refused(request, grpc::StatusCode::INVALID_ARGUMENT, "ready_event is memory; it must be an event");
  request = Request();
  *request.mutable_outputs()->mutable_h() = Request().u().shared_memory();
  refused(request, grpc::StatusCode::INVALID_ARGUMENT, "outputs.h is given, but states.mode is NONE");
  request = Request();
  *request.mutable_outputs()->mutable_v_new() = Request().u().shared_memory();
  request.mutable_outputs()->mutable_v_new()->set_offset(kBytes - 4);
  refused(request, grpc::StatusCode::INVALID_ARGUMENT, "they overlap");
  request.mutable_outputs()->mutable_v_new()->set_offset(kBytes);
  request.set_output_final_state(true);
  *request.mutable_outputs()->mutable_final_state() = request.outputs().v_new();
  refused(request, grpc::StatusCode::INVALID_ARGUMENT, "they overlap");

  // A flag is a word like a result's.
  const auto flag = [&](std::uint64_t offset, const std::string& region = "r") {
    request = Request();
    request.mutable_outputs()->mutable_v_new()->set_region("r");
    request.mutable_outputs()->mutable_v_new()->set_offset(2 * kBytes);
    request.mutable_done_flag()->mutable_place()->set_region(region);
    request.mutable_done_flag()->mutable_place()->set_offset(offset);
    request.mutable_done_flag()->set_value(1);
    return request;
  };
  refused(flag(kBytes + 2), grpc::StatusCode::INVALID_ARGUMENT, "done_flag.place.offset is ");
  for (const std::uint64_t offset : {std::uint64_t{4 * kBytes}, kMax - 3}) {
    refused(flag(offset), grpc::StatusCode::INVALID_ARGUMENT, absl::StrCat("done_flag.place.offset is ", offset));
  }
  refused(flag(0, "s"), grpc::StatusCode::NOT_FOUND, "no region or event 's'");
  refused(flag(0, ""), grpc::StatusCode::NOT_FOUND, "no region or event ''");
  refused(flag(kBytes - 4), grpc::StatusCode::INVALID_ARGUMENT, "done_flag has 4 bytes at offset");
  refused(flag(3 * kBytes - 4), grpc::StatusCode::INVALID_ARGUMENT, "outputs.v_new has");
  EXPECT_EQ(Contents(), before);
}

TEST_F(SharedMemoryTest, TheFlagOfACallIsSetWhenItHasSucceededAndNotElse) {
  EXPECT_TRUE(control_.GetServerInfo().done_flags());
  const absl::StatusOr<client::Memfd> memory = client::Memfd::Create(4 * kBytes + 4096);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_TRUE(Register(*memory, session_->id(), "r", static_cast<std::uint64_t>(memory->size())).ok());
  std::atomic_ref flag(*reinterpret_cast<std::uint32_t*>(memory->data() + 4 * kBytes));
  v1::PrefillRequest request = Request();
  request.mutable_done_flag()->mutable_place()->set_region("r");
  request.mutable_done_flag()->mutable_place()->set_offset(4 * kBytes);
  request.mutable_done_flag()->set_value(4711);
  request.add_expected_positions(kTokens);
  EXPECT_EQ(Prefill(request).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(flag.load(), 0);
  request.clear_expected_positions();
  EXPECT_TRUE(Prefill(request).ok());
  EXPECT_EQ(flag.load(), 4711);
}

TEST_F(SharedMemoryTest, ARegionIsItsOwnSessionsOnly) {
  const std::string other = control_.OpenSession("model");
  ASSERT_TRUE(Register(other, "r", kBytes).ok());
  EXPECT_EQ(Prefill(Request()).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Unregister(session_->id(), "r").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(List(session_->id()).regions_size(), 0);
  ASSERT_TRUE(Register(session_->id(), "r", kBytes).ok()) << "the name is free in this session";
  EXPECT_TRUE(Prefill(Request()).ok());
  EXPECT_EQ(Register(session_->id(), "r", kBytes).error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(SharedMemoryTest, StreamsDoNotTakeIt) {
  ASSERT_TRUE(Register(session_->id(), "r", 4 * kBytes).ok());
  grpc::ClientContext context;
  const auto stream = control_.stub().PrefillStream(&context);
  v1::PrefillFrame frame;
  *frame.mutable_request() = Request();
  stream->Write(frame);
  stream->WritesDone();
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("k.shared_memory is given"));

  grpc::ClientContext flag_context;
  const auto flag_stream = control_.stub().PrefillStream(&flag_context);
  frame.mutable_request()->clear_k();
  frame.mutable_request()->clear_w();
  frame.mutable_request()->clear_u();
  frame.mutable_request()->mutable_done_flag()->mutable_place()->set_region("r");
  flag_stream->Write(frame);
  flag_stream->WritesDone();
  EXPECT_THAT(flag_stream->Finish().error_message(), HasSubstr("done_flag is given"));
}

TEST_F(SharedMemoryTest, RegistrationsThatCannotBeAreRefused) {
  for (const auto& [size, offset] : {std::pair<std::uint64_t, std::uint64_t>{(1 << 20) + 1, 0},
                                     {1, 1 << 20},
                                     {kMax, 4096},
                                     {4096, kMax - 4095},
                                     {0, 0},
                                     {4096, 1}}) {
    EXPECT_EQ(Register(session_->id(), "x", size, offset).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(Register(session_->id(), "", 4096).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Register("no session", "x", 4096).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::RegisterSystemMemoryRequest request;
  request.set_session(session_->id());
  request.set_name("x");
  request.set_token("00000000000000000000000000000000");
  request.set_size(4096);
  EXPECT_EQ(control_.Call(&Stub::RegisterSystemMemory, request).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::RegisterCudaMemoryRequest cuda;
  cuda.set_session(session_->id());
  cuda.set_handle(std::string(64, 'x'));
  EXPECT_EQ(control_.Call(&Stub::RegisterCudaMemory, cuda).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(ServerMappings(), 0);
}

TEST_F(SharedMemoryTest, RoundsOfRegistrationLeaveNothingBehind) {
  const int descriptors = ServerDescriptors();
  for (int round = 0; round < 300; ++round) {
    ASSERT_TRUE(Register(session_->id(), "r", 4 * kBytes).ok()) << round;
    if (round % 10 == 0) {
      ASSERT_TRUE(Prefill(Request()).ok());
    }
    ASSERT_TRUE(Unregister(session_->id(), "r").ok());
  }
  EXPECT_EQ(ServerMappings(), 0);
  EXPECT_TRUE(Eventually([&] { return ServerDescriptors() <= descriptors; }));
}

/// A long call on memory of a client that misbehaves meanwhile.
class MeanwhileTest : public SharedMemoryTest {
 protected:
  static constexpr std::int64_t kLong = 65536;
  static constexpr std::int64_t kLongBytes = kLong * kHeads * kDim * 4;

  MeanwhileTest() : memory_(session_->ShareMemory(2 * kLongBytes)) {
    std::memset(memory_->data(), 0x3c, static_cast<std::size_t>(2 * kLongBytes));
    call_.k = {DataType::kFloat32, {kLong, kHeads, kDim}, memory_->data()};
    call_.w = call_.k;
    call_.u = call_.k;
    call_.state_indices = slot_;
    call_.save_new_value = true;
    call_.outputs.v_new = Tensor{DataType::kFloat32, call_.u.shape, memory_->data() + kLongBytes};
    call_.transport = Transport::kSharedMemory;
  }

  std::int64_t Uses() {
    const v1::ListSharedMemoryResponse list = List(session_->id());
    return list.regions_size() == 0 ? 0 : list.regions(0).uses();
  }

  /// Runs the call again and again until `meanwhile` has run while one of them was under way.
  template <typename Meanwhile>
  absl::Status RunCalls(Meanwhile meanwhile) {
    return RunCalls([this] { return session_->Prefill(call_).status(); }, meanwhile);
  }

  template <typename Call, typename Meanwhile>
  absl::Status RunCalls(Call call, Meanwhile meanwhile) {
    absl::Status status;
    bool done = false;
    std::mutex mutex;
    std::thread caller([&] {
      while (status.ok()) {
        status = call();
        const std::lock_guard lock(mutex);
        if (done) return;
      }
    });
    EXPECT_TRUE(Eventually([this] { return Uses() > 0; }));
    meanwhile();
    {
      const std::lock_guard lock(mutex);
      done = true;
    }
    caller.join();
    return status;
  }

  absl::StatusOr<SharedMemory> memory_;
  const std::vector<std::int64_t> slot_ = {slots_[0]};
  PrefillCall call_;
};

TEST_F(MeanwhileTest, UnregisteringWaitsForTheCall) {
  const absl::Status status = RunCalls([this] {
    EXPECT_TRUE(Unregister(session_->id(), memory_->name()).ok());
    EXPECT_EQ(ServerMappings(), 0) << "answered when it is gone";
  });
  // The call under way succeeds, a later one does not find the region.
  EXPECT_TRUE(status.ok() || absl::IsNotFound(status)) << status;
}

TEST_F(MeanwhileTest, MemoryOfTwoSessionsStaysWithOneWhenTheOtherEnds) {
  ASSERT_EQ(memory_->Release(), absl::OkStatus());
  const absl::StatusOr<client::Memfd> memory = client::Memfd::Create(2 * kLongBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::memset(memory->data(), 0x3c, static_cast<std::size_t>(kLongBytes));
  const std::string other = control_.OpenSession("model");
  for (const std::string& session : {session_->id(), other}) {
    ASSERT_TRUE(Register(*memory, session, "r", static_cast<std::uint64_t>(memory->size())).ok());
  }
  EXPECT_EQ(ServerMappings(), 2);

  v1::PrefillRequest request = Request(kLong);
  request.set_initial_state_source(v1::INITIAL_STATE_SOURCE_ZERO);
  request.mutable_outputs()->mutable_v_new()->set_region("r");
  request.mutable_outputs()->mutable_v_new()->set_offset(kLongBytes);
  v1::PrefillRequest others = request;
  others.set_session(other);
  others.set_state_indices(0, control_.AcquireSlots(other, 1)[0]);
  ASSERT_TRUE(Prefill(others).ok());
  std::byte* const result = memory->data() + kLongBytes;
  const std::vector<std::byte> expected(result, result + kLongBytes);
  std::memset(result, 0, expected.size());
  const absl::Status status = RunCalls(
      [&] {
        const grpc::Status answered = Prefill(request);
        return absl::Status(static_cast<absl::StatusCode>(answered.error_code()), answered.error_message());
      },
      [&] {
        v1::CloseSessionRequest close;
        close.set_session(other);
        EXPECT_TRUE(control_.Call(&Stub::CloseSession, close).ok());
        EXPECT_TRUE(Eventually([this] { return ServerMappings() == 1; }));
      });
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(std::memcmp(result, expected.data(), expected.size()), 0);
  EXPECT_EQ(Prefill(others).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(MeanwhileTest, ChangedAndTornMemorySpoilsOnlyTheClientsOwnResults) {
  ASSERT_TRUE(session_->Prefill(call_).ok());
  const std::string others = Contents().substr(Contents().size() / 4);
  const absl::Status status = RunCalls([&] {
    for (std::int64_t i = 0; i < 2 * kLongBytes; i += 512) memory_->data()[i] = std::byte{0x7f};
    // Takes the pages away from everybody who has them mapped.
    EXPECT_EQ(madvise(memory_->data(), static_cast<std::size_t>(2 * kLongBytes), MADV_REMOVE), 0);
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(Contents().substr(Contents().size() / 4), others);
}

TEST_F(SharedMemoryTest, AKilledClientsMemoryGoesWithItsSession) {
  const int descriptors = ServerDescriptors();
  {
    Process client(GDPCACHE_SHARED_MEMORY_CLIENT, {server_.unix_address(), "model"});
    ASSERT_EQ(client.ReadLine(), "running");
    EXPECT_EQ(ServerMappings(), 1);
    client.Signal(SIGKILL);
    EXPECT_EQ(client.Wait(), -SIGKILL);
  }
  EXPECT_TRUE(Eventually([this] { return ServerMappings() == 0; }));
  EXPECT_TRUE(Eventually([&] { return ServerDescriptors() <= descriptors; }));
  EXPECT_EQ(control_.ListSlots("model").free_slots(), 4);
}

TEST(SharedMemoryLimitsTest, AreToldAndKept) {
  const ServerProcess server({"--shared-memory=1MiB"});
  ControlClient control(Connect(server.tcp_address()));
  EXPECT_THAT(control.GetServerInfo().transports(), Contains("shared_memory"));
  EXPECT_EQ(control.GetServerInfo().limits().shared_memory_bytes(), 1 << 20);
  struct stat socket = {};
  ASSERT_EQ(stat(control.GetServerInfo().descriptor_socket().c_str(), &socket), 0);
  EXPECT_EQ(socket.st_mode & 0777, 0600);
  control.CreateCache(ControlClient::SmallCache("model"));
  absl::StatusOr<Client> client = Client::Connect(server.tcp_address());
  absl::StatusOr<Session> session = client->OpenSession("model");
  const absl::StatusOr<SharedMemory> all = session->ShareMemory(1 << 20);
  EXPECT_TRUE(all.ok()) << "loopback TCP is this host, too: " << all.status();
  EXPECT_EQ(session->ShareMemory(1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(SharedMemoryLimitsTest, ZeroTurnsItOff) {
  const ServerProcess server({"--shared-memory=0"});
  ControlClient control(Connect(server.tcp_address()));
  EXPECT_THAT(control.GetServerInfo().transports(), Not(Contains("shared_memory")));
  control.CreateCache(ControlClient::SmallCache("model"));
  absl::StatusOr<Client> client = Client::Connect(server.unix_address());
  absl::StatusOr<Session> session = client->OpenSession("model");
  EXPECT_EQ(session->ShareMemory(4096).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace gdpcache::test
