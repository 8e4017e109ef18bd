#ifndef GDPCACHE_CLIENT_LIBRARY_STATS_H_
#define GDPCACHE_CLIENT_LIBRARY_STATS_H_

#include "gdpcache/stats.h"
#include "gdpcache/v1/stats.pb.h"

namespace gdpcache::client {

ServerStats FromProto(const v1::GetServerStatsResponse& message);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_STATS_H_
