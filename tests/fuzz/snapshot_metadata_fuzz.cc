// The scan of a directory: the metadata at the beginning of a file of some size. The input's last 8 bytes are that
// size.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/string_view.h"
#include "server/cache/snapshots/snapshot_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gdpcache::cache;  // NOLINT(google-build-using-namespace): the entry has to be outside
  std::int64_t file_bytes = 0;
  if (size < sizeof(file_bytes)) return 0;
  size -= sizeof(file_bytes);
  std::memcpy(&file_bytes, data + size, sizeof(file_bytes));
  const absl::string_view beginning(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<SnapshotFileInfo> info = ReadSnapshotMetadata(beginning, file_bytes);
  if (!info.ok()) return 0;
  const SnapshotSpace& space = info->record.space;
  const bool sizes_agree = info->header_bytes + space.snapshot_bytes() == file_bytes;
  if (!sizes_agree || !SnapshotFileWriter::Create(info->record).ok()) {
    std::fprintf(stderr, "metadata were accepted that no snapshot has\n");
    std::abort();
  }
  return 0;
}
