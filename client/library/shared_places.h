#ifndef GDPCACHE_CLIENT_LIBRARY_SHARED_PLACES_H_
#define GDPCACHE_CLIENT_LIBRARY_SHARED_PLACES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/library/prefill_layout.h"
#include "client/library/shared_regions.h"
#include "gdpcache/prefill.h"
#include "gdpcache/v1/prefill.pb.h"

namespace gdpcache::client {

/// Which tensors of a call lie in memory shared with the server.
struct SharedPlaces {
  using Place = std::optional<v1::SharedMemoryRef>;

  Place k;
  Place w;
  Place u;
  Place g;
  Place initial_state;
  Place auxiliary_state;
  Place h;
  Place v_new;
  Place final_state;

  bool any = false;
  std::string first_other;  // the name of a tensor that lies elsewhere; empty: there is none

  // Bytes of all that lie elsewhere; capped at 2^62.
  std::int64_t other_input_bytes = 0;
  std::int64_t other_result_bytes = 0;
};

/// With `look` false nothing is found.
SharedPlaces FindPlaces(const PrefillCall& call, const PrefillLayout& layout, const SharedRegions& regions, bool look);

/// Puts what was found into the request, whose tensors have their headers.
void Describe(const SharedPlaces& places, v1::PrefillRequest* request);

/// INTERNAL unless the answer names the same places for results.
absl::Status CheckPlaces(const SharedPlaces& places, const v1::PrefillResponse& response);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_SHARED_PLACES_H_
