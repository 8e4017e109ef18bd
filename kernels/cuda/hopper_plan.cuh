#ifndef GDPCACHE_KERNELS_CUDA_HOPPER_PLAN_CUH_
#define GDPCACHE_KERNELS_CUDA_HOPPER_PLAN_CUH_

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/descriptors.h"
#include "kernels/cuda/hopper_ptx.cuh"
#include "kernels/cuda/recurrence_hopper.h"

/// What the roles of a thread block share: the division of its shared memory, the barriers and how they are used.
namespace gdpcache::kernels::cuda::hopper {

inline constexpr int kChunk = kHopperChunk;
inline constexpr int kThreads = 384;
inline constexpr int kProductThreads = 128;  // warps 0-3
inline constexpr int kWriters = 3;           // warps that write states
inline constexpr int kItemReaders = 11;      // warps that read items
inline constexpr int kItemSlots = 4;
inline constexpr int kBoxBytes = kChunk * 128;                      // 64 rows of 64 elements of w or k
inline constexpr int kFewRows = static_cast<int>(kHopperUnmapped);  // chunks that are copied by rows rather than boxes

// One lane speaks for its warp, and one thread for all product warps where these have met at a barrier.
// compute-sanitizer's racecheck does not see that, so a build for it lets every lane arrive.
#ifdef GDPCACHE_CUDA_RACECHECK
inline constexpr bool kAllArrive = true;
#else
inline constexpr bool kAllArrive = false;
#endif
inline constexpr int kArrivalsOfWarp = kAllArrive ? 32 : 1;
template <typename P>
inline constexpr int kArrivalsOfProducts = kAllArrive ? kProductThreads
                                           : P::kWide ? 4
                                                      : 1;

struct Item {
  SequenceDescriptor sequence;
  std::int64_t head;
  std::int32_t column;  // first value column
  std::int32_t valid;   // 0: no more items
};

/// How the work is cut and the shared memory divided: keys padded to Keys, tiles of Tile value columns, Cluster thread
/// blocks that work on neighbouring tiles of one head and share w and k; with S and x as one term in the products or,
/// for high precision, as two.
template <int Keys, int Tile, int Cluster, HopperBuffers Buffers, bool High>
struct Plan {
  static constexpr int kKeys = Keys;
  static constexpr int kTile = Tile;
  static constexpr int kCluster = Cluster;
  static constexpr bool kShort = Buffers == HopperBuffers::kShort;
  static constexpr bool kDeep = Buffers == HopperBuffers::kDeep;
  static constexpr int kTerms = High ? 2 : 1;
  // All lanes of the loader arrive where its copies by rows are to be asynchronous.
  static constexpr int kLoaderArrivals = kShort || kAllArrive ? 32 : 1;
  static constexpr int kGroups = Keys / 64;

  // Whether S^T rather than S lies in registers: see hopper_wide_products.cuh and hopper_narrow_products.cuh.
  static constexpr bool kWide = !High && Keys <= 128 && Tile >= 32;
  static constexpr bool kSplit = Keys > 128;  // k has barriers of its own, which makes the most of few stages

  static constexpr int kStages = kShort || Keys > 128       ? 2
                                 : Keys == 64 || Tile == 16 ? 5
                                 : High || Tile == 64       ? (kDeep ? 4 : 3)
                                                            : (kDeep ? 5 : 4);
  static constexpr int kValueSlots = Tile == 64 && Keys == 128 ? 4 : 6;
  static constexpr int kStateBuffers = kDeep ? 2 : Keys == 192 || (Keys == 128 && Tile == 64 && !kShort) ? 3 : 4;
  static constexpr int kIncomingBuffers = Keys == 64 || kShort ? 2 : 1;  // of them, for initial states

  // Everything that lies in rows of value columns is swizzled over them, as tensor copies and products expect it.
  static constexpr int kRowBytes = Tile * 2;                   // of u, v_new, S and x in 16-bit elements
  static constexpr int kStateColumns = Tile < 32 ? Tile : 32;  // of one box of a float32 state
  static constexpr int kStateRowBytes = kStateColumns * 4;
  static constexpr int kStateBoxBytes = Keys * kStateRowBytes;

