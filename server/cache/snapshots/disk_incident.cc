#include "server/cache/snapshots/disk_incident.h"

namespace gdpcache::cache {

absl::string_view Name(DiskIncident::Kind kind) {
  switch (kind) {
    case DiskIncident::Kind::kFull:
      return "full";
    case DiskIncident::Kind::kWriteFailed:
      return "write_failed";
    case DiskIncident::Kind::kReadFailed:
      return "read_failed";
    case DiskIncident::Kind::kDamaged:
      return "damaged";
    case DiskIncident::Kind::kForeign:
      return "foreign";
    case DiskIncident::Kind::kLeftover:
      return "leftover";
    case DiskIncident::Kind::kRemoveFailed:
      return "remove_failed";
  }
  return "unknown";
}

}  // namespace gdpcache::cache
