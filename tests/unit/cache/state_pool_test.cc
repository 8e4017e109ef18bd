#include "server/cache/state_pool.h"

#include <cstddef>
#include <set>

#include "gtest/gtest.h"
#include "server/cache/errors.h"
#include "tests/support/fault_injecting_backend.h"
#include "tests/support/heap_backend.h"

namespace gdpcache::cache {
namespace {

using test::FaultInjectingBackend;

Geometry WithAuxiliary() {
  Geometry geometry;
  geometry.layers = 3;
  geometry.slots = 5;
  geometry.heads = 2;
  geometry.key_dim = 4;
  geometry.value_dim = 3;
  geometry.auxiliary_bytes = 7;
  return geometry;
}

TEST(StatePoolTest, EveryPlaceHasItsOwnDenseBytes) {
  test::HeapBackend backend;
  const Geometry geometry = WithAuxiliary();
  absl::StatusOr<StatePool> pool = StatePool::Create(backend, geometry);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(backend.allocated_bytes(), geometry.total_bytes());
  std::set<std::byte*> states;
  std::set<std::byte*> auxiliaries;
  for (std::int64_t layer = 0; layer < geometry.layers; ++layer) {
    for (std::int64_t slot = 0; slot < geometry.slots; ++slot) {
      const kernels::StateView state = pool->State(layer, slot);
      EXPECT_EQ(state.head_stride, 12);
      EXPECT_EQ(state.dtype, kernels::DataType::kFloat32);
      states.insert(static_cast<std::byte*>(state.data));
      const kernels::ByteRange auxiliary = pool->Auxiliary(layer, slot);
      EXPECT_EQ(auxiliary.size, 7u);
      auxiliaries.insert(static_cast<std::byte*>(auxiliary.data));
    }
  }
  EXPECT_EQ(states.size(), 15u);
  EXPECT_EQ(*states.rbegin() - *states.begin(), 14 * geometry.state_bytes());
  EXPECT_EQ(auxiliaries.size(), 15u);
  EXPECT_EQ(*auxiliaries.rbegin() - *auxiliaries.begin(), 14 * 7);
}

TEST(StatePoolTest, WithoutAuxiliaryBytesTheirRangesAreEmpty) {
  test::HeapBackend backend;
  Geometry geometry = WithAuxiliary();
  geometry.auxiliary_bytes = 0;
  absl::StatusOr<StatePool> pool = StatePool::Create(backend, geometry);
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ(pool->Auxiliary(2, 4).size, 0u);
}

TEST(StatePoolTest, AFailedAllocationKeepsNothing) {
  test::HeapBackend heap;
  for (const int passed : {0, 1}) {
    FaultInjectingBackend backend(heap);
    backend.FailAfter(FaultInjectingBackend::Operation::kAllocate, passed, absl::ResourceExhaustedError("no 4 bytes"));
    const absl::StatusOr<StatePool> pool = StatePool::Create(backend, WithAuxiliary());
    ASSERT_EQ(pool.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(RetryAfterOf(pool.status()).has_value());
    EXPECT_EQ(heap.allocated_bytes(), 0);
  }
}

}  // namespace
}  // namespace gdpcache::cache
