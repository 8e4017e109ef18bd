#ifndef GDPCACHE_TESTS_INTEGRATION_READY_LINE_H_
#define GDPCACHE_TESTS_INTEGRATION_READY_LINE_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tests/support/server_process.h"

namespace gdpcache::test {

/// What the server's ready line says of "admin", "metrics" and the like; empty where it says nothing.
inline std::string ReadyValue(const ServerProcess& server, absl::string_view name) {
  for (absl::string_view word : absl::StrSplit(server.ready_line(), ' ')) {
    if (absl::ConsumePrefix(&word, absl::StrCat(name, "="))) return std::string(word);
  }
  return "";
}

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_INTEGRATION_READY_LINE_H_
