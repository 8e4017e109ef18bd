#ifndef GDPCACHE_TESTS_FUZZ_DIFFERENTIAL_H_
#define GDPCACHE_TESTS_FUZZ_DIFFERENTIAL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/require.h"

/// What the fuzz targets share that make batches of their input and compare results.
namespace gdpcache::differential {

/// As fuzz::Require; a failed expectation of GoogleTest is a finding, too.
inline void Require(bool condition, const char* what) {
  fuzz::Require(condition && !::testing::Test::HasFailure(), what);
}

/// The input's bytes as choices; zeros when they are used up.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::int64_t Below(std::int64_t count) {
    if (size_ == 0) return 0;
    --size_;
    return *data_++ % count;
  }
  template <typename T>
  T Of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(Below(static_cast<std::int64_t>(values.size())))];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

}  // namespace gdpcache::differential

#endif  // GDPCACHE_TESTS_FUZZ_DIFFERENTIAL_H_
