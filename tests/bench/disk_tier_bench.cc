// What the disk tier costs beyond the disk: storing and loading against a plain file of the same size, and how long a
// start takes with many snapshots.

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "server/cache/snapshots/disk_tier.h"
#include "server/cache/snapshots/snapshot_file.h"
#include "tests/support/sample_snapshot.h"

namespace gdpcache::bench {
namespace {

namespace fs = std::filesystem;
using test::SampleSnapshot;

constexpr std::size_t kPlainPiece = std::size_t{512} << 10;

/// Syncs nothing, so that many files are made quickly.
class UnsafeFileSystem final : public cache::FileSystem {
 public:
  int Open(int directory, const std::string& name, int flags, mode_t mode) override {
    return real_.Open(directory, name, flags, mode);
  }
  void Close(int fd) override { real_.Close(fd); }
  int MakeDirectory(int directory, const std::string& name, mode_t mode) override {
    return real_.MakeDirectory(directory, name, mode);
  }
  int Examine(int fd, struct stat& info) override { return real_.Examine(fd, info); }
  int Lock(int fd) override { return real_.Lock(fd); }
  int List(int directory, std::vector<std::string>& names) override { return real_.List(directory, names); }
  std::int64_t FreeBytes(int fd) override { return real_.FreeBytes(fd); }
  ssize_t Read(int fd, absl::Span<const iovec> pieces, off_t offset) override { return real_.Read(fd, pieces, offset); }
  ssize_t Write(int fd, absl::Span<const iovec> pieces, off_t offset) override {
    return real_.Write(fd, pieces, offset);
  }
  int Sync(int /*fd*/) override { return 0; }
  int Touch(int fd) override { return real_.Touch(fd); }
  int Rename(int from_directory, const std::string& from, int to_directory, const std::string& to) override {
    return real_.Rename(from_directory, from, to_directory, to);
  }
  int Unlink(int directory, const std::string& name) override { return real_.Unlink(directory, name); }

 private:
  cache::FileSystem& real_ = cache::RealFileSystem();
};

double Seconds(absl::FunctionRef<void()> work) {
  const absl::Time start = absl::Now();
  work();
  return absl::ToDoubleSeconds(absl::Now() - start);
}

/// Ends the program; a benchmark has nothing better to do.
void Check(bool good, const std::string& what) {
  if (good) return;
  std::cerr << "gdpcache_disk_tier_bench: " << what << '\n';
  std::exit(1);  // NOLINT(concurrency-mt-unsafe)
}

void PlainWrite(const std::string& path, const std::vector<std::byte>& data) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  Check(fd >= 0, "cannot create " + path);
  for (std::size_t at = 0; at < data.size(); at += kPlainPiece) {
    const std::size_t size = std::min(kPlainPiece, data.size() - at);
    Check(::pwrite(fd, data.data() + at, size, static_cast<off_t>(at)) == static_cast<ssize_t>(size), "short write");
  }
  Check(::fsync(fd) == 0, "cannot synchronise " + path);
  ::close(fd);
}

void PlainRead(const std::string& path, std::vector<std::byte>& data) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  Check(fd >= 0, "cannot open " + path);
  for (std::size_t at = 0; at < data.size(); at += kPlainPiece) {
    const std::size_t size = std::min(kPlainPiece, data.size() - at);
    Check(::pread(fd, data.data() + at, size, static_cast<off_t>(at)) == static_cast<ssize_t>(size), "short read");
  }
  ::close(fd);
}

/// Makes the system forget what it has of the files below `directory`.
void DropFromMemory(const std::string& directory) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

/// The system forgets all files and directories; only for the superuser.
bool DropCaches() {
  ::sync();
  std::ofstream file("/proc/sys/vm/drop_caches");
  return static_cast<bool>(file << "3" << std::flush);
}

struct Best {
  double seconds = std::numeric_limits<double>::max();
  void Take(double measured) { seconds = std::min(seconds, measured); }
};

void PrintRow(const char* what, double bytes, const Best& plain, const Best& tier) {
  std::printf("| %-28s | %10.0f | %9.0f | %5.2f |\n", what, bytes / 1e6 / plain.seconds, bytes / 1e6 / tier.seconds,
              plain.seconds / tier.seconds);
}

