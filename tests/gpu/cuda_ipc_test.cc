// Prefills on GPU memory of other processes: this program is the client, a gdpcached that it starts the server. As
// "--client ADDRESS CACHE" it is one more client, which calls until it is killed; as "--ahead ADDRESS CACHE" one that
// does not wait for its calls.

#include <cuda.h>
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
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/command/bench/statistics.h"
#include "client/library/memfd.h"
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

  /// Uses of a region by calls in flight.
  std::int64_t Uses(const std::string& name) {
    v1::ListSharedMemoryRequest request;
    request.set_session(session_);
    v1::ListSharedMemoryResponse response;
    EXPECT_TRUE(control_.Call(&Stub::ListSharedMemory, request, response).ok());
    for (const v1::SharedMemoryRegion& region : response.regions()) {
      if (region.name() == name) return region.uses();
    }
    return 0;
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

TEST_F(CudaIpcTest, AStreamThatWaitsForTheFlagOfACallSeesItsResultsAndNobodyWaitsForTheAnswer) {
  const Flags flags(control_, session_);
  std::uint32_t value = 0;
  for (const std::int64_t tokens : {1, 100, 20'000}) {
    SCOPED_TRACE(tokens);
    GpuTensors tensors(control_, session_, tokens, absl::StrCat(tokens, "-"));
    tensors.Register();
    const std::vector<std::byte> inputs = tensors.RandomInputs(static_cast<unsigned>(tokens));
    std::string wanted(static_cast<std::size_t>(tensors.row_bytes()), '\0');
    CUDA_OK(cudaMemcpy(tensors.data(), inputs.data(), inputs.size(), cudaMemcpyHostToDevice));
    CUDA_OK(cudaDeviceSynchronize());
    Prefill(tensors.Request(slots_[0], false));
    CUDA_OK(cudaMemcpy(wanted.data(), tensors.data() + tensors.v_new_offset(), wanted.size(), cudaMemcpyDeviceToHost));

    for (int round = 0; round < 20; ++round) {
      CUDA_OK(cudaMemset(tensors.data(), 0xff, static_cast<std::size_t>(tensors.size())));
      // Copies from and to other memory would wait for the stream.
      void* pinned = nullptr;
      CUDA_OK(cudaMallocHost(&pinned, inputs.size() + wanted.size()));
      std::memcpy(pinned, inputs.data(), inputs.size());
      auto* const got = static_cast<char*>(pinned) + inputs.size();
      std::fill_n(got, wanted.size(), '\0');
      CUDA_OK(cudaDeviceSynchronize());
      static std::atomic<bool> go = false;
      go = false;
      CUDA_OK(cudaLaunchHostFunc(
          tensors.stream(),
          [](void*) {
            while (!go) absl::SleepFor(absl::Milliseconds(1));
          },
          nullptr));
      CUDA_OK(cudaMemcpyAsync(tensors.data(), pinned, inputs.size(), cudaMemcpyHostToDevice, tensors.stream()));
      CUDA_OK(cudaEventRecord(tensors.ready(), tensors.stream()));
      v1::PrefillRequest request = tensors.Request(slots_[0], true);
      Flags::AddTo(request, 3, ++value);
      std::thread caller([&] { Prefill(request); });
      flags.LetWait(tensors.stream(), 3, value);
      CUDA_OK(cudaMemcpyAsync(got, tensors.data() + tensors.v_new_offset(), wanted.size(), cudaMemcpyDeviceToHost,
                              tensors.stream()));
      EXPECT_EQ(flags.Get(3), value - 1);
      go = true;
      CUDA_OK(cudaStreamSynchronize(tensors.stream()));
      EXPECT_EQ(flags.Get(3), value);
      EXPECT_TRUE(std::string_view(got, wanted.size()) == wanted);
      caller.join();
      CUDA_OK(cudaFreeHost(pinned));
    }
  }
}

TEST_F(CudaIpcTest, CallsThatAStreamHasPutOneBehindTheOtherRunSoInWhateverOrderTheyArrive) {
  constexpr std::int64_t kTokens = 1000;
  constexpr int kCalls = 4;
  const Flags flags(control_, session_);
  std::vector<std::unique_ptr<GpuTensors>> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(
        std::make_unique<GpuTensors>(control_, session_, kTokens, std::string(1, static_cast<char>('a' + i))));
    calls.back()->Register();
  }
  const std::vector<std::byte> inputs = calls[0]->RandomInputs(7);
  const cudaStream_t stream = calls[0]->stream();
  const auto rows = static_cast<std::size_t>(calls[0]->row_bytes());
  const auto request_of = [&](int i, std::int64_t slot, bool events) {
    v1::PrefillRequest request = calls[i]->Request(slot, events);
    request.set_initial_state_source(i == 0 ? v1::INITIAL_STATE_SOURCE_ZERO : v1::INITIAL_STATE_SOURCE_SLOT);
    return request;
  };
  // u of each call is v_new of the one before.
  const auto pass_on = [&](int i) {
    if (i == 0) return cudaSuccess;
    return cudaMemcpyAsync(calls[i]->data() + calls[i]->u_offset(), calls[i - 1]->data() + calls[i - 1]->v_new_offset(),
                           rows, cudaMemcpyDeviceToDevice, stream);
  };
  const auto result = [&] {
    std::string got(rows, '\0');
    EXPECT_EQ(cudaMemcpyAsync(got.data(), calls.back()->data() + calls.back()->v_new_offset(), rows,
                              cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return got;
  };
  for (const auto& call : calls) {
    CUDA_OK(cudaMemcpy(call->data(), inputs.data(), inputs.size(), cudaMemcpyHostToDevice));
  }
  for (int i = 0; i < kCalls; ++i) {
    CUDA_OK(pass_on(i));
    CUDA_OK(cudaStreamSynchronize(stream));
    Prefill(request_of(i, slots_[0], false));
  }
  const std::string wanted = result();

  for (std::uint32_t round = 1; round <= 10; ++round) {
    CUDA_OK(cudaMemsetAsync(calls.back()->data() + calls.back()->v_new_offset(), 0, rows, stream));
    static std::atomic<bool> go = false;
    go = false;
    CUDA_OK(cudaLaunchHostFunc(
        stream,
        [](void*) {
          while (!go) absl::SleepFor(absl::Milliseconds(1));
        },
        nullptr));
    for (int i = 0; i < kCalls; ++i) {
      CUDA_OK(pass_on(i));
      CUDA_OK(cudaEventRecord(calls[i]->ready(), stream));
      flags.LetWait(stream, i, round);
    }
    std::vector<std::thread> callers;
    for (int i = kCalls - 1; i >= 0; --i) {
      callers.emplace_back([&, i] {
        v1::PrefillRequest request = request_of(i, slots_[1], true);
        Flags::AddTo(request, i, round);
        Prefill(request);
      });
      EXPECT_TRUE(Eventually([&] { return Uses(std::string(1, static_cast<char>('a' + i)) + "ready") > 0; }));
    }
    go = true;
    EXPECT_TRUE(result() == wanted) << round;
    for (std::thread& caller : callers) caller.join();
  }
}

TEST_F(CudaIpcTest, TheFlagOfACallThatFailsIsTheClientsToSet) {
  const Flags flags(control_, session_);
  GpuTensors tensors(control_, session_, 64);
  tensors.Register();
  v1::PrefillRequest request = tensors.Request(slots_[0], false);
  request.add_expected_positions(99);
  Flags::AddTo(request, 0, 1);
  flags.LetWait(tensors.stream(), 0, 1);
  v1::PrefillResponse response;
  EXPECT_EQ(control_.Call(&Stub::Prefill, request, response).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(flags.Get(0), 0);
  EXPECT_EQ(cudaStreamQuery(tensors.stream()), cudaErrorNotReady);
  flags.Set(0, 1);
  CUDA_OK(cudaStreamSynchronize(tensors.stream()));
  request = tensors.Request(slots_[0], false);
  Flags::AddTo(request, 0, 2);
  request.mutable_done_flag()->mutable_place()->set_region("r");
  request.mutable_done_flag()->mutable_place()->set_offset(0);
  const grpc::Status status = control_.Call(&Stub::Prefill, request, response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message().find("done_flag.place.region is memory of the GPU"), 0);
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
  for (const std::string way : {"--client", "--client", "--ahead", "--ahead", "--ahead"}) {
    Process other(program, {way, server_.unix_address(), "model"});
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

/// Calls one behind the other on one stream, sent from several threads, so that they arrive in any order.
int RunAhead(const std::string& address, const std::string& cache) {
  constexpr int kCalls = 4;
  ControlClient control(Connect(address));
  const std::string session = control.OpenSession(cache, 500);
  const std::vector<std::int64_t> slots = control.AcquireSlots(session, 1);
  const Flags flags(control, session);
  std::vector<std::unique_ptr<GpuTensors>> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(std::make_unique<GpuTensors>(control, session, 5000, std::string(1, static_cast<char>('a' + i))));
    calls.back()->Register();
    cudaMemset(calls.back()->data(), 0x3c, static_cast<std::size_t>(calls.back()->size()));
  }
  const cudaStream_t stream = calls[0]->stream();
  std::atomic<bool> failed = false;
  for (std::uint32_t round = 1; !failed; ++round) {
    std::vector<std::thread> senders;
    for (int i = 0; i < kCalls; ++i) {
      cudaEventRecord(calls[i]->ready(), stream);
      v1::PrefillRequest request = calls[i]->Request(slots.at(0), true);
      Flags::AddTo(request, i, round);
      senders.emplace_back([&control, &failed, request] {
        v1::PrefillResponse response;
        if (!control.Call(&Stub::Prefill, request, response).ok()) failed = true;
      });
      flags.LetWait(stream, i, round);
    }
    for (std::thread& sender : senders) sender.join();
    if (round > 1) continue;
    std::puts("running");
    std::fflush(stdout);
  }
  return 1;
}

}  // namespace
}  // namespace gdpcache::test

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--client") return gdpcache::test::RunClient(argv[2], argv[3]);
  if (argc == 4 && std::string_view(argv[1]) == "--ahead") return gdpcache::test::RunAhead(argv[2], argv[3]);
  gdpcache::test::program = argv[0];
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
