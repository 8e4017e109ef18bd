#ifndef GDPCACHE_SERVER_ENGINE_DISTINCT_VALUES_H_
#define GDPCACHE_SERVER_ENGINE_DISTINCT_VALUES_H_

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gdpcache::engine {

/// Finds what a request names twice although it must not.
class DistinctValues {
 public:
  /// `what` the values are, for messages: "destinations".
  explicit DistinctValues(absl::string_view what) : what_(what) {}

  /// INVALID_ARGUMENT, naming both fields, when another field has the same value.
  absl::Status Add(std::string value, std::string field);

 private:
  const absl::string_view what_;
  absl::flat_hash_map<std::string, std::string> fields_;  // by value
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_SERVER_ENGINE_DISTINCT_VALUES_H_
