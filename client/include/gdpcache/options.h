#ifndef GDPCACHE_OPTIONS_H_
#define GDPCACHE_OPTIONS_H_

#include <optional>
#include <string>

#include "absl/time/time.h"

namespace gdpcache {

/// Of one call.
struct CallOptions {
  std::optional<absl::Duration> timeout = {};  // ClientOptions::timeout unless given; absl::InfiniteDuration() for none
};

/// How a client knows its server and shows who it is over TLS. PEM files, read when the connection is made.
struct TlsOptions {
  std::string ca_file = {};           // who may have signed the server's certificate; empty: the system's authorities
  std::string certificate_file = {};  // the client's own, where the server asks for one, with
  std::string key_file = {};          // its private key
  std::string server_name = {};       // what the server's certificate has to name; empty: the address's host
};

/// Of a connection.
struct ClientOptions {
  absl::Duration timeout = absl::Seconds(60);         // of calls that give none
  absl::Duration connect_timeout = absl::Seconds(5);  // of Connect
  bool wait_for_server = false;  // Connect keeps trying until connect_timeout where nobody listens yet

  std::optional<TlsOptions> tls = {};  // none: clear text. A Unix socket needs no TLS: there it is not used.
  /// At most one of these: a bearer token, or a file with it (nothing else but white space), which is read again when
  /// it changes. It goes over TLS, a Unix socket or the loopback interface, nowhere else.
  std::string token = {};
  std::string token_file = {};
};

}  // namespace gdpcache

#endif  // GDPCACHE_OPTIONS_H_
