#include "client/command/bench/run.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/command/text.h"

namespace gdpcache::bench {
namespace {

/// Should this process be killed, the server has its memory back after so long.
constexpr absl::Duration kSessionTtl = absl::Seconds(20);

std::size_t PickedNames(const BenchOptions& options) {
  const std::vector<std::string> names = MeasurementNames(options);
  return static_cast<std::size_t>(
      std::count_if(names.begin(), names.end(), [&](const std::string& name) { return Picked(options, name); }));
}

}  // namespace

Run::Run(const BenchOptions& options, const Client& client, ServerInfo server)
    : options_(options), client_(client), progress_(PickedNames(options)) {
  report_.address = client.address();
  report_.server = std::move(server);
  report_.model = options.model;
  report_.seconds = options.seconds;
  report_.date = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
}

Run::~Run() {
  pump_ = nullptr;
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

CacheGeometry Run::Geometry(std::int64_t layers, std::int64_t slots) const {
  CacheGeometry geometry = options_.model;
  geometry.layers = layers;
  geometry.slots = slots;
  return geometry;
}

absl::StatusOr<Lease> Run::MakeLease(const CacheGeometry& geometry) const {
  absl::StatusOr<command::TemporaryCache> cache = command::TemporaryCache::Create(client_, "bench", geometry);
  if (!cache.ok()) return cache.status();
  absl::StatusOr<Session> session = cache->OpenSession({.ttl = kSessionTtl, .client_name = "gdpcache bench"});
  if (!session.ok()) return session.status();
  absl::StatusOr<std::vector<std::int64_t>> slots = session->AcquireSlots(geometry.slots);
  if (!slots.ok()) return slots.status();
  return Lease{*std::move(cache), *std::move(session), *std::move(slots)};
}

absl::StatusOr<std::string> Run::directory() {
  if (!directory_.empty()) return directory_;
  std::string path = (std::filesystem::temp_directory_path() / "gdpcache-bench-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path));
  directory_ = std::move(path);
  return directory_;
}

absl::StatusOr<BytePump*> Run::pump() {
  if (pump_ != nullptr) return pump_.get();
  std::string listen = "127.0.0.1:0";
  if (absl::StartsWith(client_.address(), "unix:")) {
    const absl::StatusOr<std::string> place = directory();
    if (!place.ok()) return place.status();
    listen = absl::StrCat("unix:", *place, "/pump");
  }
  absl::StatusOr<std::unique_ptr<BytePump>> pump = BytePump::Start(listen);
  if (!pump.ok()) return pump.status();
  pump_ = *std::move(pump);
  return pump_.get();
}

void Run::Skip(const std::string& name, const std::string& reason) {
  progress_.Step(name);
  report_.skipped.push_back({name, reason});
}

Report Run::report() const {
  Report report = report_;
  const std::vector<std::string> names = MeasurementNames(options_);
  const auto place = [&names](const Figure& figure) { return std::find(names.begin(), names.end(), figure.name); };
  std::stable_sort(report.figures.begin(), report.figures.end(),
                   [&](const Figure& a, const Figure& b) { return place(a) < place(b); });
  return report;
}

}  // namespace gdpcache::bench
