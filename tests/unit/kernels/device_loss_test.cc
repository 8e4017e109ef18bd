// A device that is not there, and one that is lost.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace gdpcache::testing {
namespace {

using kernels::Backend;
using kernels::BackendChoice;

TEST(CudaDeviceTest, NumberBeyondThosePresentIsUnavailable) {
  const auto backend = kernels::CreateBackend({.choice = BackendChoice::kCuda, .cuda_device = 1000});
  if (absl::IsUnimplemented(backend.status())) GTEST_SKIP() << backend.status();
  ASSERT_EQ(backend.status().code(), absl::StatusCode::kUnavailable);
  if (kernels::CreateBackend({.choice = BackendChoice::kCuda}).ok()) {
    EXPECT_THAT(std::string(backend.status().message()), ::testing::HasSubstr("CUDA device 1000 is not present"));
  }
}

/// Copies states from where no memory is, which loses the device for this process.
[[noreturn]] void LoseTheDevice() {
  const auto end = [](const char* what, const absl::Status& status, bool as_wanted) {
    if (as_wanted) return;
    fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
    std::_Exit(1);
  };
  auto backend = kernels::CreateBackend({.choice = BackendChoice::kCuda});
  end("creation", backend.status(), backend.ok());
  auto stream = (*backend)->CreateStream();
  auto buffer = (*backend)->Allocate(64, kernels::MemoryKind::kDevice);
  end("allocation", buffer.status(), buffer.ok());
  const kernels::RecurrenceShape shape{.heads = 1, .key_dim = 4, .value_dim = 4};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that no device memory has
  const kernels::StateView nowhere{reinterpret_cast<void*>(std::uintptr_t{4096}), kernels::DataType::kFloat32, 16};
  absl::Status status =
      (*backend)->CopyStates(shape, {{{buffer->data(), kernels::DataType::kFloat32, 16}, nowhere}}, **stream);
  status.Update((*backend)->Synchronize(**stream));
  end("the copy", status, absl::IsUnavailable(status));
  status = (*backend)->Synchronize(**stream);
  end("what comes behind", status, absl::IsUnavailable(status));
  status = (*backend)->Allocate(64, kernels::MemoryKind::kDevice).status();
  end("an allocation behind", status, absl::IsUnavailable(status));
  std::_Exit(0);
}

TEST(CudaDeviceLossDeathTest, EveryLaterOperationIsUnavailable) {
  const auto backend = kernels::CreateBackend({.choice = BackendChoice::kCuda});
  if (!backend.ok()) GTEST_SKIP() << backend.status();
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process and a device context of its own
  EXPECT_EXIT(LoseTheDevice(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gdpcache::testing
