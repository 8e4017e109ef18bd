#ifndef GDPCACHE_TESTS_SUPPORT_CERTIFICATES_H_
#define GDPCACHE_TESTS_SUPPORT_CERTIFICATES_H_

#include <memory>
#include <string>
#include <vector>

namespace gdpcache::test {

/// A certificate with its private key, in PEM.
struct IssuedCertificate {
  std::string certificate;
  std::string key;
};

/// Signs certificates that are valid for an hour, made on the spot.
class CertificateAuthority {
 public:
  explicit CertificateAuthority(const std::string& name = "test authority");
  CertificateAuthority(const CertificateAuthority&) = delete;
  CertificateAuthority& operator=(const CertificateAuthority&) = delete;
  ~CertificateAuthority();

  /// Its own, in PEM.
  const std::string& certificate() const { return pem_; }

  /// `names` are subject alternative names: "DNS:localhost", "IP:127.0.0.1", "URI:spiffe://a/b". `expired`: an hour
  /// ago.
  IssuedCertificate Issue(const std::string& common_name, const std::vector<std::string>& names = {},
                          bool expired = false) const;

  /// For a server on the loopback interface.
  IssuedCertificate IssueForLoopback() const { return Issue("server", {"DNS:localhost", "IP:127.0.0.1"}); }

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  std::string pem_;
};

/// The file is for its owner only and takes its place in one step, so that whoever reads it finds it whole.
void WriteSecret(const std::string& path, const std::string& content);

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_CERTIFICATES_H_
