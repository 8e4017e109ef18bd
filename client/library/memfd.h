#ifndef GDPCACHE_CLIENT_LIBRARY_MEMFD_H_
#define GDPCACHE_CLIENT_LIBRARY_MEMFD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace gdpcache::client {

/// Memory that can be handed to a server: a sealed memfd, mapped. Movable; unmapped and closed when destroyed.
class Memfd {
 public:
  /// `size` bytes of zeros, at least 1. RESOURCE_EXHAUSTED when the system has no memory for them.
  static absl::StatusOr<Memfd> Create(std::int64_t size);

  Memfd(Memfd&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)),
        data_(std::exchange(other.data_, nullptr)),
        size_(other.size_) {}
  Memfd& operator=(Memfd&&) = delete;
  ~Memfd();

  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }

  /// Gives the descriptor to the server that listens at `path` and returns the token it gave for it.
  absl::StatusOr<std::string> HandOver(const std::string& path) const;

 private:
  Memfd(int descriptor, std::int64_t size) : descriptor_(descriptor), size_(size) {}

  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_MEMFD_H_
