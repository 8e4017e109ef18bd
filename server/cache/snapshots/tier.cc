#include "server/cache/snapshots/tier.h"

namespace gdpcache::cache {

absl::string_view Name(TierKind kind) {
  switch (kind) {
    case TierKind::kDevice:
      return "device";
    case TierKind::kHost:
      return "host";
    case TierKind::kDisk:
      return "disk";
  }
  return "?";
}

}  // namespace gdpcache::cache
