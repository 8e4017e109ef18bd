#ifndef GDPCACHE_TESTS_MODEL_SHRINK_H_
#define GDPCACHE_TESTS_MODEL_SHRINK_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "tests/model/operation.h"

namespace gdpcache::test {

/// Smaller operations that still fail: without chunks of them, then without single ones, then with plainer choices,
/// until nothing more can go or `more` says that it has been long enough. `fails` is true for `operations`.
std::vector<Operation> Shrink(std::vector<Operation> operations,
                              absl::FunctionRef<bool(absl::Span<const Operation>)> fails,
                              absl::FunctionRef<bool()> more);

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_MODEL_SHRINK_H_