  static constexpr int kOperandBytes = kGroups * kBoxBytes;  // w or k of a chunk
  static constexpr int kValueBytes = kChunk * kRowBytes;     // u, v_new or x of a chunk
  static constexpr int kTermBytes = Keys * kRowBytes;        // S in 16-bit elements
  static constexpr int kStateBytes = Keys * Tile * 4;
  static constexpr int kFactorFloats = kChunk + 4;             // a factor per token, then the chunk's decay
  static constexpr int kGSlots = Tile == 64 && kDeep ? 3 : 4;  // chunks whose g is under way

  static constexpr int kUOffset = 2 * kStages * kOperandBytes;
  static constexpr int kTermOffset = kUOffset + kValueSlots * kValueBytes;
  static constexpr int kXOffset = kTermOffset + (kWide ? 0 : kTerms * kTermBytes);
  static constexpr int kStateOffset = kXOffset + (kWide ? 0 : kTerms * kValueBytes);
  static constexpr int kFactorOffset = kStateOffset + kStateBuffers * kStateBytes;
  static constexpr int kGOffset = kFactorOffset + kStages * kFactorFloats * 4;
  static constexpr int kItemOffset = kGOffset + kGSlots * kChunk * 4;
  static constexpr int kNumberOffset = kItemOffset + kItemSlots * static_cast<int>(sizeof(Item));
  static constexpr int kBarrierOffset = kNumberOffset + kItemSlots * 8;
  static constexpr int kBarriers = 4 * kStages + 2 * kValueSlots + 4 * kItemSlots + 2 * kStateBuffers;
  static constexpr int kZeroOffset = kBarrierOffset + kBarriers * 8;
  static constexpr int kBytes = kZeroOffset + 8;
  static_assert(kTermOffset % 1024 == 0 && kXOffset % 1024 == 0 && kStateOffset % 1024 == 0);
};

/// Where a 16-byte piece lies in its row, rows of kRowBytes being swizzled as tensor copies do.
template <int kRowBytes>
__device__ __forceinline__ constexpr int SwizzledPiece(int row, int piece) {
  return piece ^ (row * kRowBytes / 128 % (kRowBytes / 16));
}

/// Everything a role needs to find its way: pointers into shared memory and the launch's arguments.
template <typename P>
struct Context {
  std::byte* base;
  std::uint32_t shared;  // the address of base
  const HopperArguments* arguments;

  __device__ const CUtensorMap* maps() const {
    return reinterpret_cast<const CUtensorMap*>(block() + arguments->maps_offset);
  }
  __device__ bool maps_uploaded() const { return arguments->uploaded_block != nullptr; }
  __device__ const SequenceDescriptor* sequences() const {
    return reinterpret_cast<const SequenceDescriptor*>(block());
  }
  __device__ const BoundaryDescriptor* boundaries() const {
    return reinterpret_cast<const BoundaryDescriptor*>(block() + arguments->boundaries_offset);
  }

  // Addresses in shared memory.
  __device__ std::uint32_t w(int stage) const { return shared + 2 * stage * P::kOperandBytes; }
  __device__ std::uint32_t k(int stage) const { return shared + (2 * stage + 1) * P::kOperandBytes; }
  /// u, and in its place v_new later.
  __device__ std::uint32_t values(int slot) const { return shared + P::kUOffset + slot * P::kValueBytes; }
  __device__ std::uint32_t state_term(int term) const { return shared + P::kTermOffset + term * P::kTermBytes; }
  __device__ std::uint32_t x_term(int term) const { return shared + P::kXOffset + term * P::kValueBytes; }
  __device__ std::uint32_t state(int buffer) const { return shared + P::kStateOffset + buffer * P::kStateBytes; }
  __device__ std::uint32_t g(int slot) const { return shared + P::kGOffset + slot * kChunk * 4; }
  __device__ std::uint32_t number(int slot) const { return shared + P::kNumberOffset + slot * 8; }

  /// What is at such an address.
  template <typename Type>
  __device__ Type* at(std::uint32_t address) const {
    return reinterpret_cast<Type*>(base + (address - shared));
  }
  __device__ float* factors(int stage) const {
    return reinterpret_cast<float*>(base + P::kFactorOffset) + stage * P::kFactorFloats;
  }
  __device__ volatile std::uint32_t* zero() const {
    return reinterpret_cast<volatile std::uint32_t*>(base + P::kZeroOffset);
  }
  __device__ Item* item(int slot) const { return reinterpret_cast<Item*>(base + P::kItemOffset) + slot; }

