// A safetensors file that somebody else has written: read as what it says it is, and as a recorded batch to replay.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/command/recorded_batch.h"
#include "proto/safetensors/safetensors.h"
#include "tests/fuzz/require.h"

namespace gdpcache {
namespace {

using fuzz::Require;

/// Reads every byte, for AddressSanitizer to look at.
void Touch(const void* data, std::int64_t size) {
  static volatile unsigned sink = 0;
  unsigned sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += static_cast<const unsigned char*>(data)[i];
  sink = sink + sum;
}

void Touch(const std::optional<ConstTensor>& tensor) {
  if (!tensor.has_value()) return;
  const absl::StatusOr<std::int64_t> size = ByteSize(tensor->dtype, tensor->shape);
  Require(size.ok(), "a tensor has no size");
  Touch(tensor->data, *size);
}

/// What has been read, written again, is read as the same.
void CheckWrittenAgain(const SafetensorsFile& file) {
  std::vector<const TensorInfo*> tensors;
  for (const std::string& name : file.names()) tensors.push_back(file.Find(name));
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->offset, a->size) < std::pair(b->offset, b->size);
  });
  std::vector<TensorDescription> descriptions;
  std::string data;
  for (const TensorInfo* const tensor : tensors) {
    descriptions.push_back({tensor->name, tensor->dtype, tensor->shape});
    const absl::Span<const std::byte> bytes = file.Data(*tensor);
    Require(static_cast<std::int64_t>(bytes.size()) == tensor->size, "a tensor is larger than it says");
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  const absl::StatusOr<std::string> header = EncodeSafetensorsHeader(descriptions, file.metadata());
  Require(header.ok(), "a header was read that cannot be written");
  const absl::StatusOr<SafetensorsFile> again = SafetensorsFile::Parse(absl::StrCat(*header, data));
  Require(again.ok() && again->metadata() == file.metadata() && again->names() == file.names(), "it was written wrong");
  for (const TensorInfo* const tensor : tensors) {
    const TensorInfo& other = *again->Find(tensor->name);
    Require(other.dtype == tensor->dtype && other.shape == tensor->shape && other.size == tensor->size &&
                std::ranges::equal(again->Data(other), file.Data(*tensor)),
            "a tensor was written wrong");
  }
}

void ReadAsRecording(const std::string& bytes) {
  const int file = memfd_create("recording", MFD_CLOEXEC);
  if (file < 0 || write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  const absl::StatusOr<command::RecordedBatch> batch = command::LoadRecordedBatch(absl::StrCat("/proc/self/fd/", file));
  close(file);
  if (!batch.ok()) return;
  for (const ConstTensor& tensor : {batch->k, batch->w, batch->u}) Touch(std::optional(tensor));
  for (const std::optional<ConstTensor>& tensor : {batch->g, batch->initial_state, batch->state_before, batch->out_h,
                                                   batch->out_v_new, batch->out_state, batch->out_final_state}) {
    Touch(tensor);
  }
  Require(static_cast<std::int64_t>(batch->begins.size()) == batch->sequences + 1, "begins");
  Require(std::is_sorted(batch->begins.begin(), batch->begins.end()) && batch->begins.front() >= 0 &&
              batch->begins.back() <= batch->tokens,
          "a sequence lies outside");
}

}  // namespace
}  // namespace gdpcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gdpcache;  // NOLINT(google-build-using-namespace): the entry has to be outside
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto file_bytes = static_cast<std::int64_t>(size);
  ReadSafetensorsHeaderBytes(bytes, file_bytes).IgnoreError();
  const absl::StatusOr<SafetensorsBeginning> beginning = ReadSafetensorsBeginning(bytes, file_bytes);
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Parse(bytes);
  if (file.ok()) {
    Require(!beginning.ok() || beginning->metadata == file->metadata(), "two readers read two things");
    CheckWrittenAgain(*file);
  }
  ReadAsRecording(bytes);
  return 0;
}
