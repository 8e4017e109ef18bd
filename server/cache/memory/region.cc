#include "server/cache/memory/region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"

namespace gdpcache::cache {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kCudaAlignment = 16;
constexpr std::size_t kHandleBytes = 64;
constexpr absl::Duration kRetryAfter = absl::Seconds(1);

/// What a region counts for. Movable.
class Charge {
 public:
  static absl::StatusOr<Charge> Take(std::shared_ptr<RegionBudget> budget, std::uint64_t bytes) {
    const bool is_all = budget->whole == nullptr;
    std::unique_ptr<Charge> whole;
    if (!is_all) {
      absl::StatusOr<Charge> taken = Take(budget->whole, bytes);
      if (!taken.ok()) return taken.status();
      whole = std::make_unique<Charge>(*std::move(taken));
    }
    if (!budget->count.TryTake(1)) {
      return Exhausted(absl::StrCat(is_all ? "the server" : "the tenant", " has ", budget->count.used(),
                                    " regions and events registered; it may have at most ", budget->count.limit()),
                       kRetryAfter);
    }
    Charge charge(std::move(budget));
    charge.whole_ = std::move(whole);
    // A size beyond int64 is beyond every budget.
    const std::int64_t limit = charge.budget_->bytes.limit();
    if (bytes > static_cast<std::uint64_t>(limit) || !charge.budget_->bytes.TryTake(static_cast<std::int64_t>(bytes))) {
      return Exhausted(absl::StrCat("size is ", bytes, "; of the ", is_all ? "server's " : "tenant's ", limit,
                                    " bytes of shared memory ", charge.budget_->bytes.used(), " are registered"),
                       kRetryAfter);
    }
    charge.bytes_ = static_cast<std::int64_t>(bytes);
    return charge;
  }
  Charge(Charge&& other) noexcept = default;
  Charge& operator=(Charge&&) = delete;
  ~Charge() { GiveBack(); }

  void GiveBack() {
    if (budget_ == nullptr) return;
    budget_->bytes.GiveBack(bytes_);
    budget_->count.GiveBack(1);
    budget_.reset();
    if (whole_ != nullptr) whole_->GiveBack();
  }

 private:
  explicit Charge(std::shared_ptr<RegionBudget> budget) : budget_(std::move(budget)) {}

  std::shared_ptr<RegionBudget> budget_;
  std::int64_t bytes_ = 0;
  std::unique_ptr<Charge> whole_;
};

absl::Status CheckRange(std::uint64_t offset, std::uint64_t size, std::uint64_t alignment, std::uint64_t whole,
                        absl::string_view what) {
  if (offset % alignment != 0) {
    return InvalidField("offset", absl::StrCat("is ", offset, "; it must be a multiple of ", alignment));
  }
  if (size == 0) return InvalidField("size", "is 0; a region has at least 1 byte");
  if (offset > whole || size > whole - offset) {
    return InvalidField("size", absl::StrCat("is ", size, " from offset ", offset, " on; ", what, " has ", whole));
  }
  return absl::OkStatus();
}

absl::Status CheckHandle(absl::string_view handle) {
  if (handle.size() == kHandleBytes) return absl::OkStatus();
  return InvalidField("handle", absl::StrCat("has ", handle.size(), " bytes; it must have ", kHandleBytes));
}

absl::Status Refused(absl::string_view why) { return InvalidField("descriptor", why); }

/// Takes the page faults now, where that allocates nothing: of a file with holes the client has still to decide how
/// much memory it takes.
void Populate(void* data, std::size_t size, const struct stat& file) {
#ifdef MADV_POPULATE_WRITE
  constexpr std::int64_t kBlock = 512;
  // Where it does not succeed, the faults come later.
  if (file.st_blocks >= (file.st_size + kBlock - 1) / kBlock) madvise(data, size, MADV_POPULATE_WRITE);
#endif
}

}  // namespace

Region::~Region() {
  release_();
  if (on_released_) on_released_();
}

