#ifndef GDPCACHE_TESTS_UNIT_CLIENT_COMMAND_SMALL_BATCH_H_
#define GDPCACHE_TESTS_UNIT_CLIENT_COMMAND_SMALL_BATCH_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/safetensors/safetensors.h"

namespace gdpcache::test {

/// A recording to be changed and written by a test. At first: H = K = V = 1, M = 1, chunks of two tokens, two sequences
/// of 3 and 0 tokens in slots 2 and 0 of three, float32 throughout, no results.
class SmallBatch {
 public:
  SmallBatch() {
    Floats("k", {3, 1, 1}, {1, 2, 3});
    Floats("w", {3, 1, 1}, {0.5, 1, 2});
    Floats("u", {3, 1, 1}, {10, 20, 30});
    Floats("g", {3, 1}, {-1, -2, -1});
    Floats("state.before", {3, 1, 1, 1}, {7, 8, 4});
    Integers("cu_seqlens", {0, 3, 3});
    Integers("state_indices", {2, 0});
    metadata = {{"name", "small"},           {"num_householder", "1"},   {"chunk_size", "2"},
                {"states_dtype", "float32"}, {"save_new_value", "true"}, {"output_final_state", "true"},
                {"initial_state", "slot"}};
  }

  void Floats(const std::string& name, const std::vector<std::int64_t>& shape, const std::vector<float>& values) {
    Set(name, "F32", shape, values.data(), values.size() * 4);
  }

  void Integers(const std::string& name, const std::vector<std::int32_t>& values) {
    Set(name, "I32", {static_cast<std::int64_t>(values.size())}, values.data(), values.size() * 4);
  }

  void Set(const std::string& name, const std::string& dtype, const std::vector<std::int64_t>& shape, const void* data,
           std::size_t size) {
    std::vector<std::byte> bytes(size);
    if (size > 0) std::memcpy(bytes.data(), data, size);
    tensors_[name] = {dtype, shape, std::move(bytes)};
  }

  void Remove(const std::string& name) { tensors_.erase(name); }

  absl::Status Write(const std::string& path) const {
    std::vector<TensorToWrite> list;
    for (const auto& [name, tensor] : tensors_) list.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
    return WriteSafetensors(path, list, metadata);
  }

  std::map<std::string, std::string> metadata;

 private:
  struct Stored {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Stored> tensors_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_UNIT_CLIENT_COMMAND_SMALL_BATCH_H_
