#include "server/engine/distinct_values.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"

namespace gdpcache::engine {

absl::Status DistinctValues::Add(std::string value, std::string field) {
  const auto [first, inserted] = fields_.try_emplace(std::move(value), field);
  if (inserted) return absl::OkStatus();
  return cache::InvalidField(
      field, absl::StrCat("is ", first->first, ", as is ", first->second, "; ", what_, " must be distinct"));
}

}  // namespace gdpcache::engine
