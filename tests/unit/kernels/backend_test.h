#ifndef GDPCACHE_TESTS_UNIT_KERNELS_BACKEND_TEST_H_
#define GDPCACHE_TESTS_UNIT_KERNELS_BACKEND_TEST_H_

#include <memory>
#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace gdpcache::testing {

struct BackendUnderTest {
  kernels::BackendChoice choice;
  const char* name;    // what DeviceInfo calls it, with a capital
  bool keeps_float32;  // S and x stay float32 or better, whatever the inputs are; else their dtype is enough
};

/// All that there are: a new backend gets a line here.
inline constexpr BackendUnderTest kBackendsUnderTest[] = {
    {.choice = kernels::BackendChoice::kCpu, .name = "Cpu", .keeps_float32 = true},
    {.choice = kernels::BackendChoice::kCuda, .name = "Cuda", .keeps_float32 = false},
};

inline std::ostream& operator<<(std::ostream& out, const BackendUnderTest& backend) { return out << backend.name; }

/// A test that every backend must pass; skipped where the backend was not built in or has no device. Use
/// GDPCACHE_INSTANTIATE_BACKEND_TESTS to run it.
class BackendTest : public ::testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override;

  kernels::Backend& backend() { return *backend_; }
  kernels::Stream& stream() { return *stream_; }

 private:
  kernels::Backend* backend_ = nullptr;  // shared by all tests, since starting a device takes long
  std::unique_ptr<kernels::Stream> stream_;
};

#define GDPCACHE_INSTANTIATE_BACKEND_TESTS(fixture)                                                 \
  INSTANTIATE_TEST_SUITE_P(, fixture, ::testing::ValuesIn(::gdpcache::testing::kBackendsUnderTest), \
                           [](const auto& backend) { return std::string(backend.param.name); })

}  // namespace gdpcache::testing

#endif  // GDPCACHE_TESTS_UNIT_KERNELS_BACKEND_TEST_H_
