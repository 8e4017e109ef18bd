#ifndef GDPCACHE_CLIENT_COMMAND_TOP_VIEW_JSON_H_
#define GDPCACHE_CLIENT_COMMAND_TOP_VIEW_JSON_H_

#include "client/command/top/model.h"
#include "nlohmann/json.hpp"

namespace gdpcache::command::top {

/// The view for programs: what the server holds, `totals` since it started, and `rates` since the answer before, null
/// where there is none. Without an answer: `reachable` is false, and `error` and `unreachable_since` say more.
nlohmann::json ToJson(const View& view);

}  // namespace gdpcache::command::top

#endif  // GDPCACHE_CLIENT_COMMAND_TOP_VIEW_JSON_H_
