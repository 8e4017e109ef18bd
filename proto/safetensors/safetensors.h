#ifndef GDPCACHE_PROTO_SAFETENSORS_SAFETENSORS_H_
#define GDPCACHE_PROTO_SAFETENSORS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

/// Reading and writing of safetensors files: an 8-byte little-endian header length, a JSON header, then the tensors'
/// bytes without gaps. Files are untrusted: whatever they hold, reading them returns a status and takes no more memory
/// than the file and its header account for.
namespace gdpcache {

/// The longest header accepted; real ones have some hundred bytes per tensor.
inline constexpr std::int64_t kMaxSafetensorsHeaderBytes = std::int64_t{16} << 20;

/// The largest file SafetensorsFile::Open reads unless told otherwise.
inline constexpr std::int64_t kDefaultMaxSafetensorsFileBytes = std::int64_t{64} << 30;

/// Bytes of one element of a safetensors dtype ("F32", "BF16", "U8", ...), or 0 when the name is unknown.
std::int64_t SafetensorsElementSize(std::string_view dtype);

/// One tensor of an open file. Row-major, little-endian, dense.
struct TensorInfo {
  std::string name;
  std::string dtype;                // as in the file: "F32", "BF16", "F16", "I32", "I64", "U8", ...
  std::vector<std::int64_t> shape;  // every dimension at least 0; empty for a scalar
  std::int64_t elements = 0;        // the product of the shape
  std::int64_t offset = 0;          // of the first byte, from the start of the data section
  std::int64_t size = 0;            // in bytes
};

/// A whole file in memory. Cheap to copy; copies share the bytes. Immutable, so threads may share it.
class SafetensorsFile {
 public:
  /// Reads the file. NOT_FOUND or another file-system status when it cannot be opened; INVALID_ARGUMENT when it is not
  /// a regular file, is longer than `max_bytes` or is no valid safetensors file; DATA_LOSS when it is cut short;
  /// RESOURCE_EXHAUSTED when memory for it is not available.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path,
                                              std::int64_t max_bytes = kDefaultMaxSafetensorsFileBytes);

  /// The same checks on a file that is in memory already.
  static absl::StatusOr<SafetensorsFile> Parse(std::string bytes);

  /// The entries of "__metadata__".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// The tensor of that name, or nullptr. Valid as long as this object is.
  const TensorInfo* Find(std::string_view name) const;

  /// All tensor names in ascending order.
  std::vector<std::string> names() const;

  /// The tensor's bytes, with no alignment promised. `tensor` must be one of this file's.
  absl::Span<const std::byte> Data(const TensorInfo& tensor) const;

 private:
  SafetensorsFile() = default;

  std::map<std::string, std::string> metadata_;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
  std::shared_ptr<const void> owner_;  // keeps data_ alive
  const std::byte* data_ = nullptr;    // the data section
};

/// A tensor as a header tells it.
struct TensorDescription {
  std::string name;                 // not "__metadata__", no two alike
  std::string dtype;                // a name SafetensorsElementSize knows
  std::vector<std::int64_t> shape;  // every dimension at least 0
};

/// Everything of a file that comes before the data: the length, the JSON header and spaces up to a multiple of 8 bytes.
/// The metadata comes first, in its keys' order, then the tensors in the order given, which is also their data's. The
/// same arguments always give the same bytes. INVALID_ARGUMENT names the tensor that is wrong.
absl::StatusOr<std::string> EncodeSafetensorsHeader(absl::Span<const TensorDescription> tensors,
                                                    const std::map<std::string, std::string>& metadata);

/// Where the data of a file of `file_bytes` begin: the header's length, which the file's first 8 bytes (`beginning` has
/// them or more) tell, and these. INVALID_ARGUMENT when it is longer than any header accepted; DATA_LOSS when it is
/// longer than the file.
absl::StatusOr<std::int64_t> ReadSafetensorsHeaderBytes(std::string_view beginning, std::int64_t file_bytes);

/// What the beginning of a file says when its metadata comes first, as EncodeSafetensorsHeader puts it.
struct SafetensorsBeginning {
  std::int64_t header_bytes = 0;  // of the length and the header: where the data begin
  std::map<std::string, std::string> metadata;
};

/// Reads no further than the metadata's end, so that many files can be looked at quickly: `beginning` has the first
/// bytes of a file of `file_bytes`, up to that end or more. INVALID_ARGUMENT when they are not the beginning of such a
/// file; DATA_LOSS when it is cut short.
absl::StatusOr<SafetensorsBeginning> ReadSafetensorsBeginning(std::string_view beginning, std::int64_t file_bytes);

/// A tensor to store.
struct TensorToWrite {
  std::string name;                 // not "__metadata__", no two alike
  std::string dtype;                // a name SafetensorsElementSize knows
  std::vector<std::int64_t> shape;  // its product times the element size must equal data.size()
  absl::Span<const std::byte> data;
};

/// Writes a file under a temporary name in the same directory and renames it to `path`, so that nobody sees a part of
/// it; a failed write leaves nothing behind. INVALID_ARGUMENT if `path` is a device or the like, which the rename would
/// replace. Not synchronised to the medium: after a power failure the file may be
/// missing or damaged. Tensors are stored in the order given; wider element types first keeps all of them aligned.
absl::Status WriteSafetensors(const std::string& path, absl::Span<const TensorToWrite> tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace gdpcache

#endif  // GDPCACHE_PROTO_SAFETENSORS_SAFETENSORS_H_
