#include "server/cache/snapshots/snapshot_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gdpcache::cache {
namespace {

constexpr mode_t kDirectoryMode = 0700;
constexpr mode_t kFileMode = 0600;
constexpr absl::string_view kSuffix = ".safetensors";
constexpr std::size_t kIdDigits = 32;
constexpr std::size_t kFanOutDigits = 2;
constexpr const char* kLock = "lock";
constexpr const char* kTemporary = "temporary";
constexpr int kOpenDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
// Without blocking, so that a FIFO in a file's place is found out instead of waited for.
constexpr int kOpenForReading = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;

// The scan waits for the disk more than for the processor.
constexpr std::size_t kScanThreads = 8;

std::string Digits(SnapshotFileId id) {
  return absl::StrCat(absl::Hex(id.high, absl::kZeroPad16), absl::Hex(id.low, absl::kZeroPad16));
}

std::string FileName(SnapshotFileId id) { return absl::StrCat(Digits(id), kSuffix); }

std::string FanOutName(SnapshotFileId id) { return Digits(id).substr(0, kFanOutDigits); }

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::optional<SnapshotFileId> ParseFileName(absl::string_view name) {
  if (!absl::ConsumeSuffix(&name, kSuffix) || name.size() != kIdDigits || !IsHex(name)) return std::nullopt;
  SnapshotFileId id;
  if (!absl::SimpleHexAtoi(name.substr(0, 16), &id.high) || !absl::SimpleHexAtoi(name.substr(16), &id.low)) {
    return std::nullopt;
  }
  return id;
}

absl::Status Foreign() { return absl::InvalidArgumentError("this is nothing that a server has put there"); }

bool IsSameFile(FileSystem& file_system, const OpenFile& a, const OpenFile& b) {
  struct stat first = {};
  struct stat second = {};
  return file_system.Examine(a.get(), first) >= 0 && file_system.Examine(b.get(), second) >= 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

/// Says in the lock file who holds it, for others to tell. Nothing depends on it.
void SignLock(FileSystem& file_system, int lock) {
  std::array<char, 256> host = {};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  std::string text = absl::StrCat("process ", getpid(), " on ", host.data(), "\n");
  const iovec piece = {text.data(), text.size()};
  file_system.Write(lock, absl::MakeConstSpan(&piece, 1), 0);
}

/// Who holds the lock, in brackets, as far as they say so.
std::string LockHolder(FileSystem& file_system, int lock) {
  std::array<char, 512> text = {};
  const iovec piece = {text.data(), text.size() - 1};
  if (file_system.Read(lock, absl::MakeConstSpan(&piece, 1), 0) <= 0) return "";
  const absl::string_view all = text.data();
  const absl::string_view line = all.substr(0, all.find('\n'));
  const bool printable = std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c <= '~'; });
  return line.empty() || !printable ? "" : absl::StrCat(" (", line, ")");
}

/// Incidents of a scan: of each kind the first and how many.
class Summary {
 public:
  void Add(DiskIncident::Kind kind, std::string path, absl::Status status) {
    const auto [entry, inserted] = incidents_.try_emplace(kind);
    if (inserted) {
      entry->second = {kind, std::move(path), 1, std::move(status)};
    } else {
      ++entry->second.files;
    }
  }
  void Merge(Summary other) {
    for (auto& [kind, incident] : other.incidents_) {
      const auto [entry, inserted] = incidents_.try_emplace(kind, incident);
      if (!inserted) entry->second.files += incident.files;
    }
  }
  std::vector<DiskIncident> Take() {
    std::vector<DiskIncident> incidents;
    for (auto& [kind, incident] : incidents_) incidents.push_back(std::move(incident));
    return incidents;
  }

 private:
  std::map<DiskIncident::Kind, DiskIncident> incidents_;
};

}  // namespace

SnapshotFileId SnapshotFileId::Random() {
  std::random_device random;
  const auto word = [&] { return std::uint64_t{random()} << 32 | random(); };
  return {word(), word()};
}

absl::Status SnapshotDirectory::Failure(std::int64_t error, absl::string_view action, absl::string_view path) {
  const absl::Status status = absl::ErrnoToStatus(static_cast<int>(-error), absl::StrCat(action, " ", path));
  const bool full = error == -ENOSPC || error == -EDQUOT;
  return absl::Status(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable, status.message());
}

