#ifndef GDPCACHE_TESTS_SUPPORT_REGISTRATION_TOKEN_H_
#define GDPCACHE_TESTS_SUPPORT_REGISTRATION_TOKEN_H_

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <string>

#include "gtest/gtest.h"

namespace gdpcache::test {

/// What the descriptor socket at `path` gives a client that registers memory of a GPU, see memory.proto.
inline std::string RegistrationToken(const std::string& path) {
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  EXPECT_EQ(connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0) << path;
  EXPECT_EQ(send(connection, "C", 1, MSG_NOSIGNAL), 1);
  std::array<char, 256> answer;
  const ssize_t size = recv(connection, answer.data(), answer.size(), 0);
  close(connection);
  return size < 0 ? "" : std::string(answer.data(), static_cast<std::size_t>(size));
}

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_REGISTRATION_TOKEN_H_
