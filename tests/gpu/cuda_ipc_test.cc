// Prefills on GPU memory of other processes: this program is the client, a gdpcached that it starts the server.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/command/bench/statistics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/cuda_ipc_fixture.h"
#include "tests/gpu/gpu_tensors.h"

namespace gdpcache::test {
namespace {

using ::testing::Contains;

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
  HoldUp(late.stream(), go);
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

}  // namespace
}  // namespace gdpcache::test
