#include "client/library/borrowed_memory.h"

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gdpcache::client {
namespace {

TEST(BorrowedMemoryTest, LendsLargeMemoryWithoutCopying) {
  const std::vector<char> bytes(100'000, 'x');
  BorrowedMemory memory;
  const grpc::Slice slice = memory.Lend(bytes.data(), bytes.size());
  EXPECT_EQ(reinterpret_cast<const char*>(slice.begin()), bytes.data());
  EXPECT_EQ(slice.size(), bytes.size());
}

TEST(BorrowedMemoryTest, CopiesSmallMemory) {
  std::vector<char> bytes(100, 'x');
  BorrowedMemory memory;
  const grpc::Slice slice = memory.Lend(bytes.data(), bytes.size());
  EXPECT_NE(reinterpret_cast<const char*>(slice.begin()), bytes.data());
  EXPECT_EQ(*slice.begin(), 'x');
}

TEST(BorrowedMemoryTest, EndsOnlyWhenEverySliceIsGone) {
  const std::vector<char> bytes(100'000);
  std::atomic<bool> released = false;
  std::thread holder;
  {
    BorrowedMemory memory;
    std::optional<grpc::Slice> first = memory.Lend(bytes.data(), bytes.size());
    std::optional<grpc::Slice> second = memory.Lend(bytes.data(), bytes.size());
    first.reset();
    holder = std::thread([slice = std::move(second), &released]() mutable {
      released = true;
      slice.reset();
    });
  }
  EXPECT_TRUE(released);
  holder.join();
}

}  // namespace
}  // namespace gdpcache::client
