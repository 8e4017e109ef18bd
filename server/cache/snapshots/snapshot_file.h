#ifndef GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_FILE_H_
#define GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "server/cache/snapshots/snapshot.h"
#include "server/cache/snapshots/snapshot_hasher.h"

/// The portable form of a snapshot: on disk, exported, imported. It is a safetensors file whose every byte follows from
/// the snapshot:
///
/// - The header as EncodeSafetensorsHeader writes it, so the metadata come first. All their values are text:
///     format           "gdpcache-snapshot"
///     format_version   kSnapshotFormatVersion
///     layout_version   kStateLayoutVersion
///     tenant, fingerprint   arbitrary bytes, written as in URLs: the printable ASCII characters as they are, except
///                      '%', '"' and '\'; these and all other bytes as '%' and two hexadecimal digits (A-F)
///     layers, heads, key_dim, value_dim, num_householder, auxiliary_bytes, position   decimal
///     state_dtype      float32, bfloat16 or float16
///     key              hexadecimal (a-f)
///     checksum         of the whole file with '0' for its own 32 digits: XXH3-128, hexadecimal (a-f)
/// - The tensors "layer.0.state", "layer.1.state", ... [heads, key_dim, value_dim], then, where auxiliary_bytes is not
/// 0,
///   "layer.0.auxiliary", "layer.1.auxiliary", ... U8 [auxiliary_bytes]. The states come first since they need their
///   elements' alignment.
///
/// Readers accept nothing else, but for metadata of other names, which they pass over: so a later server may add what
/// an earlier one does without. Whatever an earlier one could misunderstand is a new format_version, whose files it
/// leaves alone; a later one goes on reading version 1. Errors: FAILED_PRECONDITION for a format or layout version that
/// is not ours, INVALID_ARGUMENT for a safetensors file that is no snapshot, DATA_LOSS for everything that is damaged
/// or made up.
namespace gdpcache::cache {

inline constexpr std::int64_t kSnapshotFormatVersion = 1;

/// The metadata end within so many bytes of a file's beginning; a tenant and a fingerprint too long for that have no
/// file.
inline constexpr std::int64_t kMaxSnapshotMetadataBytes = 8'192;

/// OK when both are the same space; FAILED_PRECONDITION says what differs: "heads is 8, not 16; ...".
absl::Status CheckSameSpace(const SnapshotSpace& actual, const SnapshotSpace& expected);

/// One part per layer, each of the space's sizes; else INTERNAL names the part, for it is the caller's mistake.
absl::Status CheckParts(const SnapshotSpace& space, absl::Span<const SnapshotPart> parts);

/// One part per layer of the space, one behind the other from `memory` on, in a file's order.
std::vector<SnapshotPart> PartsIn(const SnapshotSpace& space, void* memory);

/// Appends where the bytes from `offset` to `offset + size` of a file's data lie in `parts`, in the file's order. The
/// parts must be those of one space, the range inside their data.
void AppendDataRanges(absl::Span<const SnapshotPart> parts, std::int64_t offset, std::int64_t size,
                      std::vector<kernels::ByteRange>& ranges);

/// Makes the header of one file. The data are hashed on their way to the file, so that one pass over them is enough;
/// the header, whose size is known before, is written last.
class SnapshotFileWriter {
 public:
  /// INVALID_ARGUMENT names what is wrong with the record.
  static absl::StatusOr<SnapshotFileWriter> Create(const SnapshotRecord& record);

  std::int64_t header_bytes() const { return static_cast<std::int64_t>(header_.size()); }
  std::int64_t file_bytes() const { return header_bytes() + data_bytes_; }

  /// The next bytes of the data, in host memory.
  void AddData(absl::Span<const std::byte> bytes) { hasher_.Add(bytes); }

  /// What comes before the data, and the file's checksum, once all of them have been added.
  std::string header() const;
  SnapshotChecksum checksum() const { return hasher_.checksum(); }

 private:
  SnapshotFileWriter(std::string header, std::int64_t data_bytes);

  std::string header_;  // with zeros for the checksum
  std::int64_t data_bytes_;
  SnapshotHasher hasher_;
};

/// The header of the file whose data are `parts`, which must be in memory that the host reads.
absl::StatusOr<std::string> EncodeSnapshotHeader(const SnapshotRecord& record, absl::Span<const SnapshotPart> parts);

/// What a file's metadata claim.
struct SnapshotFileInfo {
  SnapshotRecord record;
  SnapshotChecksum checksum = {};
  std::int64_t header_bytes = 0;  // where the data begin
  std::map<std::string, std::string> unknown_metadata;
};

/// Reads the metadata of a file of `file_bytes` from its beginning: kMaxSnapshotMetadataBytes, or the whole file when
/// it is shorter. The file's size is found to be right; whether the rest is, only SnapshotFileReader tells.
absl::StatusOr<SnapshotFileInfo> ReadSnapshotMetadata(absl::string_view beginning, std::int64_t file_bytes);

/// Takes in an untrusted file piece by piece. First the header, with ReadHeader, then the data, with AddData or
/// ReadData, then Finish. Holds no more than the header, and that only until it is complete. After an error the object
/// is of no more use.
class SnapshotFileReader {
 public:
  /// `file_bytes`: size of the whole file.
  explicit SnapshotFileReader(std::int64_t file_bytes) : file_bytes_(file_bytes) {}

  /// Takes what belongs to the header off the front of `bytes`. Once it is complete, it has been checked whole: the
  /// tensors are those of the metadata's geometry, and they are all.
  absl::Status ReadHeader(absl::Span<const std::byte>& bytes);

  bool has_header() const { return has_header_; }

  /// What the header says; only when there is one. Not yet proven by the checksum.
  const SnapshotFileInfo& info() const { return info_; }

  /// Counts the next bytes of the data in.
  absl::Status AddData(absl::Span<const std::byte> bytes);

  /// Counts them in and appends the copies that bring them to their place in `parts` (those of the header's space).
  absl::Status ReadData(absl::Span<const std::byte> bytes, absl::Span<const SnapshotPart> parts,
                        std::vector<kernels::ByteCopy>& copies);

  /// Bytes of the file taken in so far.
  std::int64_t received() const { return received_; }

  /// OK when the file is complete and its checksum is right. Only then the data are to be used.
  absl::Status Finish() const;

 private:
  absl::Status CheckHeader();

  std::int64_t file_bytes_;
  std::int64_t received_ = 0;
  std::string header_;
  bool has_header_ = false;
  SnapshotFileInfo info_;
  SnapshotHasher hasher_;
};

}  // namespace gdpcache::cache

#endif  // GDPCACHE_SERVER_CACHE_SNAPSHOTS_SNAPSHOT_FILE_H_
