#ifndef GDPCACHE_TESTS_FUZZ_REQUIRE_H_
#define GDPCACHE_TESTS_FUZZ_REQUIRE_H_

#include <cstdio>
#include <cstdlib>

namespace gdpcache::fuzz {

/// Says `what` is wrong and aborts unless `condition` holds: what libFuzzer takes for a finding.
inline void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace gdpcache::fuzz

#endif  // GDPCACHE_TESTS_FUZZ_REQUIRE_H_
