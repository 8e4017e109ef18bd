#include "server/config/access_config.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/config/listen_address.h"

namespace gdpcache::config {
namespace {

using Errors = std::vector<std::string>;

constexpr std::size_t kMaxNameBytes = 253;  // of a host
constexpr std::size_t kMaxTenantBytes = 128;

bool IsTenantCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::string_view("._-/").find(c) != std::string::npos;
}

void CheckListen(const Config& config, bool allow_insecure, Errors& errors) {
  const bool tls = !config.access.tls_certificate.empty();
  const bool identities = !config.access.identities.empty() || !config.access.token_file.empty();
  for (const std::string& address : config.listen) {
    const absl::StatusOr<ListenAddress> parsed = ParseListenAddress(address);
    if (!parsed.ok()) {
      errors.push_back(absl::StrCat("--listen is '", address, "'; ", parsed.status().message()));
    } else if (parsed->is_loopback() || tls) {
      continue;
    } else if (identities) {
      errors.push_back(absl::StrCat("--listen is '", address,
                                    "', which other machines may reach; tokens would travel there in clear text, so "
                                    "this needs --tls-certificate and --tls-key"));
    } else if (!allow_insecure) {
      errors.push_back(absl::StrCat("--listen is '", address,
                                    "', which other machines may reach; connections are neither encrypted nor "
                                    "authenticated, so this needs --tls-certificate and --tls-key, or "
                                    "--allow-insecure"));
    }
  }
  if (config.listen.empty() && config.unix_path.empty()) {
    errors.push_back("--listen and --unix are both empty; there is nothing to serve");
  }
}

bool IsByUser(const v1::Identity& identity) { return identity.has_uid(); }

void CheckFiles(const AccessConfig& access, Errors& errors) {
  if (access.tls_certificate.empty() != access.tls_key.empty()) {
    errors.push_back(absl::StrCat(access.tls_key.empty() ? "--tls-certificate is given and --tls-key is not"
                                                         : "--tls-key is given and --tls-certificate is not",
                                  "; they belong together"));
  }
  if (access.tls_certificate.empty() && !access.tls_client_ca.empty()) {
    errors.push_back(
        "--tls-client-ca is given and --tls-certificate is not; clients are asked for certificates over TLS");
  }
  if (!access.token_file.empty() && access.identities.empty()) {
    errors.push_back("--token-file is given and the configuration file has no identities that tokens could stand for");
  }
  if (!access.identities.empty() && access.token_file.empty() && access.tls_client_ca.empty() &&
      std::none_of(access.identities.begin(), access.identities.end(), IsByUser)) {
    errors.push_back(
        "the configuration file has identities, but nobody can show to be one: give --token-file or --tls-client-ca, "
        "or "
        "one of them a uid");
  }
}

/// The Unix socket is for the server's own user, so no other could be told by it.
void CheckUser(const v1::Identity& identity, const std::string& which, const std::string& unix_path, bool is_second,
               Errors& errors) {
  if (identity.uid() != geteuid()) {
    errors.push_back(absl::StrCat(which, ".uid is ", identity.uid(),
                                  "; the Unix socket lets in the server's own user, which is ", geteuid()));
  } else if (unix_path.empty()) {
    errors.push_back(absl::StrCat(which, ".uid is given and --unix is empty; who connects there is known by it"));
  } else if (is_second) {
    errors.push_back(absl::StrCat(which, ".uid is ", identity.uid(), ", as another one's is"));
  }
}

void CheckIdentities(const AccessConfig& access, const std::string& unix_path, Errors& errors) {
  std::set<std::string> names;
  bool has_user = false;
  for (std::size_t n = 0; n < access.identities.size(); ++n) {
    const v1::Identity& identity = access.identities[n];
    const std::string which = absl::StrCat("identities[", n, "]");
    const std::string& name = identity.name();
    const std::string& tenant = identity.tenant();
    if (name.empty() || name.size() > kMaxNameBytes) {
      errors.push_back(absl::StrCat(which, ".name has ", name.size(), " bytes; it must have 1 to ", kMaxNameBytes));
    } else if (!names.insert(name).second) {
      errors.push_back(absl::StrCat(which, ".name is '", name, "', as another one's is"));
    }
    if (tenant.empty() || tenant.size() > kMaxTenantBytes) {
      errors.push_back(
          absl::StrCat(which, ".tenant has ", tenant.size(), " bytes; it must have 1 to ", kMaxTenantBytes));
    } else if (!std::all_of(tenant.begin(), tenant.end(), IsTenantCharacter)) {
      errors.push_back(absl::StrCat(which, ".tenant is '", tenant, "'; it may have letters, digits and . _ - / only"));
    }
    const auto& permissions = identity.permissions();
    // The text format takes any number for an enum.
    const bool known = std::all_of(permissions.begin(), permissions.end(), [](int permission) {
      return permission != v1::Identity::PERMISSION_UNSPECIFIED && v1::Identity::Permission_IsValid(permission);
    });
    if (permissions.empty() || !known) {
      errors.push_back(absl::StrCat(which, ".permissions must be one or more of READ, DATA and ADMIN"));
    }
    if (identity.has_uid()) CheckUser(identity, which, unix_path, std::exchange(has_user, true), errors);
  }
}

}  // namespace

void CheckAccess(const Config& config, bool allow_insecure, Errors& errors) {
  CheckListen(config, allow_insecure, errors);
  CheckFiles(config.access, errors);
  CheckIdentities(config.access, config.unix_path, errors);
}

}  // namespace gdpcache::config
