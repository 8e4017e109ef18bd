#include "server/cache/snapshots/snapshot.h"

#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"

namespace gdpcache::cache {

absl::Status CheckSnapshotKey(absl::string_view field, absl::string_view key) {
  if (key.size() >= kMinSnapshotKeyBytes && key.size() <= kMaxSnapshotKeyBytes) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("has ", Counted(std::ssize(key), "byte"), "; a key has ",
                                          kMinSnapshotKeyBytes, " to ", kMaxSnapshotKeyBytes));
}

}  // namespace gdpcache::cache
