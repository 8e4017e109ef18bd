#include "server/rpc/memory/descriptor_socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/memory/memory_plane.h"
#include "tests/support/eventually.h"
#include "tests/support/manual_clock.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::rpc {
namespace {

using ::testing::HasSubstr;

int OpenDescriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

int NewMemfd(int seals = F_SEAL_SHRINK) {
  const int descriptor = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(descriptor, 4096), 0);
  if (seals != 0) {
    EXPECT_EQ(fcntl(descriptor, F_ADD_SEALS, seals), 0);
  }
  return descriptor;
}

class DescriptorSocketTest : public ::testing::Test {
 protected:
  DescriptorSocketTest() : path_(directory_.path() + "/server.sock.fd") {
    socket_ = DescriptorSocket::Listen(path_, clock_).value();
  }

  Descriptor Connect() const {
    Descriptor connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, path_.size());
    EXPECT_EQ(connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return connection;
  }

  static void Send(const Descriptor& connection, const std::string& bytes, const std::vector<int>& descriptors) {
    iovec data = {const_cast<char*>(bytes.data()), bytes.size()};
    std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
    }
    EXPECT_EQ(sendmsg(connection.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  static std::string Answer(const Descriptor& connection) {
    std::array<char, 256> answer;
    const ssize_t size = recv(connection.get(), answer.data(), answer.size(), 0);
    return size < 0 ? "error" : std::string(answer.data(), static_cast<std::size_t>(size));
  }

  static std::string Ask(const Descriptor& connection, const std::string& bytes, const std::vector<int>& descriptors) {
    Send(connection, bytes, descriptors);
    for (const int descriptor : descriptors) close(descriptor);
    return Answer(connection);
  }

  test::TemporaryDirectory directory_;
  const std::string path_;
  test::ManualClock clock_;
  std::unique_ptr<DescriptorSocket> socket_;
};

TEST_F(DescriptorSocketTest, OtherUsersAreTurnedAwayWhateverTheFilesMode) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  constexpr uid_t kNobody = 65'534;
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  const int memfd = NewMemfd();
  // The socket's peer is who connects, so that has to be another process.
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(kNobody) != 0) _exit(2);
    const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, path_.size());
    if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) _exit(3);
    char answer = 0;
    _exit(recv(connection, &answer, 1, 0) <= 0 ? 0 : 4);  // closed without a word
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(Ask(Connect(), "M", {memfd}), ::testing::SizeIs(32)) << "the server's own user";
}

