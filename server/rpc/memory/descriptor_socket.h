#ifndef GDPCACHE_SERVER_RPC_MEMORY_DESCRIPTOR_SOCKET_H_
#define GDPCACHE_SERVER_RPC_MEMORY_DESCRIPTOR_SOCKET_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/cache/clock.h"

namespace gdpcache::rpc {

/// Owns a file descriptor. Movable.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  int get() const { return descriptor_; }  // -1: none

 private:
  int descriptor_ = -1;
};

/// The Unix socket on which clients hand over memfds, or just show who they are, as memory.proto says; a thread serves
/// it. Keeps each descriptor under its token, and the tokens without one, until it is taken or kTokenLife has passed.
/// Thread-safe.
class DescriptorSocket {
 public:
  static constexpr absl::Duration kTokenLife = absl::Seconds(30);
  static constexpr std::size_t kMaxWaiting = 256;     // tokens; then the client is told to come again
  static constexpr std::size_t kMaxConnections = 64;  // then the oldest is closed

  /// Serves when it returns. The file gets the process's umask. An error says why it cannot.
  static absl::StatusOr<std::unique_ptr<DescriptorSocket>> Listen(const std::string& path, const cache::Clock& clock);
  DescriptorSocket(const DescriptorSocket&) = delete;
  DescriptorSocket& operator=(const DescriptorSocket&) = delete;
  /// Closes everything and removes the file.
  ~DescriptorSocket();

  const std::string& path() const { return path_; }

  /// The descriptor that the token was given for. NOT_FOUND when there is none (any more).
  absl::StatusOr<Descriptor> Take(absl::string_view token);

  /// Takes a token that was given without a descriptor: whoever has it is a trusted user of this host. NOT_FOUND.
  absl::Status TakePass(absl::string_view token);

  /// Tokens that have not been taken.
  std::size_t waiting() const;

 private:
  struct Waiting {
    Descriptor descriptor;  // none: a pass
    absl::Time expires;
  };

  DescriptorSocket(std::string path, const cache::Clock& clock, Descriptor listener, Descriptor stop);
  void Serve();
  void Accept();
  /// One message of a connection; false when the connection is over.
  bool Receive(int connection);
  std::string Keep(Descriptor descriptor);  // what to answer
  absl::StatusOr<Descriptor> TakeLocked(absl::string_view token, bool is_pass);
  void ExpireLocked();

  const std::string path_;
  const cache::Clock& clock_;
  const Descriptor listener_;
  const Descriptor stop_;                // an eventfd
  std::vector<Descriptor> connections_;  // oldest first; the thread's own

  mutable std::mutex mutex_;
  std::map<std::string, Waiting, std::less<>> waiting_;
  std::thread thread_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_MEMORY_DESCRIPTOR_SOCKET_H_
