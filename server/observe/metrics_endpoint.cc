#include "server/observe/metrics_endpoint.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <future>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gdpcache::observe {
namespace {

// The library's two threads, and 30 s for each request, let anybody who opens a few connections and sends nothing hide
// what the server is going through.
constexpr char kThreads[] = "8";
constexpr char kRequestTimeoutMs[] = "1000";

// Connects to "host:port" and hangs up.
void Knock(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), address.substr(address.rfind(':') + 1).c_str(), &hints, &found) != 0) return;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const int descriptor =
        socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, entry->ai_protocol);
    if (descriptor < 0) continue;
    connect(descriptor, entry->ai_addr, entry->ai_addrlen);
    close(descriptor);
  }
  freeaddrinfo(found);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address, std::vector<std::shared_ptr<prometheus::Collectable>> sources) {
  // The library reports a port that is taken by an exception, which must not leave here.
  std::unique_ptr<prometheus::Exposer> exposer;
  try {
    exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", kThreads, "request_timeout_ms", kRequestTimeoutMs});
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ": ", error.what()));
  }
  for (const std::shared_ptr<prometheus::Collectable>& source : sources) exposer->RegisterCollectable(source);
  const std::string host = address.substr(0, address.rfind(':'));
  std::string served = absl::StrCat(host, ":", exposer->GetListeningPorts().front());
  return std::unique_ptr<MetricsEndpoint>(
      new MetricsEndpoint(std::move(exposer), std::move(served), std::move(sources)));
}

MetricsEndpoint::~MetricsEndpoint() {
  // The library's listener looks whether it has to stop every two seconds, and whenever somebody comes.
  const std::future<void> stopped = std::async(std::launch::async, [this] { exposer_.reset(); });
  while (stopped.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) Knock(address_);
}

}  // namespace gdpcache::observe
