#ifndef GDPCACHE_CLIENT_LIBRARY_PREFILL_CALL_H_
#define GDPCACHE_CLIENT_LIBRARY_PREFILL_CALL_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/library/connection.h"
#include "client/library/shared_regions.h"
#include "gdpcache/cache.h"
#include "gdpcache/prefill.h"

namespace gdpcache::client {

/// Session::Prefill.
absl::StatusOr<PrefillResult> RunPrefill(const Connection& connection, const std::string& session,
                                         const CacheGeometry& geometry, const SharedRegions& regions,
                                         const PrefillCall& call, absl::Time deadline);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_PREFILL_CALL_H_
