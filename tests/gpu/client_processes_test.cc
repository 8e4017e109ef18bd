// The clients on GPU memory are several processes. As "--client ADDRESS CACHE" this program is one more, which calls
// until it is killed; as "--ahead ADDRESS CACHE" one that does not wait for its calls.

#include <cuda_runtime_api.h>
#include <signal.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/cuda_ipc_fixture.h"
#include "tests/gpu/gpu_tensors.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"
#include "tests/support/process.h"
#include "tests/support/server_process.h"

namespace gdpcache::test {
namespace {

std::string program;  // this one

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
