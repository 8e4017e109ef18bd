#ifndef GDPCACHE_TESTS_FUZZ_SNAPSHOT_INPUT_H_
#define GDPCACHE_TESTS_FUZZ_SNAPSHOT_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/cache/snapshots/snapshot_file.h"
#include "tests/fuzz/require.h"
#include "tests/support/sample_snapshot.h"

/// Snapshots' files that a fuzzer has made.
namespace gdpcache::fuzz {

inline absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Gives a file the checksum that it should have, which nobody guesses.
inline void Seal(std::string& file) {
  constexpr char kBefore[] = "\"checksum\":\"";
  const std::size_t found = file.find(kBefore);
  const std::size_t place = found + sizeof(kBefore) - 1;
  if (found == std::string::npos || file.size() - place < 32) return;
  file.replace(place, 32, 32, '0');
  cache::SnapshotHasher hasher;
  hasher.Add(AsBytes(file));
  const cache::SnapshotChecksum checksum = hasher.checksum();
  file.replace(place, 32, absl::BytesToHexString({reinterpret_cast<const char*>(checksum.data()), checksum.size()}));
}

struct SnapshotInput {
  cache::SnapshotFileInfo info;
  std::vector<std::byte> data;  // as a file has them
};

/// The file that is written of these data.
inline std::string FileOf(const cache::SnapshotRecord& record, std::vector<std::byte> data) {
  const absl::StatusOr<std::string> header =
      cache::EncodeSnapshotHeader(record, cache::PartsIn(record.space, data.data()));
  Require(header.ok(), "a record was read that cannot be written");
  return absl::StrCat(*header, absl::string_view(reinterpret_cast<const char*>(data.data()), data.size()));
}

/// Reads a whole file, so many bytes at a time.
inline absl::StatusOr<SnapshotInput> ReadFile(absl::string_view file, std::size_t piece) {
  cache::SnapshotFileReader reader(static_cast<std::int64_t>(file.size()));
  SnapshotInput input;
  std::vector<cache::SnapshotPart> parts;
  std::vector<kernels::ByteCopy> copies;
  for (std::size_t at = 0; at < file.size(); at += piece) {
    absl::Span<const std::byte> bytes = AsBytes(file.substr(at, piece));
    if (absl::Status status = reader.ReadHeader(bytes); !status.ok()) return status;
    if (!reader.has_header()) continue;
    const cache::SnapshotSpace& space = reader.info().record.space;
    if (parts.empty()) {
      // The header has been compared with the size that the file has, so this is no more than that.
      Require(space.snapshot_bytes() <= static_cast<std::int64_t>(file.size()), "more memory than the file has bytes");
      input.data.resize(static_cast<std::size_t>(space.snapshot_bytes()));
      parts = cache::PartsIn(space, input.data.data());
    }
    copies.clear();
    if (absl::Status status = reader.ReadData(bytes, parts, copies); !status.ok()) return status;
    for (const kernels::ByteCopy& copy : copies) std::memcpy(copy.destination, copy.source, copy.size);
  }
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  input.info = reader.info();
  return input;
}

}  // namespace gdpcache::fuzz

#endif  // GDPCACHE_TESTS_FUZZ_SNAPSHOT_INPUT_H_
