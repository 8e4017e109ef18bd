#ifndef GDPCACHE_SERVER_RPC_ACCESS_SERVER_CERTIFICATE_H_
#define GDPCACHE_SERVER_RPC_ACCESS_SERVER_CERTIFICATE_H_

#include <grpcpp/security/tls_certificate_provider.h>

#include <ctime>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gdpcache::rpc {

struct TlsFiles {
  std::string certificate;  // PEM, the server's own first, then those up to the root, which may be left out
  std::string key;          // PEM, without a passphrase
  std::string client_ca;    // PEM, of those who sign clients' certificates; empty: clients need none
};

/// The server's certificate and key, and the authorities of its clients, read again when their files change.
///
/// gRPC's own watcher of files takes whatever it finds: half of a new pair, or a mistake, and no client gets in any
/// more. So files are read and checked here, and gRPC watches memory (memfds under names that never change) that only
/// ever holds what has been found right: key and certificate in one, replaced in one step, with a new time each.
class ServerCertificate {
 public:
  /// Errors name the file that is wrong, or the two that do not belong together.
  static absl::StatusOr<std::unique_ptr<ServerCertificate>> Open(TlsFiles files);
  ServerCertificate(const ServerCertificate&) = delete;
  ServerCertificate& operator=(const ServerCertificate&) = delete;
  ~ServerCertificate();

  /// Reads the files again. True when something has changed; what gRPC has follows within a second or two. After an
  /// error what was read last stays. Not to be called by several threads at once.
  absl::StatusOr<bool> Refresh();

  /// For TlsServerCredentialsOptions. Must not outlive this.
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> MakeProvider() const;

  /// The certificate's subject and when it ends, for the log.
  const std::string& description() const { return description_; }
  bool expired() const;

 private:
  /// A file in memory under a name of its own.
  class Published {
   public:
    Published() = default;
    Published(const Published&) = delete;
    Published& operator=(const Published&) = delete;
    ~Published();
    absl::Status Replace(const std::string& content);
    std::string path() const;

   private:
    int descriptor_ = -1;
    std::time_t changed_ = 0;  // what the file says of itself; rises with each content
  };

  explicit ServerCertificate(TlsFiles files) : files_(std::move(files)) {}

  const TlsFiles files_;
  std::string identity_text_;
  std::string authorities_text_;
  std::string description_;
  std::time_t ends_ = 0;
  Published identity_;
  Published authorities_;
};

}  // namespace gdpcache::rpc

#endif  // GDPCACHE_SERVER_RPC_ACCESS_SERVER_CERTIFICATE_H_
