// Prefills on GPU memory of other processes: this program is the client, a gdpcached that it starts the server. As
// "--client ADDRESS CACHE" it is one more client, which calls until it is killed.

#include <cuda_runtime_api.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/command/bench/statistics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"
#include "tests/support/registration_token.h"
#include "tests/support/server_process.h"

namespace gdpcache::test {
namespace {

using ::testing::Contains;
using Stub = v1::StateCache::Stub;

constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kDim = 64;

std::string program;  // this one

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess) << #call

v1::CreateCacheRequest CacheRequest(const std::string& name, std::int64_t slots) {
  v1::CreateCacheRequest request = ControlClient::SmallCache(name, slots);
  request.mutable_geometry()->set_heads(kHeads);
  request.mutable_geometry()->set_key_dim(kDim);
  request.mutable_geometry()->set_value_dim(kDim);
  return request;
}

/// Device memory and events that a session has registered: k, w, u, g and v_new behind each other in one allocation.
class GpuTensors {
 public:
  GpuTensors(ControlClient& control, std::string session, std::int64_t tokens)
      : control_(control), session_(std::move(session)), tokens_(tokens) {}
  ~GpuTensors() {
    cudaFree(data_);
    cudaEventDestroy(ready_);
    cudaEventDestroy(done_);
    cudaStreamDestroy(stream_);
  }

  std::int64_t row_bytes() const { return tokens_ * kHeads * kDim * 2; }
  std::int64_t g_bytes() const { return tokens_ * kHeads * 4; }
  std::int64_t size() const { return 4 * row_bytes() + g_bytes(); }
  std::int64_t v_new_offset() const { return 3 * row_bytes() + g_bytes(); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  cudaStream_t stream() const { return stream_; }
  cudaEvent_t ready() const { return ready_; }
  cudaEvent_t done() const { return done_; }

  void Register() {
    CUDA_OK(cudaMalloc(&data_, static_cast<std::size_t>(size())));
    CUDA_OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUDA_OK(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming | cudaEventInterprocess));
    CUDA_OK(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming | cudaEventInterprocess));
    cudaIpcMemHandle_t memory;
    CUDA_OK(cudaIpcGetMemHandle(&memory, data_));
    const grpc::Status status = RegisterMemory("r", std::string(reinterpret_cast<char*>(&memory), sizeof(memory)), 0,
                                               static_cast<std::uint64_t>(size()));
    ASSERT_TRUE(status.ok()) << status.error_message();
    for (const auto& [name, event] : {std::pair{"ready", ready_}, std::pair{"done", done_}}) {
      cudaIpcEventHandle_t handle;
      CUDA_OK(cudaIpcGetEventHandle(&handle, event));
      v1::RegisterCudaEventRequest request;
      request.set_session(session_);
      request.set_name(name);
      request.set_handle(&handle, sizeof(handle));
      request.set_token(Token());
      v1::RegisterCudaEventResponse response;
      const grpc::Status registered = control_.Call(&Stub::RegisterCudaEvent, request, response);
      ASSERT_TRUE(registered.ok()) << registered.error_message();
    }
  }

  grpc::Status RegisterMemory(const std::string& name, const std::string& handle, std::uint64_t offset,
                              std::uint64_t size) {
    v1::RegisterCudaMemoryRequest request;
    request.set_session(session_);
    request.set_name(name);
    request.set_handle(handle);
    request.set_offset(offset);
    request.set_size(size);
    request.set_token(Token());
    v1::RegisterCudaMemoryResponse response;
    return control_.Call(&Stub::RegisterCudaMemory, request, response);
  }

