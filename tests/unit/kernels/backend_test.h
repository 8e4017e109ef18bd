#ifndef GDPCACHE_TESTS_UNIT_KERNELS_BACKEND_TEST_H_
#define GDPCACHE_TESTS_UNIT_KERNELS_BACKEND_TEST_H_

#include <memory>

#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace gdpcache::testing {

/// A test that every backend must pass; skipped where the backend was not built in or has no device. Use
/// GDPCACHE_INSTANTIATE_BACKEND_TESTS to run it.
class BackendTest : public ::testing::TestWithParam<kernels::BackendChoice> {
 protected:
  void SetUp() override;

  kernels::Backend& backend() { return *backend_; }
  kernels::Stream& stream() { return *stream_; }
  bool is_cpu() const { return GetParam() == kernels::BackendChoice::kCpu; }

 private:
  kernels::Backend* backend_ = nullptr;  // shared by all tests, since starting a device takes long
  std::unique_ptr<kernels::Stream> stream_;
};

#define GDPCACHE_INSTANTIATE_BACKEND_TESTS(fixture)                                                           \
  INSTANTIATE_TEST_SUITE_P(                                                                                   \
      , fixture,                                                                                              \
      ::testing::Values(::gdpcache::kernels::BackendChoice::kCpu, ::gdpcache::kernels::BackendChoice::kCuda), \
      [](const ::testing::TestParamInfo<::gdpcache::kernels::BackendChoice>& choice) {                        \
        return choice.param == ::gdpcache::kernels::BackendChoice::kCpu ? "Cpu" : "Cuda";                     \
      })

}  // namespace gdpcache::testing

#endif  // GDPCACHE_TESTS_UNIT_KERNELS_BACKEND_TEST_H_
