#include "server/observe/metrics_endpoint.h"

#include <exception>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gdpcache::observe {

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address, std::vector<std::shared_ptr<prometheus::Collectable>> sources) {
  // The library reports a port that is taken by an exception, which must not leave here.
  std::unique_ptr<prometheus::Exposer> exposer;
  try {
    exposer = std::make_unique<prometheus::Exposer>(address);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ": ", error.what()));
  }
  for (const std::shared_ptr<prometheus::Collectable>& source : sources) exposer->RegisterCollectable(source);
  const std::string host = address.substr(0, address.rfind(':'));
  std::string served = absl::StrCat(host, ":", exposer->GetListeningPorts().front());
  return std::unique_ptr<MetricsEndpoint>(
      new MetricsEndpoint(std::move(exposer), std::move(served), std::move(sources)));
}

}  // namespace gdpcache::observe
