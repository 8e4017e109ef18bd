#include "server/rpc/access/server_certificate.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/config/trusted_file.h"

namespace gdpcache::rpc {
namespace {

constexpr unsigned kWatchSeconds = 1;

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Freer<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;

Bio Reader(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

/// Instead of asking on the terminal for a passphrase.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

absl::StatusOr<std::vector<Certificate>> ParseCertificates(const std::string& name, const std::string& text) {
  const Bio reader = Reader(text);
  std::vector<Certificate> certificates;
  while (X509* const certificate = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (certificates.empty()) return absl::InvalidArgumentError(absl::StrCat(name, " holds no certificate in PEM form"));
  if (!at_end) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " holds something malformed behind its first ", certificates.size(), " certificates"));
  }
  return certificates;
}

absl::StatusOr<Key> ParseKey(const std::string& name, const std::string& text) {
  const Bio reader = Reader(text);
  bool asked = false;
  Key key(PEM_read_bio_PrivateKey(reader.get(), nullptr, &NoPassphrase, &asked));
  ERR_clear_error();
  if (asked) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is protected by a passphrase; it must be without one"));
  }
  if (key == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " holds no private key in PEM form"));
  return key;
}

std::string SubjectOf(const X509& certificate) {
  const Bio writer(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(writer.get(), X509_get_subject_name(&certificate), 0, XN_FLAG_RFC2253);
  char* text = nullptr;
  const auto size = BIO_get_mem_data(writer.get(), &text);
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : "without a subject";
}

std::time_t EndOf(const X509& certificate) {
  std::tm end = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &end) != 1) return 0;
  return timegm(&end);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerCertificate>> ServerCertificate::Open(TlsFiles files) {
  std::unique_ptr<ServerCertificate> certificate(new ServerCertificate(std::move(files)));
  if (absl::StatusOr<bool> read = certificate->Refresh(); !read.ok()) return read.status();
  return certificate;
}

ServerCertificate::~ServerCertificate() { OPENSSL_cleanse(identity_text_.data(), identity_text_.size()); }

absl::StatusOr<bool> ServerCertificate::Refresh() {
  const absl::StatusOr<std::string> chain_text =
      config::ReadTrustedFile("the TLS certificate", files_.certificate, config::Secrecy::kPublic);
  if (!chain_text.ok()) return chain_text.status();
  absl::StatusOr<std::string> key_text = config::ReadTrustedFile("the TLS key", files_.key, config::Secrecy::kSecret);
  if (!key_text.ok()) return key_text.status();
  const absl::Cleanup wipe_key = [&key_text] { OPENSSL_cleanse(key_text->data(), key_text->size()); };
  std::string authorities;
  if (!files_.client_ca.empty()) {
    absl::StatusOr<std::string> text =
        config::ReadTrustedFile("the clients' certificate authority", files_.client_ca, config::Secrecy::kPublic);
    if (!text.ok()) return text.status();
    authorities = *std::move(text);
  }
  std::string identity = absl::StrCat(*key_text, "\n", *chain_text, "\n");
  absl::Cleanup wipe_identity = [&identity] { OPENSSL_cleanse(identity.data(), identity.size()); };
  if (identity == identity_text_ && authorities == authorities_text_) return false;

  const std::string chain_name = absl::StrCat("the TLS certificate '", files_.certificate, "'");
  const absl::StatusOr<std::vector<Certificate>> chain = ParseCertificates(chain_name, *chain_text);
  if (!chain.ok()) return chain.status();
  const std::string key_name = absl::StrCat("the TLS key '", files_.key, "'");
  const absl::StatusOr<Key> key = ParseKey(key_name, *key_text);
  if (!key.ok()) return key.status();
  const bool belong = X509_check_private_key(chain->front().get(), key->get()) == 1;
  ERR_clear_error();
  if (!belong) {
    return absl::InvalidArgumentError(
        absl::StrCat(key_name, " is not the key of the first certificate in '", files_.certificate, "'"));
  }
  if (!files_.client_ca.empty()) {
    const std::string name = absl::StrCat("the clients' certificate authority '", files_.client_ca, "'");
    if (const auto parsed = ParseCertificates(name, authorities); !parsed.ok()) return parsed.status();
    if (authorities != authorities_text_) {
      if (absl::Status status = authorities_.Replace(authorities); !status.ok()) return status;
    }
  }
  if (identity != identity_text_) {
    if (absl::Status status = identity_.Replace(identity); !status.ok()) return status;
  }
  identity_text_.swap(identity);
  authorities_text_ = std::move(authorities);
  ends_ = EndOf(*chain->front());
  description_ = absl::StrCat(SubjectOf(*chain->front()), ", valid until ",
                              absl::FormatTime(absl::RFC3339_sec, absl::FromTimeT(ends_), absl::UTCTimeZone()));
  return true;
}

bool ServerCertificate::expired() const { return ends_ <= std::time(nullptr); }

std::shared_ptr<grpc::experimental::CertificateProviderInterface> ServerCertificate::MakeProvider() const {
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      identity_.path(), identity_.path(), files_.client_ca.empty() ? "" : authorities_.path(), kWatchSeconds);
}

ServerCertificate::Published::~Published() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::string ServerCertificate::Published::path() const { return absl::StrCat("/proc/self/fd/", descriptor_); }

absl::Status ServerCertificate::Published::Replace(const std::string& content) {
  const int file = memfd_create("gdpcache-tls", MFD_CLOEXEC);
  if (file < 0) return absl::ErrnoToStatus(errno, "cannot keep certificates in memory");
  absl::Cleanup close_it = [file] { close(file); };
  for (std::size_t done = 0; done < content.size();) {
    const ssize_t wrote = write(file, content.data() + done, content.size() - done);
    if (wrote < 0) return absl::ErrnoToStatus(errno, "cannot keep certificates in memory");
    done += static_cast<std::size_t>(wrote);
  }
  // gRPC reads key and certificate one after the other, and again if the file's time has changed between, in whole
  // seconds.
  const std::time_t changed = std::max(std::time(nullptr), changed_ + 1);
  const std::array<timespec, 2> times = {timespec{changed, 0}, timespec{changed, 0}};
  if (futimens(file, times.data()) != 0) return absl::ErrnoToStatus(errno, "cannot date certificates in memory");
  if (descriptor_ < 0) {
    std::move(close_it).Cancel();
    descriptor_ = file;
  } else if (dup3(file, descriptor_, O_CLOEXEC) < 0) {
    return absl::ErrnoToStatus(errno, "cannot replace certificates in memory");
  }
  changed_ = changed;
  return absl::OkStatus();
}

}  // namespace gdpcache::rpc
