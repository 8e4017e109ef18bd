#include "tests/support/certificates.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "gtest/gtest.h"

namespace gdpcache::test {
namespace {

constexpr long kHour = 3'600;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

std::string TextOf(BIO* bio) {
  char* text = nullptr;
  const auto size = BIO_get_mem_data(bio, &text);
  return {text, static_cast<std::size_t>(size)};
}

std::string PemOf(X509* certificate) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  EXPECT_EQ(PEM_write_bio_X509(bio.get(), certificate), 1);
  return TextOf(bio.get());
}

std::string PemOf(EVP_PKEY* key) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  EXPECT_EQ(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr), 1);
  return TextOf(bio.get());
}

void AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Owned<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  ASSERT_NE(extension, nullptr) << value;
  X509_add_ext(certificate, extension.get(), -1);
}

Owned<X509> NewCertificate(const std::string& name, EVP_PKEY* key, long from, long to) {
  static std::atomic<long> serial = 1;
  Owned<X509> certificate(X509_new());
  X509_set_version(certificate.get(), 2);  // "v3"
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), from);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), to);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

}  // namespace

struct CertificateAuthority::Parts {
  Owned<EVP_PKEY> key{EVP_EC_gen("P-256")};
  Owned<X509> certificate;
};

CertificateAuthority::CertificateAuthority(const std::string& name) : parts_(std::make_unique<Parts>()) {
  parts_->certificate = NewCertificate(name, parts_->key.get(), -kHour, kHour);
  X509* const own = parts_->certificate.get();
  X509_set_issuer_name(own, X509_get_subject_name(own));
  AddExtension(own, own, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(own, own, NID_key_usage, "critical,keyCertSign");
  EXPECT_GT(X509_sign(own, parts_->key.get(), EVP_sha256()), 0);
  pem_ = PemOf(own);
}

CertificateAuthority::~CertificateAuthority() = default;

IssuedCertificate CertificateAuthority::Issue(const std::string& common_name, const std::vector<std::string>& names,
                                              bool expired) const {
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  const Owned<X509> certificate =
      NewCertificate(common_name, key.get(), expired ? -2 * kHour : -kHour, expired ? -kHour : kHour);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(parts_->certificate.get()));
  std::string alternatives;
  for (const std::string& name : names) alternatives += (alternatives.empty() ? "" : ",") + name;
  if (!names.empty()) {
    AddExtension(certificate.get(), parts_->certificate.get(), NID_subject_alt_name, alternatives);
  }
  EXPECT_GT(X509_sign(certificate.get(), parts_->key.get(), EVP_sha256()), 0);
  return {PemOf(certificate.get()), PemOf(key.get())};
}

void WriteSecret(const std::string& path, const std::string& content) {
  const std::string fresh = path + ".new";
  const int file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR);
  ASSERT_GE(file, 0) << fresh;
  EXPECT_EQ(write(file, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  close(file);
  EXPECT_EQ(std::rename(fresh.c_str(), path.c_str()), 0);
}

}  // namespace gdpcache::test