  v1::PrefillRequest Request(std::int64_t slot, bool events) const {
    v1::PrefillRequest request;
    request.set_session(session_);
    std::uint64_t offset = 0;
    const auto place = [&](v1::Tensor* tensor, v1::DataType dtype, std::vector<std::int64_t> shape,
                           std::int64_t bytes) {
      tensor->set_dtype(dtype);
      tensor->mutable_shape()->Add(shape.begin(), shape.end());
      tensor->mutable_shared_memory()->set_region("r");
      tensor->mutable_shared_memory()->set_offset(offset);
      offset += static_cast<std::uint64_t>(bytes);
    };
    for (v1::Tensor* tensor : {request.mutable_k(), request.mutable_w(), request.mutable_u()}) {
      place(tensor, v1::DATA_TYPE_BFLOAT16, {tokens_, kHeads, kDim}, row_bytes());
    }
    place(request.mutable_g(), v1::DATA_TYPE_FLOAT32, {tokens_, kHeads}, g_bytes());
    request.add_state_indices(slot);
    request.set_initial_state_source(v1::INITIAL_STATE_SOURCE_ZERO);
    request.set_save_new_value(true);
    request.mutable_outputs()->mutable_v_new()->set_region("r");
    request.mutable_outputs()->mutable_v_new()->set_offset(static_cast<std::uint64_t>(v_new_offset()));
    if (events) {
      request.set_ready_event("ready");
      request.set_done_event("done");
    }
    return request;
  }

  /// The same call with its inputs in the message.
  v1::PrefillRequest InlineRequest(std::int64_t slot, const std::vector<std::byte>& inputs) const {
    v1::PrefillRequest request = Request(slot, false);
    request.clear_outputs();
    std::int64_t offset = 0;
    for (v1::Tensor* tensor : {request.mutable_k(), request.mutable_w(), request.mutable_u(), request.mutable_g()}) {
      const std::int64_t bytes = tensor == request.mutable_g() ? g_bytes() : row_bytes();
      tensor->set_inline_(reinterpret_cast<const char*>(inputs.data()) + offset, static_cast<std::size_t>(bytes));
      offset += bytes;
    }
    return request;
  }

  std::vector<std::byte> RandomInputs(unsigned seed) const {
    std::mt19937 random(seed);
    std::vector<std::byte> inputs(static_cast<std::size_t>(v_new_offset()));
    auto* const halves = reinterpret_cast<std::uint16_t*>(inputs.data());
    for (std::int64_t i = 0; i < 3 * row_bytes() / 2; ++i) {
      halves[i] = static_cast<std::uint16_t>(0x3c00 | (random() & 0x807f));  // about 0.01, either sign
    }
    auto* const decays = reinterpret_cast<float*>(inputs.data() + 3 * row_bytes());
    for (std::int64_t i = 0; i < g_bytes() / 4; ++i) decays[i] = -0.01F * static_cast<float>(i / kHeads % 64 + 1);
    return inputs;
  }

 private:
  std::string Token() const { return RegistrationToken(control_.GetServerInfo().descriptor_socket()); }

  ControlClient& control_;
  const std::string session_;
  const std::int64_t tokens_;
  void* data_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;
  cudaEvent_t done_ = nullptr;
};

class CudaIpcTest : public ::testing::Test {
 protected:
  CudaIpcTest() {
    control_.CreateCache(CacheRequest("model", 8));
    session_ = control_.OpenSession("model");
    slots_ = control_.AcquireSlots(session_, 2);
  }

  v1::PrefillResponse Prefill(const v1::PrefillRequest& request) {
    v1::PrefillResponse response;
    const grpc::Status status = control_.Call(&Stub::Prefill, request, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  /// v_new of an inline call on the same inputs.
  std::string Wanted(const GpuTensors& tensors, std::int64_t slot, const std::vector<std::byte>& inputs) {
    return Prefill(tensors.InlineRequest(slot, inputs)).v_new().inline_();
  }

  ServerProcess server_{{"--backend=cuda"}};
  ControlClient control_{Connect(server_.unix_address())};
  std::string session_;
  std::vector<std::int64_t> slots_;
};

TEST_F(CudaIpcTest, ServerOffersItForItsDevice) {
  const v1::GetServerInfoResponse info = control_.GetServerInfo();
  EXPECT_THAT(info.transports(), Contains("cuda_ipc"));
  cudaDeviceProp properties;
  CUDA_OK(cudaGetDeviceProperties(&properties, 0));
  std::string uuid = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
    std::array<char, 3> digits;
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned char>(properties.uuid.bytes[i]));
    uuid += digits.data();
  }
  EXPECT_EQ(info.device_uuid(), uuid);
}