void MeasureTransfer(const std::string& directory, kernels::Backend& backend, int rounds) {
  cache::SnapshotSpace space = test::SmallSpace();
  space.layers = 24;
  space.heads = 32;
  space.key_dim = 128;
  space.value_dim = 128;
  space.auxiliary_bytes = 98'304;
  const SampleSnapshot snapshot({space, "0123456789abcdef", 1}, 1);
  const auto bytes = static_cast<double>(snapshot.data().size());
  std::vector<std::byte> memory(snapshot.data().size());
  const std::vector<cache::SnapshotPart> parts = cache::PartsIn(space, memory.data());
  const std::unique_ptr<kernels::Stream> stream = *backend.CreateStream();
  cache::DiskTier::Options options;
  options.directory = directory + "/tier";
  options.capacity = std::numeric_limits<std::int64_t>::max();
  const auto tier = cache::DiskTier::Open(std::move(options), backend, nullptr);
  Check(tier.ok(), tier.status().ToString());
  const std::string plain = directory + "/plain";

  Best plain_write, tier_write, plain_warm, tier_warm, plain_cold, tier_cold;
  for (int round = 0; round < rounds; ++round) {
    std::shared_ptr<cache::TierCopy> copy;
    plain_write.Take(Seconds([&] { PlainWrite(plain, snapshot.data()); }));
    tier_write.Take(Seconds([&] {
      auto stored = (*tier)->Store(snapshot.record(), snapshot.parts(), *stream);
      Check(stored.ok(), stored.status().ToString());
      copy = *std::move(stored);
    }));
    const auto load = [&] {
      const absl::Status status = copy->Load(parts, *stream);
      Check(status.ok(), status.ToString());
    };
    plain_warm.Take(Seconds([&] { PlainRead(plain, memory); }));
    tier_warm.Take(Seconds(load));
    DropFromMemory(directory);
    plain_cold.Take(Seconds([&] { PlainRead(plain, memory); }));
    tier_cold.Take(Seconds(load));
    copy->Remove();
    fs::remove(plain);
  }
  std::printf("One snapshot of %.1f MB; best of %d rounds, MB/s\n\n", bytes / 1e6, rounds);
  std::printf("|                              | plain file | disk tier | ratio |\n");
  std::printf("| ---------------------------- | ---------- | --------- | ----- |\n");
  PrintRow("write and fsync", bytes, plain_write, tier_write);
  PrintRow("read, in the system's memory", bytes, plain_warm, tier_warm);
  PrintRow("read, from the medium", bytes, plain_cold, tier_cold);
}

void MeasureStart(const std::string& directory, kernels::Backend& backend, std::int64_t files) {
  UnsafeFileSystem unsafe;
  const std::unique_ptr<kernels::Stream> stream = *backend.CreateStream();
  cache::DiskTier::Options options;
  options.directory = directory + "/many";
  options.capacity = std::numeric_limits<std::int64_t>::max();
  options.file_system = &unsafe;
  {
    const auto tier = cache::DiskTier::Open(options, backend, nullptr);
    Check(tier.ok(), tier.status().ToString());
    for (std::int64_t i = 0; i < files; ++i) {
      const SampleSnapshot snapshot(static_cast<std::uint64_t>(i));
      const auto stored = (*tier)->Store(snapshot.record(), snapshot.parts(), *stream);
      Check(stored.ok(), stored.status().ToString());
    }
  }
  options.file_system = &cache::RealFileSystem();
  const auto start = [&](const char* what) {
    std::int64_t recovered = 0;
    const double seconds = Seconds([&] {
      const auto tier = cache::DiskTier::Open(
          options, backend,
          [&](const cache::SnapshotRecord&, const std::shared_ptr<cache::TierCopy>&) { ++recovered; });
      Check(tier.ok(), tier.status().ToString());
    });
    Check(recovered == files, absl::StrCat("recovered ", recovered));
    std::printf("start with %lld snapshots, %s: %.2f s, %.0f files/s\n", static_cast<long long>(files), what, seconds,
                static_cast<double>(files) / seconds);
  };
  std::printf("\n");
  if (DropCaches()) {
    start("from the medium");
  } else {
    std::printf("not measured from the medium: only the superuser can make the system forget its files\n");
  }
  start("in the system's memory");
}

int Main(int argc, char** argv) {
  std::string parent = fs::temp_directory_path();
  int rounds = 7;
  std::int64_t files = 100'000;
  CLI::App app("The disk tier of snapshots against plain files.");
  app.add_option("--directory", parent, "where to make the files")->check(CLI::ExistingDirectory);
  app.add_option("--rounds", rounds, "rounds of writing and reading")->check(CLI::Range(1, 1000));
  app.add_option("--snapshots", files, "of the start")->check(CLI::Range(1, 10'000'000));
  CLI11_PARSE(app, argc, argv);
  std::string directory = parent + "/gdpcache_disk_tier_bench.XXXXXX";
  Check(::mkdtemp(directory.data()) != nullptr, "cannot make a directory in " + parent);
  const absl::Cleanup remove = [&] { fs::remove_all(directory); };
  const absl::StatusOr<std::unique_ptr<kernels::Backend>> backend =
      kernels::CreateBackend({.choice = kernels::BackendChoice::kCpu});
  Check(backend.ok(), backend.status().ToString());
  MeasureTransfer(directory, **backend, rounds);
  MeasureStart(directory, **backend, files);
  return 0;
}

}  // namespace
}  // namespace gdpcache::bench

int main(int argc, char** argv) {
  try {
    return gdpcache::bench::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gdpcache_disk_tier_bench: %s\n", error.what());
    return 1;
  }
}
