#ifndef GDPCACHE_TESTS_GPU_GPU_TENSORS_H_
#define GDPCACHE_TESTS_GPU_GPU_TENSORS_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/library/memfd.h"
#include "gtest/gtest.h"
#include "tests/support/control_client.h"
#include "tests/support/registration_token.h"

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess) << #call

/// What a client on the server's GPU shares with it.
namespace gdpcache::test {

using Stub = v1::StateCache::Stub;

inline constexpr std::int64_t kHeads = 8;
inline constexpr std::int64_t kDim = 64;

/// Lets the stream wait until somebody sets `go`, which must last as long.
inline void HoldUp(cudaStream_t stream, std::atomic<bool>& go) {
  go = false;
  const auto wait = [](void* flag) {
    while (!*static_cast<const std::atomic<bool>*>(flag)) absl::SleepFor(absl::Milliseconds(1));
  };
  EXPECT_EQ(cudaLaunchHostFunc(stream, wait, &go), cudaSuccess);
}

/// Words of system memory that a session has registered, for streams to wait for.
class Flags {
 public:
  Flags(ControlClient& control, const std::string& session) : memory_(*client::Memfd::Create(kBytes)) {
    v1::RegisterSystemMemoryRequest request;
    request.set_session(session);
    request.set_name("flags");
    request.set_token(memory_.HandOver(control.GetServerInfo().descriptor_socket()).value());
    request.set_size(kBytes);
    v1::RegisterSystemMemoryResponse response;
    EXPECT_TRUE(control.Call(&Stub::RegisterSystemMemory, request, response).ok());
    EXPECT_EQ(cudaHostRegister(memory_.data(), kBytes, cudaHostRegisterPortable | cudaHostRegisterMapped), cudaSuccess);
    EXPECT_EQ(cudaHostGetDevicePointer(&on_device_, memory_.data(), 0), cudaSuccess);
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000, cudaEnableDefault, &result),
              cudaSuccess);
    wait_value_ = reinterpret_cast<WaitValue>(function);
  }
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;
  ~Flags() {
    cudaDeviceSynchronize();
    cudaHostUnregister(memory_.data());
  }

  /// Lets the call set a flag.
  static void AddTo(v1::PrefillRequest& request, int flag, std::uint32_t value) {
    request.mutable_done_flag()->mutable_place()->set_region("flags");
    request.mutable_done_flag()->mutable_place()->set_offset(static_cast<std::uint64_t>(flag) * kDistance);
    request.mutable_done_flag()->set_value(value);
    request.clear_done_event();
  }

  /// `stream` waits until the flag has come as far as `value`.
  void LetWait(cudaStream_t stream, int flag, std::uint32_t value) const {
    const auto place = reinterpret_cast<CUdeviceptr>(on_device_) + static_cast<CUdeviceptr>(flag) * kDistance;
    EXPECT_EQ(wait_value_(stream, place, value, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  }

  std::uint32_t Get(int flag) const { return Word(flag).load(); }
  void Set(int flag, std::uint32_t value) const { Word(flag).store(value); }

 private:
  static constexpr std::int64_t kBytes = 4096;
  static constexpr std::uint64_t kDistance = 64;
  using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

  std::atomic_ref<std::uint32_t> Word(int flag) const {
    return std::atomic_ref(
        *reinterpret_cast<std::uint32_t*>(memory_.data() + static_cast<std::uint64_t>(flag) * kDistance));
  }

  const client::Memfd memory_;
  void* on_device_ = nullptr;
  WaitValue wait_value_ = nullptr;
};

/// Device memory and events that a session has registered, their names beginning with `prefix`: k, w, u, g and v_new
/// behind each other in one allocation.
class GpuTensors {
 public:
  GpuTensors(ControlClient& control, std::string session, std::int64_t tokens, std::string prefix = "")
      : control_(control), session_(std::move(session)), tokens_(tokens), prefix_(std::move(prefix)) {}
  ~GpuTensors() {
    cudaFree(data_);
    cudaEventDestroy(ready_);
    cudaEventDestroy(done_);
    cudaStreamDestroy(stream_);
  }

  std::int64_t row_bytes() const { return tokens_ * kHeads * kDim * 2; }
  std::int64_t g_bytes() const { return tokens_ * kHeads * 4; }
  std::int64_t size() const { return 4 * row_bytes() + g_bytes(); }
  std::int64_t u_offset() const { return 2 * row_bytes(); }
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
    const grpc::Status status =
        RegisterMemory(prefix_ + "r", std::string(reinterpret_cast<char*>(&memory), sizeof(memory)), 0,
                       static_cast<std::uint64_t>(size()));
    ASSERT_TRUE(status.ok()) << status.error_message();
    for (const auto& [name, event] : {std::pair{"ready", ready_}, std::pair{"done", done_}}) {
      cudaIpcEventHandle_t handle;
      CUDA_OK(cudaIpcGetEventHandle(&handle, event));
      v1::RegisterCudaEventRequest request;
      request.set_session(session_);
      request.set_name(prefix_ + name);
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
      tensor->mutable_shared_memory()->set_region(prefix_ + "r");
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
    request.mutable_outputs()->mutable_v_new()->set_region(prefix_ + "r");
    request.mutable_outputs()->mutable_v_new()->set_offset(static_cast<std::uint64_t>(v_new_offset()));
    if (events) {
      request.set_ready_event(prefix_ + "ready");
      request.set_done_event(prefix_ + "done");
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
  const std::string prefix_;
  void* data_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;
  cudaEvent_t done_ = nullptr;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_GPU_GPU_TENSORS_H_