  // Barriers. Without a split, one pair covers all of a stage.
  __device__ std::uint32_t w_full(int stage) const { return barrier(stage); }  // w and u
  __device__ std::uint32_t w_empty(int stage) const { return barrier(P::kStages + stage); }
  __device__ std::uint32_t k_full(int stage) const {  // k and factors
    return barrier((P::kSplit ? 2 * P::kStages : 0) + stage);
  }
  __device__ std::uint32_t k_empty(int stage) const {
    return barrier((P::kSplit ? 3 * P::kStages : P::kStages) + stage);
  }
  __device__ std::uint32_t value_full(int slot) const { return barrier(4 * P::kStages + slot); }  // v_new
  __device__ std::uint32_t value_empty(int slot) const { return value_full(P::kValueSlots + slot); }
  __device__ std::uint32_t item_full(int slot) const { return value_full(2 * P::kValueSlots + slot); }
  __device__ std::uint32_t item_empty(int slot) const { return item_full(kItemSlots + slot); }
  __device__ std::uint32_t number_full(int slot) const { return item_full(2 * kItemSlots + slot); }
  __device__ std::uint32_t number_empty(int slot) const { return item_full(3 * kItemSlots + slot); }
  __device__ std::uint32_t state_full(int buffer) const { return item_full(4 * kItemSlots + buffer); }
  __device__ std::uint32_t state_empty(int buffer) const { return state_full(P::kStateBuffers + buffer); }

  __device__ void InitBarriers() const {
    constexpr int kLoader = P::kLoaderArrivals;
    for (int i = 0; i < P::kStages; ++i) {
      ptx::InitBarrier(w_full(i), P::kSplit ? kLoader : kLoader + kArrivalsOfWarp);
      ptx::InitBarrier(w_empty(i), P::kCluster * kArrivalsOfProducts<P>);
      if constexpr (P::kSplit) {
        ptx::InitBarrier(k_full(i), kLoader + kArrivalsOfWarp);
        ptx::InitBarrier(k_empty(i), P::kCluster * kArrivalsOfProducts<P>);
      }
    }
    for (int i = 0; i < P::kValueSlots; ++i) {
      ptx::InitBarrier(value_full(i), kArrivalsOfProducts<P>);
      ptx::InitBarrier(value_empty(i), kArrivalsOfWarp);
    }
    for (int i = 0; i < kItemSlots; ++i) {
      ptx::InitBarrier(item_full(i), kArrivalsOfWarp);
      ptx::InitBarrier(item_empty(i), kItemReaders * kArrivalsOfWarp);
      ptx::InitBarrier(number_full(i), 1);
      ptx::InitBarrier(number_empty(i), P::kCluster);
    }
    for (int i = 0; i < P::kStateBuffers; ++i) {
      const bool incoming = i < P::kIncomingBuffers;
      ptx::InitBarrier(state_full(i), incoming ? 32 : kArrivalsOfProducts<P>);
      ptx::InitBarrier(state_empty(i), (incoming ? 4 + kWriters : kWriters) * kArrivalsOfWarp);
    }
    *zero() = 0;
    ptx::FenceBarrierInit();
  }

