#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_BYTE_PUMP_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_BYTE_PUMP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gdpcache::bench {

/// The yardstick of every transport: gRPC moving meaningless bytes, both ways at once, in frames of 1 MiB that nobody
/// encodes, copies or looks at. Server and client live in this process and talk over a real socket.
class BytePump {
 public:
  /// `listen` is a gRPC address such as "127.0.0.1:0" or "unix:PATH". UNAVAILABLE when it cannot be served.
  static absl::StatusOr<std::unique_ptr<BytePump>> Start(const std::string& listen);

  BytePump() = default;
  BytePump(const BytePump&) = delete;
  BytePump& operator=(const BytePump&) = delete;
  virtual ~BytePump() = default;

  /// One call that moves `up` bytes to the server and `down` bytes back; returns the time it took.
  virtual absl::StatusOr<absl::Duration> Run(std::int64_t up, std::int64_t down) = 0;
};

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_BYTE_PUMP_H_
