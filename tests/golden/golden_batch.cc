#include "tests/golden/golden_batch.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/safetensors/safetensors.h"

namespace gdpcache::testing {
namespace {

using kernels::DataType;

HostTensor Tensor(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* info = file.Find(name);
  if (info == nullptr) return {};
  const absl::Span<const std::byte> bytes = file.Data(*info);
  HostTensor tensor;
  if (info->dtype == "BF16") tensor.dtype = DataType::kBFloat16;
  if (info->dtype == "F16") tensor.dtype = DataType::kFloat16;
  tensor.shape = info->shape;
  tensor.bytes.assign(bytes.begin(), bytes.end());
  return tensor;
}

std::vector<std::int64_t> Integers(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* info = file.Find(name);
  if (info == nullptr) return {};
  std::vector<std::int32_t> values(static_cast<std::size_t>(info->elements));
  std::memcpy(values.data(), file.Data(*info).data(), values.size() * sizeof(std::int32_t));
  return {values.begin(), values.end()};
}

/// The source tree's, unless the environment names another: tests may run on a machine without the tree.
std::string Directory() {
  const char* moved = std::getenv("GDPCACHE_GOLDEN_DIRECTORY");
  return moved != nullptr ? moved : GDPCACHE_GOLDEN_DIRECTORY;
}

}  // namespace

std::vector<std::string> GoldenBatchNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(Directory())) {
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string GoldenBatchPath(const std::string& name) { return absl::StrCat(Directory(), "/", name, ".safetensors"); }

absl::StatusOr<GoldenBatch> LoadGoldenBatch(const std::string& name) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(GoldenBatchPath(name));
  if (!file.ok()) return file.status();
  const auto metadata = [&](const std::string& key) {
    const auto found = file->metadata().find(key);
    return found == file->metadata().end() ? std::string() : found->second;
  };
  const auto number = [&](const std::string& key) { return std::strtod(metadata(key).c_str(), nullptr); };

  GoldenBatch batch;
  batch.name = metadata("name");
  batch.recorded = {Tensor(*file, "out.h"), Tensor(*file, "out.v_new"), Tensor(*file, "out.state"),
                    Tensor(*file, "out.final_state")};
  batch.recorded_error_h = number("triton_err_h");
  batch.recorded_error_v_new = number("triton_err_v_new");
  batch.recorded_error_state = number("triton_err_state");

  Problem& problem = batch.problem;
  problem.k = Tensor(*file, "k");
  problem.w = Tensor(*file, "w");
  problem.u = Tensor(*file, "u");
  problem.g = Tensor(*file, "g");
  problem.state = Tensor(*file, "state.before");
  problem.initial_state = Tensor(*file, "initial_state");
  problem.state_indices = Integers(*file, "state_indices");
  problem.cu_seqlens = Integers(*file, "cu_seqlens");
  if (problem.k.shape.size() != 3 || problem.u.shape.size() != 3) {
    return absl::DataLossError(absl::StrCat(name, ": k and u must have three dimensions"));
  }
  if (problem.cu_seqlens.empty()) {
    const auto sequences = static_cast<std::int64_t>(number("batch"));
    if (sequences < 1) return absl::DataLossError(absl::StrCat(name, ": has neither cu_seqlens nor batch"));
    for (std::int64_t n = 0; n <= sequences; ++n) problem.cu_seqlens.push_back(n * (problem.k.shape[0] / sequences));
  }
  problem.shape = {.heads = problem.k.shape[1],
                   .key_dim = problem.k.shape[2],
                   .value_dim = problem.u.shape[2],
                   .num_householder = static_cast<std::int64_t>(number("num_householder")),
                   .chunk_size = static_cast<std::int64_t>(number("chunk_size")),
                   .input_dtype = problem.k.dtype};
  problem.states_dtype = metadata("states_dtype") == "bfloat16" ? DataType::kBFloat16 : DataType::kFloat32;
  problem.save_new_value = metadata("save_new_value") == "true";
  problem.output_final_state = batch.recorded.final_state.present();
  if (metadata("initial_state") == "zero") problem.initial = InitialState::kZero;
  if (metadata("initial_state") == "dense") problem.initial = InitialState::kTensor;
  return batch;
}

}  // namespace gdpcache::testing
