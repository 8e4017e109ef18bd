// Prefills on GPU memory of other processes that set a flag, for which streams wait.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/gpu/cuda_ipc_fixture.h"
#include "tests/gpu/gpu_tensors.h"
#include "tests/support/eventually.h"

namespace gdpcache::test {
namespace {

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
      HoldUp(tensors.stream(), go);
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
    HoldUp(stream, go);
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

}  // namespace
}  // namespace gdpcache::test
