// An import: the bytes of a file come in pieces and go to their places. Once as they are and once with the checksum
// that they should have, or nothing that is made up would ever get behind it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/cache/snapshots/snapshot_file.h"
#include "tests/fuzz/require.h"
#include "tests/support/sample_snapshot.h"

namespace gdpcache::cache {
namespace {

using fuzz::Require;

absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void Seal(std::string& file) {
  constexpr char kBefore[] = "\"checksum\":\"";
  const std::size_t found = file.find(kBefore);
  const std::size_t place = found + sizeof(kBefore) - 1;
  if (found == std::string::npos || file.size() - place < 32) return;
  file.replace(place, 32, 32, '0');
  SnapshotHasher hasher;
  hasher.Add(AsBytes(file));
  const SnapshotChecksum checksum = hasher.checksum();
  file.replace(place, 32, absl::BytesToHexString({reinterpret_cast<const char*>(checksum.data()), checksum.size()}));
}

absl::Status Read(absl::string_view file, std::size_t piece) {
  SnapshotFileReader reader(static_cast<std::int64_t>(file.size()));
  std::vector<std::byte> data;
  std::vector<SnapshotPart> parts;
  std::vector<kernels::ByteCopy> copies;
  for (std::size_t at = 0; at < file.size(); at += piece) {
    absl::Span<const std::byte> bytes = AsBytes(file.substr(at, piece));
    if (absl::Status status = reader.ReadHeader(bytes); !status.ok()) return status;
    if (!reader.has_header()) continue;
    const SnapshotSpace& space = reader.info().record.space;
    if (parts.empty()) {
      // The header has been compared with the size that the file has, so this is no more than that.
      Require(space.snapshot_bytes() <= static_cast<std::int64_t>(file.size()), "more memory than the file has bytes");
      data.resize(static_cast<std::size_t>(space.snapshot_bytes()));
      parts = test::PartsIn(space, data.data());
    }
    copies.clear();
    if (absl::Status status = reader.ReadData(bytes, parts, copies); !status.ok()) return status;
    for (const kernels::ByteCopy& copy : copies) std::memcpy(copy.destination, copy.source, copy.size);
  }
  if (absl::Status status = reader.Finish(); !status.ok()) return status;

  // What is accepted is what would be written.
  const absl::StatusOr<std::string> header = EncodeSnapshotHeader(reader.info().record, parts);
  Require(header.ok(), "a record was read that cannot be written");
  Require(absl::StrCat(*header, absl::string_view(reinterpret_cast<const char*>(data.data()), data.size())) == file,
          "a file was accepted that is not what the snapshot's file is");
  return absl::OkStatus();
}

}  // namespace
}  // namespace gdpcache::cache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string file(reinterpret_cast<const char*>(data), size);
  gdpcache::cache::Read(file, std::max<std::size_t>(size, 1)).IgnoreError();
  gdpcache::cache::Seal(file);
  gdpcache::cache::Read(file, 1 + size % 251).IgnoreError();
  return 0;
}
