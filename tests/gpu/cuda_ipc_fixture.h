#ifndef GDPCACHE_TESTS_GPU_CUDA_IPC_FIXTURE_H_
#define GDPCACHE_TESTS_GPU_CUDA_IPC_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/gpu_tensors.h"
#include "tests/support/control_client.h"
#include "tests/support/server_process.h"

namespace gdpcache::test {

/// A server on the GPU, and a client of it with a session and two slots.
class CudaIpcTest : public ::testing::Test {
 protected:
  CudaIpcTest() {
    v1::CreateCacheRequest request = ControlClient::SmallCache("model", 8);
    request.mutable_geometry()->set_heads(kHeads);
    request.mutable_geometry()->set_key_dim(kDim);
    request.mutable_geometry()->set_value_dim(kDim);
    control_.CreateCache(request);
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

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_GPU_CUDA_IPC_FIXTURE_H_
