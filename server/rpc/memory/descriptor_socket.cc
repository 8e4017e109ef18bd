#include "server/rpc/memory/descriptor_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"
#include "server/cache/memory/region.h"
#include "server/cache/session_id.h"
#include "server/rpc/unix_socket.h"

namespace gdpcache::rpc {
namespace {

// How often descriptors that nobody has come for are closed, at the latest.
constexpr int kExpiryPeriodMs = 5'000;
constexpr int kPauseMs = 100;
constexpr int kBacklog = 64;

absl::Status ErrnoStatus(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
}

/// The descriptors of a received message.
std::vector<Descriptor> DescriptorsOf(msghdr& message) {
  std::vector<Descriptor> descriptors;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(descriptor);
    }
  }
  return descriptors;
}

/// Whether the server's own user, or root, is at the other end: what the file's mode says, too, but modes change.
bool IsTrusted(int connection) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

}  // namespace

Descriptor::~Descriptor() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<std::unique_ptr<DescriptorSocket>> DescriptorSocket::Listen(const std::string& path,
                                                                           const cache::Clock& clock) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", path.size(), " bytes; a socket's path may have ", sizeof(address.sun_path) - 1));
  }
  path.copy(address.sun_path, path.size());
  if (absl::Status status = RemoveStaleSocket(path); !status.ok()) return status;
  Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  Descriptor stop(eventfd(0, EFD_CLOEXEC));
  if (listener.get() < 0 || stop.get() < 0) return ErrnoStatus("cannot make a socket for", path);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return ErrnoStatus("cannot listen on", path);
  }
  return std::unique_ptr<DescriptorSocket>(new DescriptorSocket(path, clock, std::move(listener), std::move(stop)));
}

DescriptorSocket::DescriptorSocket(std::string path, const cache::Clock& clock, Descriptor listener, Descriptor stop)
    : path_(std::move(path)), clock_(clock), listener_(std::move(listener)), stop_(std::move(stop)), thread_([this] {
        Serve();
      }) {}

DescriptorSocket::~DescriptorSocket() {
  const std::uint64_t one = 1;
  // Cannot fail: the counter is far from full.
  if (write(stop_.get(), &one, sizeof(one)) == sizeof(one)) thread_.join();
  unlink(path_.c_str());
}

absl::StatusOr<Descriptor> DescriptorSocket::Take(absl::string_view token) {
  const std::lock_guard lock(mutex_);
  return TakeLocked(token, /*is_pass=*/false);
}

absl::Status DescriptorSocket::TakePass(absl::string_view token) {
  const std::lock_guard lock(mutex_);
  return TakeLocked(token, /*is_pass=*/true).status();
}

absl::StatusOr<Descriptor> DescriptorSocket::TakeLocked(absl::string_view token, bool is_pass) {
  ExpireLocked();
  const auto found = waiting_.find(token);
  if (found == waiting_.end() || (found->second.descriptor.get() < 0) != is_pass) {
    return cache::ResourceError(absl::StatusCode::kNotFound, "token", token,
                                absl::StrCat("the token is none of ", path_, " for ", is_pass ? "CUDA" : "system",
                                             " memory: it has been used, is too old or never was"));
  }
  Descriptor descriptor = std::move(found->second.descriptor);
  waiting_.erase(found);
  return descriptor;
}

std::size_t DescriptorSocket::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size();
}

void DescriptorSocket::ExpireLocked() {
  const absl::Time now = clock_.Now();
  std::erase_if(waiting_, [now](const auto& entry) { return entry.second.expires <= now; });
}

void DescriptorSocket::Serve() {
  while (true) {
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Descriptor& connection : connections_) polled.push_back({connection.get(), POLLIN, 0});
    const std::size_t served = connections_.size();
    poll(polled.data(), polled.size(), kExpiryPeriodMs);
    if (polled[0].revents != 0) return;
    {
      const std::lock_guard lock(mutex_);
      ExpireLocked();
    }
    std::vector<Descriptor> left;
    for (std::size_t i = 0; i < served; ++i) {
      if (polled[i + 2].revents == 0 || Receive(connections_[i].get())) left.push_back(std::move(connections_[i]));
    }
    connections_ = std::move(left);
    if (polled[1].revents != 0) Accept();
  }
}

void DescriptorSocket::Accept() {
  Descriptor connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (connection.get() < 0) {
    if (errno != EMFILE && errno != ENFILE && errno != EAGAIN) return;
    // With no descriptor left for it, which the server's accept4 does not tell, the connection would be reported again
    // and again.
    if (connections_.empty() || errno == EAGAIN) {
      poll(nullptr, 0, kPauseMs);
    } else {
      connections_.erase(connections_.begin());
    }
    return;
  }
  if (!IsTrusted(connection.get())) return;
  if (connections_.size() >= kMaxConnections) connections_.erase(connections_.begin());
  connections_.push_back(std::move(connection));
}

bool DescriptorSocket::Receive(int connection) {
  // Room for one descriptor too many, so that a message with several is noticed; the kernel closes those beyond.
  constexpr std::size_t kRoom = 2;
  std::array<char, 16> bytes;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kRoom * sizeof(int))> control;
  iovec data = {bytes.data(), bytes.size()};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  std::vector<Descriptor> descriptors = DescriptorsOf(message);
  if (size == 0) return false;  // the end; an empty message is none of ours
  std::string answer;
  const bool whole = size == 1 && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (whole && bytes[0] == 'M' && descriptors.size() == 1) {
    const absl::Status status = cache::CheckMemfd(descriptors[0].get());
    answer = status.ok() ? Keep(std::move(descriptors[0])) : absl::StrCat("!", status.message());
  } else if (whole && bytes[0] == 'C' && descriptors.empty()) {
    answer = Keep(Descriptor());
  } else {
    answer = "!a message is the byte 'M' with one descriptor, or 'C' with none";
  }
  // A client that does not read its answers has no use for more.
  return send(connection, answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(answer.size());
}

std::string DescriptorSocket::Keep(Descriptor descriptor) {
  absl::StatusOr<std::string> token = cache::NewSessionId();
  if (!token.ok()) return absl::StrCat("!", token.status().message());
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= kMaxWaiting) {
    return absl::StrCat("!", waiting_.size(), " tokens wait to be used; come again later");
  }
  waiting_[*token] = {std::move(descriptor), clock_.Now() + kTokenLife};
  return *std::move(token);
}

}  // namespace gdpcache::rpc
