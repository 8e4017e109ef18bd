#ifndef GDPCACHE_CLIENT_LIBRARY_SESSION_IMPL_H_
#define GDPCACHE_CLIENT_LIBRARY_SESSION_IMPL_H_

#include <memory>
#include <string>

#include "client/library/connection.h"
#include "client/library/keep_alive.h"
#include "client/library/shared_regions.h"
#include "gdpcache/session.h"

namespace gdpcache {

/// An open session.
class Session::Impl {
 public:
  std::shared_ptr<const client::Connection> connection;
  std::string id;
  std::string cache;
  CacheGeometry geometry;
  absl::Duration ttl;
  // Shared with the memory objects, which may outlive the session.
  std::shared_ptr<client::SharedRegions> regions = std::make_shared<client::SharedRegions>();
  std::unique_ptr<client::KeepAlive> keep_alive;  // none when not wanted
};

}  // namespace gdpcache

#endif  // GDPCACHE_CLIENT_LIBRARY_SESSION_IMPL_H_
