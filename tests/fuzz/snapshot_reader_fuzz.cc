// An import: the bytes of a file come in pieces and go to their places. Once as they are and once with the checksum
// that they should have, or nothing that is made up would ever get behind it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/snapshot_input.h"

namespace gdpcache::fuzz {
namespace {

void Read(const std::string& file, std::size_t piece) {
  const absl::StatusOr<SnapshotInput> read = ReadFile(file, piece);
  if (!read.ok()) return;
  // What is accepted is what would be written, but for what a later version may have added to the metadata.
  const bool written = FileOf(read->info.record, read->data) == file;
  Require(written == read->info.unknown_metadata.empty(),
          "a file was accepted that is not what the snapshot's file is");
}

}  // namespace
}  // namespace gdpcache::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string file(reinterpret_cast<const char*>(data), size);
  gdpcache::fuzz::Read(file, std::max<std::size_t>(size, 1));
  gdpcache::fuzz::Seal(file);
  gdpcache::fuzz::Read(file, 1 + size % 251);
  return 0;
}