TEST_F(DescriptorSocketTest, ATokenStandsForItsDescriptorOnce) {
  const Descriptor connection = Connect();
  const int memfd = NewMemfd();
  struct stat given = {};
  ASSERT_EQ(fstat(memfd, &given), 0);
  const std::string token = Ask(connection, "M", {memfd});
  ASSERT_EQ(token.size(), 32) << token;
  const absl::StatusOr<Descriptor> taken = socket_->Take(token);
  ASSERT_TRUE(taken.ok()) << taken.status();
  struct stat got = {};
  ASSERT_EQ(fstat(taken->get(), &got), 0);
  EXPECT_EQ(got.st_ino, given.st_ino);
  EXPECT_EQ(fcntl(taken->get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(socket_->Take(token).status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(Ask(connection, "M", {NewMemfd()}), token) << "the connection may send more";
}

TEST_F(DescriptorSocketTest, ATokenWithoutADescriptorIsAPassAndNothingElse) {
  const Descriptor connection = Connect();
  const std::string with = Ask(connection, "M", {NewMemfd()});
  const std::string pass = Ask(connection, "C", {});
  ASSERT_EQ(pass.size(), 32) << pass;
  EXPECT_EQ(socket_->TakePass(with).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(socket_->Take(pass).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(socket_->TakePass("").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(socket_->TakePass(pass).ok());
  EXPECT_EQ(socket_->TakePass(pass).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(socket_->Take(with).ok());
}

TEST_F(DescriptorSocketTest, ATokenExpires) {
  const Descriptor connection = Connect();
  const std::string token = Ask(connection, "M", {NewMemfd()});
  const std::string pass = Ask(connection, "C", {});
  clock_.Advance(DescriptorSocket::kTokenLife);
  EXPECT_EQ(socket_->Take(token).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(socket_->TakePass(pass).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(socket_->waiting(), 0);
}

TEST_F(DescriptorSocketTest, ForeignMessagesGetAReasonAndLeaveNothingOpen) {
  const int before = OpenDescriptors();
  {
    const Descriptor connection = Connect();
    EXPECT_THAT(Ask(connection, "M", {NewMemfd(0)}), HasSubstr("!descriptor is not sealed with F_SEAL_SHRINK"));
    EXPECT_THAT(Ask(connection, "M", {open("/dev/null", O_RDWR)}), HasSubstr("!descriptor is no memfd"));
    EXPECT_THAT(Ask(connection, "M", {}), HasSubstr("!a message is"));
    EXPECT_THAT(Ask(connection, "C", {NewMemfd()}), HasSubstr("!a message is"));
    EXPECT_THAT(Ask(connection, "CC", {}), HasSubstr("!a message is"));
    EXPECT_THAT(Ask(connection, "X", {NewMemfd()}), HasSubstr("!a message is"));
    EXPECT_THAT(Ask(connection, "MM", {NewMemfd()}), HasSubstr("!a message is"));
    EXPECT_THAT(Ask(connection, std::string(4096, 'M'), {NewMemfd()}), HasSubstr("!a message is"));
    EXPECT_THAT(Ask(connection, "M", {NewMemfd(), NewMemfd()}), HasSubstr("!a message is"));
    EXPECT_THAT(Ask(connection, "M", {NewMemfd(), NewMemfd(), NewMemfd(), NewMemfd()}), HasSubstr("!a message is"));
    EXPECT_EQ(Ask(connection, "M", {NewMemfd()}).size(), 32);
  }
  EXPECT_EQ(socket_->waiting(), 1);
  clock_.Advance(DescriptorSocket::kTokenLife);
  EXPECT_FALSE(socket_->Take("").ok());
  EXPECT_TRUE(test::Eventually([before] { return OpenDescriptors() == before; }));
}

TEST_F(DescriptorSocketTest, NobodyFillsItForGood) {
  const Descriptor connection = Connect();
  for (std::size_t i = 0; i < DescriptorSocket::kMaxWaiting; ++i) {
    ASSERT_EQ(Ask(connection, "M", {NewMemfd()}).size(), 32);
  }
  EXPECT_THAT(Ask(connection, "M", {NewMemfd()}), HasSubstr("!256 tokens wait"));
  clock_.Advance(DescriptorSocket::kTokenLife);
  EXPECT_EQ(Ask(connection, "M", {NewMemfd()}).size(), 32);
  std::vector<Descriptor> idle;
  for (std::size_t i = 0; i < DescriptorSocket::kMaxConnections; ++i) idle.push_back(Connect());
  EXPECT_EQ(Ask(Connect(), "M", {NewMemfd()}).size(), 32);
}

TEST_F(DescriptorSocketTest, IsGoneWithTheServerAndRefusesAPathInUse) {
  struct stat file = {};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(DescriptorSocket::Listen(path_, clock_).status().code(), absl::StatusCode::kFailedPrecondition);
  socket_ = nullptr;
  EXPECT_NE(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(DescriptorSocket::Listen(std::string(108, 'x'), clock_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LocalPeerTest, IsAUnixSocketOrLoopback) {
  for (const char* local :
       {"unix:", "unix:/run/a.sock", "ipv4:127.0.0.1:5000", "ipv4:127.9.9.9:1", "ipv6:[::1]:80", "ipv6:%5B::1%5D:80"}) {
    EXPECT_TRUE(IsLocalPeer(local)) << local;
  }
  for (const char* remote :
       {"ipv4:10.0.0.1:127", "ipv4:128.0.0.1:1", "ipv6:[::10]:80", "ipv6:[fe80::1]:1", "", "vsock:1"}) {
    EXPECT_FALSE(IsLocalPeer(remote)) << remote;
  }
}

}  // namespace
}  // namespace gdpcache::rpc
