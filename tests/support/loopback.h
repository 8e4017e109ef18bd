#ifndef GDPCACHE_TESTS_SUPPORT_LOOPBACK_H_
#define GDPCACHE_TESTS_SUPPORT_LOOPBACK_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace gdpcache::test {

/// A connection to "127.0.0.1:<port>" for the caller to close, without a protocol; -1: there is none.
inline int ConnectRaw(const std::string& address) {
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  peer.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) == 0) return connection;
  close(connection);
  return -1;
}

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_LOOPBACK_H_