TEST_F(CudaIpcTest, ComputesOnTheClientsMemoryAndEventsOrderBothSides) {
  for (const std::int64_t tokens : {1, 100, 20'000}) {
    SCOPED_TRACE(tokens);
    const std::string session = control_.OpenSession("model");
    const std::vector<std::int64_t> slots = control_.AcquireSlots(session, 1);
    GpuTensors tensors(control_, session, tokens);
    tensors.Register();
    const std::vector<std::byte> inputs = tensors.RandomInputs(static_cast<unsigned>(tokens));
    constexpr std::int64_t kLargestInline = 1000;
    std::string got(static_cast<std::size_t>(tensors.row_bytes()), '\0');

    // Without events: the client waits before and the server after.
    CUDA_OK(cudaMemset(tensors.data(), 0xff, static_cast<std::size_t>(tensors.size())));
    CUDA_OK(cudaMemcpy(tensors.data(), inputs.data(), inputs.size(), cudaMemcpyHostToDevice));
    CUDA_OK(cudaDeviceSynchronize());
    const v1::PrefillResponse response = Prefill(tensors.Request(slots[0], false));
    EXPECT_EQ(response.v_new().shared_memory().region(), "r");
    CUDA_OK(cudaMemcpy(got.data(), tensors.data() + tensors.v_new_offset(), got.size(), cudaMemcpyDeviceToHost));
    if (tokens <= kLargestInline) {
      EXPECT_TRUE(got == Wanted(tensors, slots[0], inputs));
    }
    const std::string first = got;

    // With events: inputs arrive late, and the server begins when they are there.
    CUDA_OK(cudaMemset(tensors.data(), 0xff, static_cast<std::size_t>(tensors.size())));
    std::fill(got.begin(), got.end(), '\0');
    void* pinned = nullptr;
    CUDA_OK(cudaMallocHost(&pinned, inputs.size()));
    std::memcpy(pinned, inputs.data(), inputs.size());
    CUDA_OK(cudaDeviceSynchronize());
    static constexpr absl::Duration kLate = absl::Milliseconds(300);
    CUDA_OK(cudaLaunchHostFunc(
        tensors.stream(), [](void*) { absl::SleepFor(kLate); }, nullptr));
    CUDA_OK(cudaMemcpyAsync(tensors.data(), pinned, inputs.size(), cudaMemcpyHostToDevice, tensors.stream()));
    CUDA_OK(cudaEventRecord(tensors.ready(), tensors.stream()));
    const absl::Time start = absl::Now();
    Prefill(tensors.Request(slots[0], true));
    EXPECT_GT(absl::Now() - start, kLate / 2) << "the answer waits for the inputs";
    CUDA_OK(cudaStreamWaitEvent(tensors.stream(), tensors.done(), 0));
    CUDA_OK(cudaMemcpyAsync(got.data(), tensors.data() + tensors.v_new_offset(), got.size(), cudaMemcpyDeviceToHost,
                            tensors.stream()));
    CUDA_OK(cudaStreamSynchronize(tensors.stream()));
    EXPECT_TRUE(got == first);
    CUDA_OK(cudaFreeHost(pinned));
    v1::CloseSessionRequest close;
    close.set_session(session);
    v1::CloseSessionResponse closed;
    EXPECT_TRUE(control_.Call(&Stub::CloseSession, close, closed).ok());
  }
}

TEST_F(CudaIpcTest, AReadyEventThatDoesNotHappenHoldsNobodyElseUp) {
  constexpr int kLateCalls = 8;  // more than the server has workers
  const std::string other_session = control_.OpenSession("model");
  const std::vector<std::int64_t> other_slots = control_.AcquireSlots(other_session, 1);
  GpuTensors late(control_, session_, 64);
  GpuTensors others(control_, other_session, 64);
  for (GpuTensors* tensors : {&late, &others}) {
    tensors->Register();
    CUDA_OK(cudaMemset(tensors->data(), 0, static_cast<std::size_t>(tensors->size())));
  }
  CUDA_OK(cudaDeviceSynchronize());
  static std::atomic<bool> go = false;
  CUDA_OK(cudaLaunchHostFunc(
      late.stream(),
      [](void*) {
        while (!go) absl::SleepFor(absl::Milliseconds(1));
      },
      nullptr));
  CUDA_OK(cudaEventRecord(late.ready(), late.stream()));
  std::atomic<int> answered = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < kLateCalls; ++i) {
    callers.emplace_back([&] {
      v1::PrefillResponse response;
      const grpc::Status status = control_.Call(&Stub::Prefill, late.Request(slots_[0], true), response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      ++answered;
    });
  }
  for (int i = 0; i < 100; ++i) Prefill(others.Request(other_slots[0], false));
  const std::vector<std::int64_t> more = control_.AcquireSlots(other_session, 1);
  EXPECT_EQ(answered, 0);
  go = true;
  for (std::thread& caller : callers) caller.join();
}

TEST_F(CudaIpcTest, HandlesAndPlacesThatAreNoneAreRefused) {
  GpuTensors tensors(control_, session_, 64);
  tensors.Register();
  cudaIpcMemHandle_t memory;
  CUDA_OK(cudaIpcGetMemHandle(&memory, tensors.data()));
  const std::string handle(reinterpret_cast<char*>(&memory), sizeof(memory));
  // An allocation is rounded up to the driver's granularity, 2 MiB.
  constexpr std::uint64_t kBeyond = std::uint64_t{1} << 40;
  EXPECT_EQ(tensors.RegisterMemory("a", handle, 0, kBeyond).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(tensors.RegisterMemory("a", handle, kBeyond, 16).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(tensors.RegisterMemory("a", handle, ~std::uint64_t{15}, 32).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    std::string garbage = handle;
    for (char& byte : garbage) byte = i == 0 ? '\0' : static_cast<char>(random());
    const grpc::Status status = tensors.RegisterMemory("a", garbage, 0, 16);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  }
  v1::PrefillRequest request = tensors.Request(slots_[0], false);
  request.mutable_u()->mutable_shared_memory()->set_offset(static_cast<std::uint64_t>(tensors.size()));
  v1::PrefillResponse response;
  EXPECT_EQ(control_.Call(&Stub::Prefill, request, response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = tensors.Request(slots_[0], false);
  request.set_ready_event("r");
  EXPECT_EQ(control_.Call(&Stub::Prefill, request, response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Prefill(tensors.Request(slots_[0], false));
}

TEST_F(CudaIpcTest, RoundsOfRegistrationLeaveNothingBehind) {
  GpuTensors tensors(control_, session_, 64);
  tensors.Register();
  cudaIpcMemHandle_t memory;
  CUDA_OK(cudaIpcGetMemHandle(&memory, tensors.data()));
  const std::string handle(reinterpret_cast<char*>(&memory), sizeof(memory));
  for (int round = 0; round < 200; ++round) {
    ASSERT_TRUE(tensors.RegisterMemory("a", handle, 0, 16).ok()) << round;
    v1::UnregisterMemoryRequest request;
    request.set_session(session_);
    request.set_name("a");
    v1::UnregisterMemoryResponse response;
    ASSERT_TRUE(control_.Call(&Stub::UnregisterMemory, request, response).ok());
  }
  Prefill(tensors.Request(slots_[0], false));  // the allocation is open still
}

TEST_F(CudaIpcTest, ClientsInTwoProcessesWorkAtOnceAndOnesDeathIsNoMatterOfTheOther) {
  GpuTensors tensors(control_, session_, 2000);
  tensors.Register();
  const std::vector<std::byte> inputs = tensors.RandomInputs(5);
  const std::string wanted = Wanted(tensors, slots_[1], inputs);
  CUDA_OK(cudaMemcpy(tensors.data(), inputs.data(), inputs.size(), cudaMemcpyHostToDevice));
  for (int round = 0; round < 3; ++round) {
    Process other(program, {"--client", server_.unix_address(), "model"});
    ASSERT_EQ(other.ReadLine(), "running");
    for (int call = 0; call < 50; ++call) {
      if (call == 25) other.Signal(SIGKILL);
      std::string got(static_cast<std::size_t>(tensors.row_bytes()), '\0');
      CUDA_OK(cudaMemset(tensors.data() + tensors.v_new_offset(), 0, got.size()));
      CUDA_OK(cudaEventRecord(tensors.ready(), cudaStreamLegacy));
      Prefill(tensors.Request(slots_[0], true));
      CUDA_OK(cudaStreamWaitEvent(tensors.stream(), tensors.done(), 0));
      CUDA_OK(cudaMemcpyAsync(got.data(), tensors.data() + tensors.v_new_offset(), got.size(), cudaMemcpyDeviceToHost,
                              tensors.stream()));
      CUDA_OK(cudaStreamSynchronize(tensors.stream()));
      ASSERT_TRUE(got == wanted) << call;
    }
    EXPECT_EQ(other.Wait(), -SIGKILL);
  }
  EXPECT_TRUE(Eventually([this] { return control_.ListSlots("model").free_slots() == 6; })) << "its session ends";
  Prefill(tensors.Request(slots_[0], false));
}

TEST_F(CudaIpcTest, TellsWhatACallCosts) {
  for (const std::int64_t tokens : {1, 4096, 32768}) {
    const std::string session = control_.OpenSession("model");
    const std::vector<std::int64_t> slots = control_.AcquireSlots(session, 1);
    GpuTensors tensors(control_, session, tokens);
    tensors.Register();
    const std::vector<std::byte> inputs = tensors.RandomInputs(1);
    CUDA_OK(cudaMemcpy(tensors.data(), inputs.data(), inputs.size(), cudaMemcpyHostToDevice));
    std::map<std::string, std::vector<double>> us;
    const auto timed = [&us](const std::string& name, const auto& call) {
      const absl::Time start = absl::Now();
      call();
      us[name].push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
    };
    const v1::PrefillRequest plain = tensors.Request(slots[0], false);
    const v1::PrefillRequest events = tensors.Request(slots[0], true);
    for (int round = 0; round < 300; ++round) {
      timed("empty", [&] {
        v1::KeepAliveRequest request;
        request.set_session(session);
        v1::KeepAliveResponse response;
        control_.Call(&Stub::KeepAlive, request, response);
      });
      timed("without events", [&] {
        const v1::PrefillResponse response = Prefill(plain);
        us["compute, as the server says"].push_back(static_cast<double>(response.timing().compute_us()));
      });
      timed("with events, to the answer", [&] {
        cudaEventRecord(tensors.ready(), tensors.stream());
        Prefill(events);
      });
      cudaStreamWaitEvent(tensors.stream(), tensors.done(), 0);
      cudaStreamSynchronize(tensors.stream());
      timed("with events, to the result", [&] {
        cudaEventRecord(tensors.ready(), tensors.stream());
        Prefill(events);
        cudaStreamWaitEvent(tensors.stream(), tensors.done(), 0);
        cudaStreamSynchronize(tensors.stream());
      });
    }
    for (const auto& [name, values] : us) {
      std::printf("%6lld tokens | %-28s | median %8.1f us\n", static_cast<long long>(tokens), name.c_str(),
                  bench::Median(values));
    }
  }
}

int RunClient(const std::string& address, const std::string& cache) {
  ControlClient control(Connect(address));
  const std::string session = control.OpenSession(cache, 500);
  const std::vector<std::int64_t> slots = control.AcquireSlots(session, 1);
  GpuTensors tensors(control, session, 5000);
  tensors.Register();
  cudaMemset(tensors.data(), 0x3c, static_cast<std::size_t>(tensors.size()));
  const v1::PrefillRequest request = tensors.Request(slots.at(0), true);
  v1::PrefillResponse response;
  for (bool first = true; true; first = false) {
    cudaEventRecord(tensors.ready(), tensors.stream());
    if (!control.Call(&Stub::Prefill, request, response).ok()) return 1;
    cudaStreamWaitEvent(tensors.stream(), tensors.done(), 0);
    if (!first) continue;
    std::puts("running");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace gdpcache::test

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--client") return gdpcache::test::RunClient(argv[2], argv[3]);
  gdpcache::test::program = argv[0];
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
