#ifndef GDPCACHE_CLIENT_LIBRARY_SLOT_CONTENTS_H_
#define GDPCACHE_CLIENT_LIBRARY_SLOT_CONTENTS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/library/connection.h"
#include "gdpcache/session.h"

namespace gdpcache::client {

/// Session::ReadSlots.
absl::StatusOr<SlotContents> ReadSlotContents(const Connection& connection, const std::string& session,
                                              const CacheGeometry& geometry, absl::Span<const std::int64_t> slots,
                                              absl::Span<const std::int64_t> layers, const SlotOutputs& outputs,
                                              absl::Time deadline);

/// Session::WriteSlots.
absl::Status WriteSlotContents(const Connection& connection, const std::string& session, const SlotUpdate& update,
                               absl::Time deadline);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_SLOT_CONTENTS_H_
