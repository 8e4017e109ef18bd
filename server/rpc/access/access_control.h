#ifndef GDPCACHE_SERVER_RPC_ACCESS_ACCESS_CONTROL_H_
#define GDPCACHE_SERVER_RPC_ACCESS_ACCESS_CONTROL_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/observe/log_limiter.h"
#include "server/rpc/access/identity.h"
#include "server/rpc/access/server_certificate.h"
#include "server/rpc/access/token_file.h"

namespace gdpcache::rpc {

struct AccessOptions {
  std::vector<Identity> identities = {};             // of distinct names; none: whoever can connect may do everything
  std::string token_file = {};                       // empty: no tokens
  TlsFiles tls = {};                                 // without a certificate: no TLS
  absl::Duration refresh_period = absl::Seconds(1);  // how often the files are read
  // Told of each call that does not get to its handler, by any thread; empty: nobody is.
  std::function<void(const absl::Status&)> on_refusal = {};
};

/// What is known of a caller before it is known who it is.
struct Credentials {
  std::vector<std::string> authorizations;     // the values of its "authorization" metadata
  std::vector<std::string> certificate_names;  // subject alternative names and the common name
  bool own_user = false;                       // connected to the Unix socket, which only the server's user can open
};

/// Who may use the server. Whatever a call's service and method, gRPC asks before it reaches its handler; a handler
/// asks again for whom it works, since what gRPC remembers belongs to a connection, whose calls may be of several
/// callers.
///
/// A caller is the identity that its bearer token ("authorization: Bearer TOKEN") stands for, else the one that a name
/// of its certificate names, else, on the Unix socket, the one that stands for the server's own user, if any does.
///
/// Reads the files again in the background; what is wrong with them then is logged, and the last good ones stay.
/// Thread-safe.
class AccessControl {
 public:
  /// Reads the files. Errors name them.
  static absl::StatusOr<std::shared_ptr<const AccessControl>> Create(AccessOptions options);

  /// Everybody may do everything, as the default tenant.
  static std::shared_ptr<const AccessControl> Everybody();

  AccessControl(const AccessControl&) = delete;
  AccessControl& operator=(const AccessControl&) = delete;
  ~AccessControl();

  /// For listeners; this must outlive their server. Where there are identities and no TLS, only clients of the same
  /// host get through.
  std::shared_ptr<grpc::ServerCredentials> TcpCredentials() const;
  std::shared_ptr<grpc::ServerCredentials> UnixCredentials() const;

  /// Whom a handler works for; lives as long as this. UNAUTHENTICATED when the caller's credentials are no longer what
  /// they were when its call was let in.
  absl::StatusOr<const Identity*> CallerOf(const grpc::ServerContextBase& context) const;

  /// Who these credentials are, or nullptr if they are nobody's but the method is open to everybody. UNAUTHENTICATED
  /// and PERMISSION_DENIED name the method and what it needs.
  absl::StatusOr<const Identity*> Authorize(absl::string_view method, const Credentials& credentials) const;

  /// How many tenants the configuration knows.
  std::int64_t tenants() const;

 private:
  class Processor;

  explicit AccessControl(AccessOptions options);
  absl::StatusOr<const Identity*> Authenticate(const Credentials& credentials) const;
  std::shared_ptr<grpc::ServerCredentials> WithProcessor(std::shared_ptr<grpc::ServerCredentials> credentials,
                                                         bool own_user) const;
  void NoteRefusal(const absl::Status& status) const;
  void KeepFresh();

  const AccessOptions options_;
  std::map<std::string, Identity, std::less<>> identities_;
  const Identity* own_user_ = nullptr;  // one of them; nullptr: none
  const Identity everybody_;
  std::unique_ptr<TokenFile> tokens_;               // nullptr: none
  std::unique_ptr<ServerCertificate> certificate_;  // nullptr: no TLS

  mutable observe::LogLimiter refusal_lines_{/*per_second=*/1, /*burst=*/1};
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread refresher_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_ACCESS_ACCESS_CONTROL_H_
