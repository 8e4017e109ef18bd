#include "client/library/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gdpcache::client {
namespace {

constexpr std::int64_t kPage = 4096;
/// What a server that is alive does not take.
constexpr timeval kTimeout = {.tv_sec = 10, .tv_usec = 0};

absl::Status Failed(absl::string_view what) { return absl::ErrnoToStatus(errno, what); }

/// A connected socket, closed when destroyed.
class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  const int descriptor_;
};

bool SendDescriptor(int socket, int descriptor) {
  char byte = 'M';
  iovec data = {&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

}  // namespace

absl::StatusOr<Memfd> Memfd::Create(std::int64_t size) {
  if (size < 1 || size > (std::int64_t{1} << 62)) {
    return absl::InvalidArgumentError(absl::StrCat("size is ", size, "; it must be from 1 to 2^62"));
  }
  const std::int64_t whole = (size + kPage - 1) / kPage * kPage;
  Memfd memory(memfd_create("gdpcache", MFD_CLOEXEC | MFD_ALLOW_SEALING), size);
  if (memory.descriptor_ < 0) return Failed("memfd_create");
  if (ftruncate(memory.descriptor_, whole) != 0) return Failed(absl::StrCat("making room for ", size, " bytes"));
  // All pages now: a page that is missing later would end the process, and the server maps what is there at once.
  if (fallocate(memory.descriptor_, 0, 0, whole) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", size, " bytes: ", std::strerror(errno)));
  }
  if (fcntl(memory.descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return Failed("F_ADD_SEALS");
  void* const data =
      mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, memory.descriptor_, 0);
  if (data == MAP_FAILED) return Failed(absl::StrCat("mapping ", size, " bytes"));
  memory.data_ = static_cast<std::byte*>(data);
  return memory;
}

Memfd::~Memfd() {
  if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(size_));
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<std::string> Memfd::HandOver(const std::string& path) const {
  const Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return absl::InvalidArgumentError(absl::StrCat(path, " is too long"));
  path.copy(address.sun_path, path.size());
  const auto unreachable = [&path] {
    return absl::UnavailableError(absl::StrCat("cannot hand memory to the server at ", path,
                                               " (which must be on this host): ", std::strerror(errno)));
  };
  if (socket.get() < 0) return Failed("socket");
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kTimeout, sizeof(kTimeout));
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kTimeout, sizeof(kTimeout));
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return unreachable();
  if (!SendDescriptor(socket.get(), descriptor_)) return unreachable();
  std::array<char, 512> answer;
  const ssize_t size = recv(socket.get(), answer.data(), answer.size(), 0);
  if (size < 0) return unreachable();
  const absl::string_view text(answer.data(), static_cast<std::size_t>(size));
  if (text.empty()) return absl::UnavailableError(absl::StrCat(path, " closed the connection"));
  if (text.front() == '!') return absl::FailedPreconditionError(absl::StrCat("the server refused: ", text.substr(1)));
  return std::string(text);
}

}  // namespace gdpcache::client
