#ifndef GDPCACHE_CLIENT_COMMAND_RECORDED_BATCH_H_
#define GDPCACHE_CLIENT_COMMAND_RECORDED_BATCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gdpcache/prefill.h"
#include "gdpcache/tensor.h"
#include "proto/safetensors/safetensors.h"

namespace gdpcache::command {

/// One recorded call of the recurrence with its results. Every tensor has the shape that the others imply, and the
/// boundaries and slots are in range. Views point into `file`.
struct RecordedBatch {
  explicit RecordedBatch(SafetensorsFile recording) : file(std::move(recording)) {}

  SafetensorsFile file;
  std::string path;
  std::string name;

  std::int64_t tokens = 0;  // T, expanded
  std::int64_t heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t sequences = 0;   // N
  std::int64_t boundaries = 0;  // of all sequences
  std::int64_t num_householder = 1;
  std::int64_t chunk_size = 64;
  std::int64_t batch = 0;  // equal sequences; 0 for a ragged batch

  DataType states_dtype = DataType::kFloat32;
  bool save_new_value = false;
  bool output_final_state = false;
  InitialState initial_state_source = InitialState::kSlot;

  ConstTensor k;
  ConstTensor w;
  ConstTensor u;
  std::optional<ConstTensor> g;
  std::optional<ConstTensor> initial_state;
  std::optional<ConstTensor> state_before;  // [S, H, K, V]
  std::vector<std::int64_t> cu_seqlens;     // empty for a dense batch
  std::vector<std::int64_t> begins;         // [N + 1] first row of each sequence, and the end of the last
  std::vector<std::int64_t> state_indices;  // [N]; empty where no sequence has a slot

  // Results of the recorded kernel; absent where the file has none.
  std::optional<ConstTensor> out_h;
  std::optional<ConstTensor> out_v_new;
  std::optional<ConstTensor> out_state;
  std::optional<ConstTensor> out_final_state;

  // The recorded kernel's relative errors as the file tells them.
  std::optional<double> error_h;
  std::optional<double> error_v_new;
  std::optional<double> error_state;
};

/// Reads a recording. Errors name the file and what is wrong with it: NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS.
absl::StatusOr<RecordedBatch> LoadRecordedBatch(const std::string& path);

/// The name that safetensors files use for a type.
std::string SafetensorsDtype(DataType dtype);

}  // namespace gdpcache::command

#endif  // GDPCACHE_CLIENT_COMMAND_RECORDED_BATCH_H_
