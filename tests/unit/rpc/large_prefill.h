#ifndef GDPCACHE_TESTS_UNIT_RPC_LARGE_PREFILL_H_
#define GDPCACHE_TESTS_UNIT_RPC_LARGE_PREFILL_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gdpcache/v1/prefill.pb.h"
#include "tests/reference/random_problem.h"
#include "tests/unit/rpc/served_world.h"

/// A prefill whose stream takes several segments, and what comes of it.
namespace gdpcache::rpc {

inline constexpr engine::EngineOptions kSmallSegments = {.segment_bytes = std::int64_t{64} << 10};

/// Its stream takes several segments of `ServedWorld(kSmallSegments)`.
inline testing::Problem LargeProblem() {
  testing::ProblemSpec spec;
  spec.shape = {.heads = 2,
                .key_dim = 32,
                .value_dim = 16,
                .num_householder = 2,
                .chunk_size = 16,
                .input_dtype = kernels::DataType::kBFloat16};
  spec.lengths = {700, 1200, 3, 500};
  spec.state_indices = {3, 0, 5, -1};
  return testing::RandomProblem(spec, 5);
}

/// Whether the response's tensors are these.
inline void ExpectResponse(const v1::PrefillResponse& response, const testing::Outputs& alone) {
  const auto text = [](const std::vector<std::byte>& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  EXPECT_TRUE(response.h().inline_() == text(alone.h.bytes));
  EXPECT_TRUE(response.v_new().inline_() == text(alone.v_new.bytes));
  EXPECT_TRUE(response.final_state().inline_() == text(alone.final_state.bytes));
  EXPECT_EQ(std::vector<std::int64_t>(response.h().shape().begin(), response.h().shape().end()), alone.h.shape);
  EXPECT_EQ(response.has_v_new(), alone.v_new.present());
  EXPECT_EQ(response.has_final_state(), alone.final_state.present());
}

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_TESTS_UNIT_RPC_LARGE_PREFILL_H_
