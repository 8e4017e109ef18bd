#include "server/observe/out_of_memory.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <new>

namespace gdpcache::observe {
namespace {

TEST(OutOfMemoryDeathTest, TheProcessSaysSoAndEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        EndWhenOutOfMemory();
        volatile std::size_t more_than_there_is = std::size_t{1} << 62;
        try {
          ::operator delete(::operator new(more_than_there_is));
        } catch (const std::bad_alloc&) {  // as gRPC does
        }
      },
      "the heap has no memory left, ending");
}

}  // namespace
}  // namespace gdpcache::observe
