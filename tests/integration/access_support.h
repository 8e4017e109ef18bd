#ifndef GDPCACHE_TESTS_INTEGRATION_ACCESS_SUPPORT_H_
#define GDPCACHE_TESTS_INTEGRATION_ACCESS_SUPPORT_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"
#include "tests/support/raw_call.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache {

/// Somebody with a token, as SecureServer knows them.
struct Person {
  std::string name;
  std::string tenant;
  std::string permissions;  // as the configuration file has them
  std::string token = "token-of-" + name + "-0123456789";

  test::RawMetadata metadata() const { return {{"authorization", "Bearer " + token}}; }
};

inline const Person kReader = {"reader", "search", "READ"};
inline const Person kEngine = {"engine", "chat", "DATA"};
inline const Person kOtherEngine = {"other-engine", "search", "DATA"};
inline const Person kJanitor = {"janitor", "operations", "ADMIN"};
inline const Person kOperator = {"operator", "operations", "[READ, DATA, ADMIN]"};

inline const std::vector<Person>& Everybody() {
  static const auto& everybody = *new std::vector<Person>{kReader, kEngine, kOtherEngine, kJanitor, kOperator};
  return everybody;
}

/// A gdpcached that knows Everybody, with certificates of an authority of its own. Its log, at the most talkative, must
/// not hold a token or a key.
class SecureServer {
 public:
  enum class Transport { kLoopback, kTls, kMutualTls };

  /// `own_user` has more fields of the operator's identity.
  explicit SecureServer(Transport transport, const std::vector<std::string>& more = {},
                        const std::string& own_user = "")
      : transport_(transport) {
    std::string identities;
    std::string tokens;
    for (const Person& person : Everybody()) {
      identities += "identities { name: \"" + person.name + "\" tenant: \"" + person.tenant +
                    "\" permissions: " + person.permissions + (person.name == kOperator.name ? own_user : "") + " }\n";
      tokens += person.token + " " + person.name + "\n";
    }
    std::ofstream(path("config")) << identities;
    WriteTokens(tokens);
    test::WriteSecret(path("ca.crt"), authority_.certificate());
    WriteCertificate(authority_.IssueForLoopback());
    std::vector<std::string> flags = {"--config=" + path("config"), "--token-file=" + path("tokens"),
                                      "--log-level=debug"};
    if (transport != Transport::kLoopback) {
      flags.push_back("--tls-certificate=" + path("tls.crt"));
      flags.push_back("--tls-key=" + path("tls.key"));
    }
    if (transport == Transport::kMutualTls) flags.push_back("--tls-client-ca=" + path("ca.crt"));
    flags.insert(flags.end(), more.begin(), more.end());
    server_.emplace(flags);
  }
  SecureServer(const SecureServer&) = delete;
  SecureServer& operator=(const SecureServer&) = delete;

  ~SecureServer() {
    const std::string log = server_->process().Errors();
    EXPECT_THAT(log, testing::HasSubstr("tokens read from"));
    EXPECT_THAT(log, testing::Not(testing::HasSubstr("-0123456789"))) << "a token";
    EXPECT_THAT(log, testing::Not(testing::HasSubstr("PRIVATE KEY")));
    EXPECT_THAT(log, testing::Not(testing::HasSubstr("Sanitizer:"))) << "where the server is built with one";
  }

  Transport transport() const { return transport_; }
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  const test::CertificateAuthority& authority() const { return authority_; }
  test::ServerProcess& server() { return *server_; }

  void WriteTokens(const std::string& text) const { test::WriteSecret(path("tokens"), text); }
  /// One file after the other.
  void WriteCertificate(const test::IssuedCertificate& issued) const {
    test::WriteSecret(path("tls.crt"), issued.certificate);
    test::WriteSecret(path("tls.key"), issued.key);
  }

  /// A connection of its own, with a client's certificate where one is given.
  std::shared_ptr<grpc::Channel> Connect(const test::IssuedCertificate& own = {}) const {
    if (transport_ == Transport::kLoopback) return test::Connect(server_->tcp_address());
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority_.certificate();
    options.pem_private_key = own.key;
    options.pem_cert_chain = own.certificate;
    return test::Connect(server_->tcp_address(), grpc::SslCredentials(options));
  }
  std::shared_ptr<grpc::Channel> ConnectUnix() const { return test::Connect(server_->unix_address()); }

 private:
  const Transport transport_;
  test::TemporaryDirectory directory_;
  const test::CertificateAuthority authority_;
  std::optional<test::ServerProcess> server_;
};

}  // namespace gdpcache

#endif  // GDPCACHE_TESTS_INTEGRATION_ACCESS_SUPPORT_H_