absl::Status CheckMemfd(int descriptor) {
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0) return Refused("is no memfd");
  if ((seals & F_SEAL_SHRINK) == 0) return Refused("is not sealed with F_SEAL_SHRINK");
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) return Refused("is sealed against writing");
  if ((fcntl(descriptor, F_GETFL) & O_ACCMODE) != O_RDWR) return Refused("is not open for reading and writing");
  struct statfs filesystem = {};
  if (fstatfs(descriptor, &filesystem) != 0) return absl::ErrnoToStatus(errno, "cannot look at the descriptor");
  // A huge page that the host has run out of would be missed at the first access to it, with SIGBUS.
  if (filesystem.f_type != TMPFS_MAGIC) return Refused("is no memfd of ordinary pages");
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Region>> MapMemfd(int descriptor, std::uint64_t offset, std::uint64_t size,
                                                 kernels::MemorySharing* sharing,
                                                 std::shared_ptr<RegionBudget> budget) {
  struct stat file = {};
  if (fstat(descriptor, &file) != 0) return absl::ErrnoToStatus(errno, "cannot look at the descriptor");
  if (absl::Status status = CheckRange(offset, size, kPage, static_cast<std::uint64_t>(file.st_size), "the file");
      !status.ok()) {
    return status;
  }
  absl::StatusOr<Charge> charge = Charge::Take(std::move(budget), size);
  if (!charge.ok()) return charge.status();
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, static_cast<off_t>(offset));
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", size, " bytes"));
  if (sharing != nullptr) {
    if (absl::Status status = sharing->Pin(data, size); !status.ok()) {
      munmap(data, size);
      return status;
    }
  } else {
    Populate(data, size, file);
  }
  return std::make_shared<Region>(RegionKind::kSystem, data, size,
                                  [data, size, sharing, charge = *std::move(charge)]() mutable {
                                    if (sharing != nullptr) sharing->Unpin(data);
                                    munmap(data, size);
                                    charge.GiveBack();
                                  });
}

absl::StatusOr<std::shared_ptr<Region>> OpenCudaMemory(absl::string_view handle, std::uint64_t offset,
                                                       std::uint64_t size, kernels::MemorySharing& sharing,
                                                       std::shared_ptr<RegionBudget> budget) {
  if (absl::Status status = CheckHandle(handle); !status.ok()) return status;
  absl::StatusOr<Charge> charge = Charge::Take(std::move(budget), 0);
  if (!charge.ok()) return charge.status();
  const absl::StatusOr<kernels::MemorySharing::DeviceMemory> memory = sharing.OpenMemory(handle);
  if (!memory.ok()) return memory.status();
  if (absl::Status status = CheckRange(offset, size, kCudaAlignment, memory->size, "the allocation"); !status.ok()) {
    sharing.CloseMemory(memory->data);
    return status;
  }
  return std::make_shared<Region>(RegionKind::kCuda, static_cast<std::byte*>(memory->data) + offset, size,
                                  [data = memory->data, &sharing, charge = *std::move(charge)]() mutable {
                                    sharing.CloseMemory(data);
                                    charge.GiveBack();
                                  });
}

absl::StatusOr<std::shared_ptr<Region>> OpenCudaEvent(absl::string_view handle, kernels::MemorySharing& sharing,
                                                      std::shared_ptr<RegionBudget> budget) {
  if (absl::Status status = CheckHandle(handle); !status.ok()) return status;
  absl::StatusOr<Charge> charge = Charge::Take(std::move(budget), 0);
  if (!charge.ok()) return charge.status();
  const absl::StatusOr<void*> event = sharing.OpenEvent(handle);
  if (!event.ok()) return event.status();
  return std::make_shared<Region>(RegionKind::kCudaEvent, *event, 0,
                                  [event = *event, &sharing, charge = *std::move(charge)]() mutable {
                                    sharing.CloseEvent(event);
                                    charge.GiveBack();
                                  });
}

}  // namespace gdpcache::cache
