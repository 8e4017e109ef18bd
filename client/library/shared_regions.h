#ifndef GDPCACHE_CLIENT_LIBRARY_SHARED_REGIONS_H_
#define GDPCACHE_CLIENT_LIBRARY_SHARED_REGIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "gdpcache/v1/tensor.pb.h"

namespace gdpcache::client {

/// Which of this process's memory a session shares with its server. Thread-safe.
class SharedRegions {
 public:
  /// A name that no region of the session has had.
  std::string NewName();

  void Add(const std::byte* data, std::int64_t size, std::string name);
  void Remove(const std::byte* data);

  /// The session has ended, and with it what the server knew of its regions.
  void EndSession();
  bool session_ended() const;

  /// Where `size` bytes at `data` lie, if they are inside a region and a server takes them there: aligned to
  /// `alignment`, its own measure.
  std::optional<v1::SharedMemoryRef> Find(const void* data, std::int64_t size, std::int64_t alignment) const;

 private:
  struct Region {
    std::int64_t size;
    std::string name;
  };

  mutable std::mutex mutex_;
  std::int64_t names_ = 0;
  bool session_ended_ = false;
  std::map<std::uintptr_t, Region> regions_;  // by where they begin
};

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_SHARED_REGIONS_H_