absl::Status SnapshotDirectory::ReadFailure(std::int64_t error, absl::string_view action) {
  const bool passes = error == -EMFILE || error == -ENFILE || error == -ENOMEM || error == -EAGAIN;
  return absl::Status(passes ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal,
                      Failure(error, action, "its file").message());
}

/// What is open of the directory.
struct SnapshotDirectory::Places {
  OpenFile root;
  std::shared_ptr<const OpenFile> lock;
  OpenFile temporary;
};

SnapshotDirectory::SnapshotDirectory(std::string path, FileSystem& file_system, std::shared_ptr<const Places> places)
    : path_(std::move(path)), file_system_(file_system), places_(std::move(places)) {}

absl::StatusOr<std::unique_ptr<SnapshotDirectory>> SnapshotDirectory::Open(std::string path, FileSystem& file_system) {
  absl::StatusOr<std::shared_ptr<const Places>> places = OpenPlaces(path, file_system, nullptr);
  if (!places.ok()) return places.status();
  return std::unique_ptr<SnapshotDirectory>(new SnapshotDirectory(std::move(path), file_system, *std::move(places)));
}

absl::StatusOr<std::shared_ptr<const SnapshotDirectory::Places>> SnapshotDirectory::OpenPlaces(const std::string& path,
                                                                                               FileSystem& file_system,
                                                                                               const Places* before) {
  const int created = file_system.MakeDirectory(AT_FDCWD, path, kDirectoryMode);
  if (created < 0 && created != -EEXIST) return Failure(created, "creating the directory", path);
  // The operator may well have made the directory itself a link.
  OpenFile root(file_system, file_system.Open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
  if (root.get() < 0) return Failure(root.get(), "opening the directory", path);
  if (created == 0) {  // the directory itself has to survive a power failure, where its parent lets us see to it
    const OpenFile parent(file_system, file_system.Open(root.get(), "..", kOpenDirectory, 0));
    if (parent.get() >= 0) file_system.Sync(parent.get());
  }

  const std::string lock_path = absl::StrCat(path, "/", kLock);
  auto lock = std::make_shared<const OpenFile>(
      file_system, file_system.Open(root.get(), kLock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  if (lock->get() < 0) return Failure(lock->get(), "opening", lock_path);
  if (before != nullptr && IsSameFile(file_system, *lock, *before->lock)) {
    lock = before->lock;
  } else if (const int locked = file_system.Lock(lock->get()); locked == -EWOULDBLOCK) {
    return absl::FailedPreconditionError(absl::StrCat("the snapshot directory ", path, " is used by another server",
                                                      LockHolder(file_system, lock->get())));
  } else if (locked < 0) {
    return Failure(locked, "locking", lock_path);
  } else {
    SignLock(file_system, lock->get());
  }

  const std::string temporary_path = absl::StrCat(path, "/", kTemporary);
  if (const int made = file_system.MakeDirectory(root.get(), kTemporary, kDirectoryMode); made < 0 && made != -EEXIST) {
    return Failure(made, "creating", temporary_path);
  }
  OpenFile temporary(file_system, file_system.Open(root.get(), kTemporary, kOpenDirectory, 0));
  if (temporary.get() < 0) return Failure(temporary.get(), "opening", temporary_path);
  return std::make_shared<const Places>(Places{std::move(root), std::move(lock), std::move(temporary)});
}

std::shared_ptr<const SnapshotDirectory::Places> SnapshotDirectory::places() const {
  const std::lock_guard lock(mutex_);
  return places_;
}

absl::Status SnapshotDirectory::Renew() {
  const std::lock_guard lock(mutex_);
  absl::StatusOr<std::shared_ptr<const Places>> places = OpenPlaces(path_, file_system_, places_.get());
  if (!places.ok()) return places.status();
  places_ = *std::move(places);
  return absl::OkStatus();
}

std::string SnapshotDirectory::Path(SnapshotFileId id) const {
  return absl::StrCat(path_, "/", FanOutName(id), "/", FileName(id));
}

OpenFile SnapshotDirectory::OpenDirectory(const Places& places, const std::string& name) const {
  return OpenFile(file_system_, file_system_.Open(places.root.get(), name, kOpenDirectory, 0));
}

absl::StatusOr<OpenFile> SnapshotDirectory::MakeFanOut(const Places& places, SnapshotFileId id) const {
  const std::string name = FanOutName(id);
  const std::string path = absl::StrCat(path_, "/", name);
  OpenFile directory = OpenDirectory(places, name);
  if (directory.get() == -ENOENT) {
    const int root = places.root.get();
    const int made = file_system_.MakeDirectory(root, name, kDirectoryMode);
    if (made < 0 && made != -EEXIST) return Failure(made, "creating the directory", path);
    if (const int synced = file_system_.Sync(root); synced < 0) return Failure(synced, "synchronising", path_);
    directory = OpenDirectory(places, name);
  }
  if (directory.get() < 0) return Failure(directory.get(), "opening the directory", path);
  return directory;
}

absl::StatusOr<SnapshotDirectory::NewFile> SnapshotDirectory::Create() {
  const SnapshotFileId id = SnapshotFileId::Random();
  const auto open = [&](const Places& places) {
    return OpenFile(file_system_, file_system_.Open(places.temporary.get(), FileName(id),
                                                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  };
  std::shared_ptr<const Places> places = this->places();
  OpenFile file = open(*places);
  if (file.get() == -ENOENT) {  // what holds it has been removed
    if (absl::Status renewed = Renew(); !renewed.ok()) return renewed;
    places = this->places();
    file = open(*places);
  }
  if (file.get() < 0) return Failure(file.get(), "creating a file in", absl::StrCat(path_, "/", kTemporary));
  return NewFile(*this, std::move(places), id, std::move(file));
}

absl::StatusOr<OpenFile> SnapshotDirectory::OpenForReading(SnapshotFileId id) {
  const OpenFile directory = OpenDirectory(*places(), FanOutName(id));
  OpenFile file(file_system_, directory.get() < 0
                                  ? directory.get()
                                  : file_system_.Open(directory.get(), FileName(id), kOpenForReading, 0));
  if (file.get() == -ENOENT || file.get() == -ELOOP || file.get() == -ENOTDIR) {
    return absl::DataLossError("its file is not there any more");
  }
  if (file.get() < 0) return ReadFailure(file.get(), "opening");
  struct stat info = {};
  if (const int examined = file_system_.Examine(file.get(), info); examined < 0) {
    return ReadFailure(examined, "examining");
  }
  if (!S_ISREG(info.st_mode)) return absl::DataLossError("its file is no regular file any more");
  return file;
}

absl::Status SnapshotDirectory::Remove(SnapshotFileId id) {
  const std::string name = FanOutName(id);
  const OpenFile directory = OpenDirectory(*places(), name);
  const int removed = directory.get() < 0 ? directory.get() : file_system_.Unlink(directory.get(), FileName(id));
  if (removed == -ENOENT) return absl::OkStatus();
  if (removed < 0) return Failure(removed, "removing", Path(id));
  const std::lock_guard lock(mutex_);
  unsynchronised_.insert(name);
  return absl::OkStatus();
}

absl::Status SnapshotDirectory::SyncRemovals() {
  std::set<std::string> names;
  {
    const std::lock_guard lock(mutex_);
    names.swap(unsynchronised_);
  }
  absl::Status status;
  for (const std::string& name : names) {
    const OpenFile directory = OpenDirectory(*places(), name);
    const int synced = directory.get() < 0 ? directory.get() : file_system_.Sync(directory.get());
    if (synced >= 0 || synced == -ENOENT) continue;
    status.Update(Failure(synced, "synchronising the directory", absl::StrCat(path_, "/", name)));
    const std::lock_guard lock(mutex_);
    unsynchronised_.insert(name);  // for the next time
  }
  return status;
}

absl::Status SnapshotDirectory::CheckFree(std::int64_t bytes) {
  const std::int64_t free = file_system_.FreeBytes(places()->root.get());
  if (free < 0) return Failure(free, "asking for the free space of", path_);
  if (free >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the file system of ", path_, " has ", free, " bytes left; the snapshot's file has ", bytes));
}

// --- writing ---

SnapshotDirectory::NewFile::NewFile(SnapshotDirectory& directory, std::shared_ptr<const Places> places,
                                    SnapshotFileId id, OpenFile file)
    : directory_(directory), places_(std::move(places)), id_(id), file_(std::move(file)) {}

SnapshotDirectory::NewFile::NewFile(NewFile&& other) noexcept
    : directory_(other.directory_),
      places_(std::move(other.places_)),
      id_(other.id_),
      file_(std::move(other.file_)),
      owned_(std::exchange(other.owned_, false)) {}

SnapshotDirectory::NewFile::~NewFile() {
  // What cannot be removed now goes at the next start.
  if (owned_) directory_.file_system_.Unlink(places_->temporary.get(), FileName(id_));
}

absl::Status SnapshotDirectory::NewFile::Publish() {
  FileSystem& file_system = directory_.file_system_;
  const std::string path = directory_.Path(id_);
  const absl::StatusOr<OpenFile> target = directory_.MakeFanOut(*places_, id_);
  if (!target.ok()) return target.status();
  if (const int synced = file_system.Sync(file_.get()); synced < 0) return Failure(synced, "synchronising", path);
  const std::string name = FileName(id_);
  if (const int renamed = file_system.Rename(places_->temporary.get(), name, target->get(), name); renamed < 0) {
    return Failure(renamed, "renaming to", path);
  }
  owned_ = false;
  if (const int synced = file_system.Sync(target->get()); synced < 0) {
    file_system.Unlink(target->get(), name);
    return Failure(synced, "synchronising the directory of", path);
  }
  return absl::OkStatus();
}

// --- scanning ---

class SnapshotDirectory::Scanner {
 public:
  explicit Scanner(SnapshotDirectory& directory)
      : directory_(directory), file_system_(directory.file_system_), places_(directory.places()) {}

  void CleanTemporary() {
    for (const std::string& name : List(places_->temporary, kTemporary)) {
      const std::string path = absl::StrCat(directory_.path_, "/", kTemporary, "/", name);
      if (!ParseFileName(name).has_value()) {
        summary.Add(DiskIncident::Kind::kForeign, path, Foreign());
        continue;
      }
      Unlink(places_->temporary, name, DiskIncident::Kind::kLeftover, path,
             absl::DataLossError("the server that wrote it was killed"));
    }
  }

  std::vector<std::string> FanOuts() {
    std::vector<std::string> fan_outs;
    for (std::string& name : List(places_->root, "")) {
      if (name == kLock || name == kTemporary) continue;
      if (name.size() == kFanOutDigits && IsHex(name)) {
        fan_outs.push_back(std::move(name));
      } else {
        summary.Add(DiskIncident::Kind::kForeign, absl::StrCat(directory_.path_, "/", name), Foreign());
      }
    }
    return fan_outs;
  }

  void ScanFanOut(const std::string& fan_out) {
    const OpenFile opened = directory_.OpenDirectory(*places_, fan_out);
    const std::string path = absl::StrCat(directory_.path_, "/", fan_out);
    if (opened.get() == -ENOTDIR || opened.get() == -ELOOP) {
      summary.Add(DiskIncident::Kind::kForeign, path, Foreign());
      return;
    }
    if (opened.get() < 0) {
      summary.Add(DiskIncident::Kind::kReadFailed, path, Failure(opened.get(), "opening", path));
      return;
    }
    for (const std::string& name : List(opened, fan_out)) ScanFile(opened, fan_out, name);
  }

  void RemoveOlder(const Found& file) {
    if (const absl::Status removed = directory_.Remove(file.id); !removed.ok()) {
      summary.Add(DiskIncident::Kind::kRemoveFailed, directory_.Path(file.id), removed);
    }
  }

  std::vector<Found> files;
  Summary summary;

 private:
  std::vector<std::string> List(const OpenFile& opened, absl::string_view name) {
    std::vector<std::string> names;
    if (const int listed = file_system_.List(opened.get(), names); listed < 0) {
      const std::string path = absl::StrCat(directory_.path_, "/", name);
      summary.Add(DiskIncident::Kind::kReadFailed, path, Failure(listed, "listing", path));
    }
    return names;
  }

  void Unlink(const OpenFile& opened, const std::string& name, DiskIncident::Kind kind, const std::string& path,
              absl::Status why) {
    summary.Add(kind, path, std::move(why));
    if (const int removed = file_system_.Unlink(opened.get(), name); removed < 0) {
      summary.Add(DiskIncident::Kind::kRemoveFailed, path, Failure(removed, "removing", path));
    }
  }

  void ScanFile(const OpenFile& opened, const std::string& fan_out, const std::string& name) {
    const std::string path = absl::StrCat(directory_.path_, "/", fan_out, "/", name);
    const std::optional<SnapshotFileId> id = ParseFileName(name);
    if (!id.has_value() || FanOutName(*id) != fan_out) {
      summary.Add(DiskIncident::Kind::kForeign, path, Foreign());
      return;
    }
    const OpenFile file(file_system_, file_system_.Open(opened.get(), name, kOpenForReading, 0));
    if (file.get() == -ELOOP) {
      summary.Add(DiskIncident::Kind::kForeign, path, Foreign());
      return;
    }
    struct stat info = {};
    const int examined = file.get() < 0 ? file.get() : file_system_.Examine(file.get(), info);
    if (examined >= 0 && !S_ISREG(info.st_mode)) {
      summary.Add(DiskIncident::Kind::kForeign, path, Foreign());
      return;
    }
    const ssize_t read = examined < 0 ? examined : ReadBeginning(file, info.st_size);
    if (read < 0) {
      summary.Add(DiskIncident::Kind::kReadFailed, path, Failure(read, "reading", path));
      return;
    }
    absl::StatusOr<SnapshotFileInfo> metadata =
        ReadSnapshotMetadata({beginning_.data(), static_cast<std::size_t>(read)}, info.st_size);
    if (metadata.ok()) {
      files.push_back({*id, info.st_size, absl::TimeFromTimespec(info.st_mtim), *std::move(metadata)});
    } else if (absl::IsDataLoss(metadata.status())) {
      Unlink(opened, name, DiskIncident::Kind::kDamaged, path, metadata.status());
    } else {
      summary.Add(DiskIncident::Kind::kForeign, path, metadata.status());
    }
  }

  ssize_t ReadBeginning(const OpenFile& file, std::int64_t file_bytes) {
    const std::size_t wanted = std::min(beginning_.size(), static_cast<std::size_t>(file_bytes));
    std::size_t filled = 0;
    while (filled < wanted) {
      const iovec piece = {beginning_.data() + filled, wanted - filled};
      const ssize_t read = file_system_.Read(file.get(), {&piece, 1}, static_cast<off_t>(filled));
      if (read < 0) return read;
      if (read == 0) break;
      filled += static_cast<std::size_t>(read);
    }
    return static_cast<ssize_t>(filled);
  }

  SnapshotDirectory& directory_;
  FileSystem& file_system_;
  const std::shared_ptr<const Places> places_;
  std::array<char, kMaxSnapshotMetadataBytes> beginning_;
};

SnapshotDirectory::ScanResult SnapshotDirectory::Scan() {
  Scanner scanner(*this);
  scanner.CleanTemporary();
  const std::vector<std::string> fan_outs = scanner.FanOuts();
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;  // of `scanner` while the threads run
  const auto work = [&] {
    Scanner own(*this);
    while (true) {
      const std::size_t index = next++;
      if (index >= fan_outs.size()) break;
      own.ScanFanOut(fan_outs[index]);
    }
    const std::lock_guard lock(mutex);
    std::move(own.files.begin(), own.files.end(), std::back_inserter(scanner.files));
    scanner.summary.Merge(std::move(own.summary));
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < std::min(kScanThreads, fan_outs.size()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();

  std::vector<Found>& files = scanner.files;
  std::sort(files.begin(), files.end(), [](const Found& a, const Found& b) {
    return std::tie(b.modified, b.id.high, b.id.low) < std::tie(a.modified, a.id.high, a.id.low);
  });
  absl::flat_hash_set<std::pair<SnapshotSpace, std::string>> seen;
  seen.reserve(files.size());
  ScanResult result;
  result.files.reserve(files.size());
  for (Found& file : files) {
    if (seen.emplace(file.info.record.space, file.info.record.key).second) {
      result.files.push_back(std::move(file));
    } else {
      scanner.RemoveOlder(file);
    }
  }
  std::reverse(result.files.begin(), result.files.end());
  result.incidents = scanner.summary.Take();
  return result;
}

}  // namespace gdpcache::cache
