#include "server/rpc/access/server_certificate.h"

#include <sys/stat.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ServerCertificateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write(authority_.IssueForLoopback());
    test::WriteSecret(files_.client_ca, authority_.certificate());
  }

  void Write(const test::IssuedCertificate& issued) const {
    test::WriteSecret(files_.certificate, issued.certificate);
    test::WriteSecret(files_.key, issued.key);
  }

  std::string Error() const {
    const absl::Status status = ServerCertificate::Open(files_).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  }

  test::TemporaryDirectory directory_;
  const test::CertificateAuthority authority_;
  const TlsFiles files_ = {directory_.path() + "/tls.crt", directory_.path() + "/tls.key",
                           directory_.path() + "/ca.crt"};
};

TEST_F(ServerCertificateTest, ReadsWhatFitsTogether) {
  const auto certificate = ServerCertificate::Open(files_);
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  EXPECT_THAT((*certificate)->description(), StartsWith("CN=server, valid until 20"));
  EXPECT_FALSE((*certificate)->expired());
  EXPECT_NE((*certificate)->MakeProvider(), nullptr);
  EXPECT_FALSE((*certificate)->Refresh().value()) << "nothing has changed";
}

TEST_F(ServerCertificateTest, ErrorsNameTheFile) {
  Write({"nonsense", authority_.IssueForLoopback().key});
  EXPECT_THAT(Error(), HasSubstr("the TLS certificate '" + files_.certificate + "' holds no certificate"));
  Write({authority_.IssueForLoopback().certificate, "nonsense"});
  EXPECT_THAT(Error(), HasSubstr("the TLS key '" + files_.key + "' holds no private key"));
  Write({authority_.IssueForLoopback().certificate, authority_.IssueForLoopback().key});
  EXPECT_THAT(Error(), AllOf(HasSubstr("the TLS key '" + files_.key + "' is not the key of the first certificate in"),
                             HasSubstr(files_.certificate)));
  const test::IssuedCertificate issued = authority_.IssueForLoopback();
  Write({issued.certificate + issued.certificate.substr(0, issued.certificate.size() / 2), issued.key});
  EXPECT_THAT(Error(), HasSubstr("malformed behind its first 1 certificates"));
  Write(issued);
  test::WriteSecret(files_.client_ca, "");
  EXPECT_THAT(Error(), HasSubstr("the clients' certificate authority '" + files_.client_ca + "' holds no certificate"));
  remove(files_.client_ca.c_str());
  EXPECT_THAT(Error(), HasSubstr(files_.client_ca + "' cannot be opened"));
  chmod(files_.key.c_str(), 0644);
  EXPECT_THAT(Error(), HasSubstr("the TLS key '" + files_.key + "' is not safe: its mode is 0644"));
}

TEST_F(ServerCertificateTest, AKeyWithAPassphraseIsRefusedWithoutAsking) {
  Write({authority_.IssueForLoopback().certificate,
         "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
         "MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhkDp8DNJ3gOAICCAAw\n"
         "DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEFTDnA3VDSqUvjqfnlXfH4cEgZCk\n"
         "-----END ENCRYPTED PRIVATE KEY-----\n"});
  EXPECT_THAT(Error(), HasSubstr(files_.key));
}

TEST_F(ServerCertificateTest, MistakesWhileServingChangeNothing) {
  const auto certificate = ServerCertificate::Open(files_);
  ASSERT_TRUE(certificate.ok());
  const auto provider = (*certificate)->MakeProvider();
  const test::IssuedCertificate next = authority_.Issue("next");
  test::WriteSecret(files_.certificate, next.certificate);
  EXPECT_FALSE((*certificate)->Refresh().ok()) << "half of a pair";
  EXPECT_THAT((*certificate)->description(), StartsWith("CN=server"));
  test::WriteSecret(files_.key, next.key);
  EXPECT_TRUE((*certificate)->Refresh().value());
  EXPECT_THAT((*certificate)->description(), StartsWith("CN=next"));
  test::WriteSecret(files_.client_ca, test::CertificateAuthority("other").certificate());
  EXPECT_TRUE((*certificate)->Refresh().value());
  Write(authority_.Issue("old", {}, /*expired=*/true));
  EXPECT_TRUE((*certificate)->Refresh().value()) << "the clock may be wrong";
  EXPECT_TRUE((*certificate)->expired());
}

}  // namespace
}  // namespace gdpcache::rpc