 private:
  __device__ const std::byte* block() const {
    return arguments->uploaded_block != nullptr ? arguments->uploaded_block : arguments->inline_block;
  }
  __device__ std::uint32_t barrier(int index) const { return shared + P::kBarrierOffset + index * 8; }
};

/// A place in a ring of buffers. The consumer of a buffer waits for `parity`; its producer for the opposite, which a
/// fresh barrier passes at once.
struct RingPosition {
  int slot;
  std::uint32_t parity = 0;
  __device__ __forceinline__ explicit RingPosition(int first = 0) : slot(first) {}
  __device__ __forceinline__ void Advance(int end, int first = 0) {
    if (++slot == end) {
      slot = first;
      parity ^= 1;
    }
  }
};

/// Arrives for all of the warp, whose earlier accesses it covers.
__device__ __forceinline__ void ArriveAsWarp(std::uint32_t barrier, int lane) {
  __syncwarp();
  if (kAllArrive || lane == 0) ptx::Arrive(barrier);
}

/// Arrives for all of the warp at that barrier of every block of the cluster.
template <typename P>
__device__ __forceinline__ void ArriveInCluster(std::uint32_t barrier, int lane) {
  if constexpr (P::kCluster == 1) {
    if (kAllArrive || lane == 0) ptx::Arrive(barrier);
  } else if (kAllArrive) {
    for (int rank = 0; rank < P::kCluster; ++rank) ptx::ArriveAt(barrier, rank);
  } else if (lane < P::kCluster) {
    ptx::ArriveAt(barrier, lane);
  }
}

/// `value`, the same in all lanes, in a form the compiler knows to be so: warpgroup products must not appear to
/// diverge.
__device__ __forceinline__ int Uniform(int value) { return __shfl_sync(0xffffffffU, value, 0); }

__device__ __forceinline__ int Chunks(const SequenceDescriptor& sequence) {
  return Uniform(static_cast<int>((sequence.length + kChunk - 1) / kChunk));
}

/// Whether the boundaries leave as the products' operand, of which boundary 0 is then no exception.
__device__ __forceinline__ bool PacksBoundaries(const SequenceDescriptor& sequence) {
  return Uniform(sequence.boundary_state >= 0 && sequence.all_boundaries.dtype != DataType::kFloat32) != 0;
}

/// Takes rows that are not the sequence's own out of a stage's k, whatever they hold; by the product threads.
template <typename P>
__device__ __forceinline__ void ClearKeysFrom(const Context<P>& context, int stage, int rows, int thread) {
#pragma unroll
  for (int group = 0; group < P::kGroups; ++group) {
#pragma unroll 1
    for (int piece = rows * 8 + thread; piece < kChunk * 8; piece += kProductThreads) {
      *context.template at<uint4>(context.k(stage) + group * kBoxBytes + piece * 16) = {};
    }
  }
}

/// Walks the boundaries of a sequence that somebody wants, each known by the chunk before which it lies.
class BoundaryCursor {
 public:
  __device__ __forceinline__ BoundaryCursor(const SequenceDescriptor& sequence, const BoundaryDescriptor* boundaries,
                                            int num_householder)
      : boundaries_(boundaries),
        index_(Uniform(sequence.first_boundary)),
        end_(index_ + Uniform(sequence.boundary_count)),
        num_householder_(num_householder),
        next_of_all_(Uniform(sequence.all_boundaries.data != nullptr) != 0 ? 0 : kNone) {
    Peek();
  }

  /// The chunk of the next wanted boundary; beyond all chunks if there is none.
  __device__ __forceinline__ int Next() const { return min(next_of_all_, next_single_); }

  /// Whether the boundary goes among all of them; once for each.
  __device__ __forceinline__ bool TakeOfAll(int chunk) {
    if (chunk != next_of_all_) return false;
    next_of_all_ += num_householder_;
    return true;
  }

  /// The boundary's next single destination, or nullptr.
  __device__ __forceinline__ const BoundaryDescriptor* TakeSingle(int chunk) {
    if (chunk != next_single_) return nullptr;
    const BoundaryDescriptor* taken = boundaries_ + index_++;
    Peek();
    return taken;
  }

  /// Moves past the boundary.
  __device__ __forceinline__ void Pass(int chunk) {
    TakeOfAll(chunk);
#pragma unroll 1
    while (TakeSingle(chunk) != nullptr) {
    }
  }

 private:
  static constexpr int kNone = 0x7fffffff;
  __device__ __forceinline__ void Peek() {
    next_single_ = kNone;
    if (index_ != end_) next_single_ = Uniform(static_cast<int>(boundaries_[index_].boundary) * num_householder_);
  }

  const BoundaryDescriptor* boundaries_;
  int index_;
  int end_;
  int num_householder_;
  int next_of_all_;
  int next_single_ = kNone;
};

/// What the product warps have to do for an item.
struct Task {
  int chunks;
  int last_rows;  // of the last chunk
  bool wants_values;
  bool packed;
  bool has_final;
  BoundaryCursor cursor;

  __device__ __forceinline__ Task(const SequenceDescriptor& sequence, const BoundaryDescriptor* boundaries,
                                  int num_householder)
      : chunks(Chunks(sequence)),
        last_rows(Uniform(static_cast<int>(sequence.length - static_cast<std::int64_t>(chunks - 1) * kChunk))),
        wants_values(Uniform(sequence.v_new != nullptr) != 0),
        packed(PacksBoundaries(sequence)),
        has_final(Uniform(sequence.slot.data != nullptr || sequence.final_state.data != nullptr) != 0),
        cursor(sequence, boundaries, num_householder) {
    if (!packed) cursor.Pass(0);  // as it was loaded, boundary 0 is not theirs to store
  }
};

}  // namespace gdpcache::kernels::cuda::hopper

#endif  // GDPCACHE_KERNELS_CUDA_HOPPER_PLAN_CUH_
