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

void IncidentDigest::Add(DiskIncident incident) {
  {
    const std::lock_guard lock(mutex_);
    Kind& kind = kinds_[static_cast<std::size_t>(incident.kind)];
    kind.files += incident.files;
    const absl::Time now = clock_.Now();
    if (now - kind.told < kPeriod) return;
    kind.told = now;
    incident.files = std::exchange(kind.files, 0);
  }
  report_(incident);
}

}  // namespace gdpcache::cache
