// A batch drawn from the input, through the engine: whole and unary on one cache; on another one in parts, each
// sequence cut at chunks drawn from the input, parts of several sequences in one call, several calls at once, so that
// they share launches, and as streams. All of it must come to the same bits, and the whole to the recurrence in
// float64.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "tests/fuzz/differential.h"
#include "tests/reference/exact_recurrence.h"
#include "tests/reference/numbers.h"
#include "tests/reference/problem_edit.h"
#include "tests/reference/random_problem.h"
#include "tests/unit/engine/engine_world.h"

namespace gdpcache::engine {
namespace {

using differential::Bytes;
using differential::Require;
using kernels::DataType;
using testing::HostTensor;
using testing::Problem;

/// Every sequence has a slot of its own, in any order.
testing::ProblemSpec Draw(Bytes& bytes) {
  testing::ProblemSpec spec;
  spec.shape.heads = 1 + bytes.Below(2);
  spec.shape.key_dim = 1 + bytes.Below(20);
  spec.shape.value_dim = 1 + bytes.Below(34);
  spec.shape.num_householder = 1 + bytes.Below(3);
  spec.shape.chunk_size = bytes.Of<std::int64_t>({16, 32, 64, 16, 32, 128});
  spec.shape.input_dtype = bytes.Of<DataType>({DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16});
  spec.decay = bytes.Below(4) != 0;
  spec.states_dtype = bytes.Of<DataType>({DataType::kFloat32, spec.shape.input_dtype});
  spec.spare_slots = 1;
  const std::int64_t sequences = 1 + bytes.Below(5);
  for (std::int64_t n = 0; n < sequences; ++n) {
    spec.lengths.push_back(bytes.Below(3 * spec.shape.chunk_size / spec.shape.num_householder + 2));
    spec.state_indices.insert(spec.state_indices.begin() + bytes.Below(n + 1), n);
  }
  return spec;
}

/// One sequence on its way through the calls.
struct Progress {
  std::int64_t rows = 0;  // that it has
  std::int64_t done = 0;
  HostTensor h;
  HostTensor v_new;
};

/// Rows [first, first + count) of some sequences as one problem, in a call of its own.
struct Part {
  struct Piece {
    std::int64_t sequence = 0;
    std::int64_t first = 0;
    std::int64_t count = 0;
  };

  void Add(const Problem& whole, const Piece& piece) {
    const Problem rows = testing::PartOfSequence(whole, piece.sequence, piece.first, piece.count);
    if (pieces.empty()) {
      problem = rows;
    } else {
      for (const auto tensor : {&Problem::k, &Problem::w, &Problem::u, &Problem::g}) {
        if ((rows.*tensor).present()) problem.*tensor = testing::Concatenate(problem.*tensor, rows.*tensor);
      }
      problem.cu_seqlens.push_back(problem.cu_seqlens.back() + piece.count);
      problem.state_indices.push_back(rows.state_indices[0]);
    }
    pieces.push_back(piece);
  }

  Problem problem;
  std::vector<Piece> pieces;
};

class Target {
 public:
  explicit Target(Memory memory) : world_({.workers = 2, .segment_bytes = std::int64_t{16} << 10}, memory) {}

  void Run(Bytes& bytes) {
    const testing::ProblemSpec spec = Draw(bytes);
    std::uint64_t seed = 0;
    for (int i = 0; i < 3; ++i) seed = 256 * seed + static_cast<std::uint64_t>(bytes.Below(256));
    const Problem whole = testing::RandomProblem(spec, seed);
    const cache::Geometry geometry = GeometryOf(whole);
    const std::shared_ptr<cache::Session> session = Open(geometry, whole);
    const absl::StatusOr<Ran> together = RunUnary(world_, session, whole, RequestOf(whole, TensorTransport::kInline));
    Require(together.ok(), "the whole failed");
    CompareWithExact(whole, *together, *session->cache());

    const std::shared_ptr<cache::Session> in_parts = Open(geometry, whole);
    std::vector<Progress> progress(static_cast<std::size_t>(whole.sequences()));
    for (std::size_t n = 0; n < progress.size(); ++n) progress[n].rows = whole.cu_seqlens[n + 1] - whole.cu_seqlens[n];
    while (RunSome(bytes, whole, in_parts, progress)) {
    }
    Require(StoreState(*in_parts->cache(), 0).bytes == StoreState(*session->cache(), 0).bytes, "slots");
    HostTensor h;
    HostTensor v_new;
    for (std::size_t n = 0; n < progress.size(); ++n) {
      const std::int64_t slot = whole.state_indices[n];
      Require(in_parts->cache()->slots().Position(0, slot) == session->cache()->slots().Position(0, slot), "positions");
      if (progress[n].h.present()) h = testing::Concatenate(h, progress[n].h);
      if (progress[n].v_new.present()) v_new = testing::Concatenate(v_new, progress[n].v_new);
    }
    Require(h.bytes == together->outputs.h.bytes, "h");
    Require(v_new.bytes == together->outputs.v_new.bytes, "v_new");
    Require(world_.engine->staging().used() == 0 && world_.engine->device_staging().used() == 0, "memory is leaked");
    for (const auto& ended : {session, in_parts}) {
      Require(world_.catalog.DeleteCache(ended->cache()->spec().name, /*force=*/true, [] {}).ok(), "the end");
    }
  }

 private:
  std::shared_ptr<cache::Session> Open(const cache::Geometry& geometry, const Problem& whole) {
    std::shared_ptr<cache::Session> session = world_.OpenSession(geometry);
    LoadState(*session->cache(), 0, whole.state);
    return session;
  }

  static void CompareWithExact(const Problem& whole, const Ran& ran, const cache::Cache& cache) {
    const testing::ExactOutputs exact = testing::ExactRecurrence(whole);
    const auto compare = [](const HostTensor& actual, const std::vector<double>& expected, double limit,
                            const char* what) {
      // Where sums cancel, float32's rounding of their terms, which are of order 1, is all there is.
      constexpr double kRoundingOfSums = 2e-6;
      const std::vector<double> values = testing::Decode(actual);
      Require(values.size() == expected.size(), what);
      double difference = 0;
      double norm = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        difference += (values[i] - expected[i]) * (values[i] - expected[i]);
        norm += expected[i] * expected[i];
      }
      Require(std::sqrt(difference) <=
                  limit * std::sqrt(norm) + kRoundingOfSums * std::sqrt(static_cast<double>(values.size())),
              what);
    };
    const auto rounding = [](DataType dtype) {
      return dtype == DataType::kFloat32 ? 1e-5 : dtype == DataType::kBFloat16 ? 4e-3 : 5e-4;
    };
    if (!exact.h.empty()) compare(ran.outputs.h, exact.h, rounding(whole.states_dtype), "h against float64");
    if (!exact.v_new.empty()) {
      compare(ran.outputs.v_new, exact.v_new, rounding(whole.shape.input_dtype), "v_new against float64");
    }
    compare(ran.outputs.final_state, exact.final_state, 1e-5, "final_state against float64");
    compare(StoreState(cache, 0), exact.state, 1e-5, "slots against float64");
  }

  /// Brings some of the sequences on, in one to three calls at the same time. False when all are done.
  bool RunSome(Bytes& bytes, const Problem& whole, const std::shared_ptr<cache::Session>& session,
               std::vector<Progress>& progress) {
    const std::int64_t quantum = whole.shape.chunk_size * whole.shape.num_householder;
    std::vector<Part> parts(static_cast<std::size_t>(1 + bytes.Below(3)));
    bool left = false;
    for (std::size_t n = 0; n < progress.size(); ++n) {
      const std::int64_t rows = progress[n].rows - progress[n].done;
      if (rows == 0) continue;
      left = true;
      const std::int64_t chunks = bytes.Below(5);  // 0: all that is left
      const std::int64_t count = chunks == 0 ? rows : std::min(rows, chunks * quantum);
      const auto part = static_cast<std::size_t>(bytes.Below(static_cast<std::int64_t>(parts.size())));
      parts[part].Add(whole, {static_cast<std::int64_t>(n), progress[n].done, count});
    }
    if (!left) return false;
    std::erase_if(parts, [](const Part& part) { return part.pieces.empty(); });
    std::vector<absl::StatusOr<Ran>> results(parts.size(), absl::UnknownError("not run"));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool streamed = bytes.Below(3) == 1;
      const auto seed = static_cast<std::uint64_t>(bytes.Below(256));
      threads.emplace_back([&, i, streamed, seed] {
        const Problem& problem = parts[i].problem;
        results[i] = streamed
                         ? RunStreamed(world_, session, problem, RequestOf(problem, TensorTransport::kStream), seed)
                         : RunUnary(world_, session, problem, RequestOf(problem, TensorTransport::kInline));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Require(results[i].ok(), "a part failed");
      const testing::Outputs& outputs = results[i]->outputs;
      std::int64_t boundary = 0;
      for (std::size_t piece = 0; piece < parts[i].pieces.size(); ++piece) {
        const auto [sequence, first, count] = parts[i].pieces[piece];
        Progress& of = progress[static_cast<std::size_t>(sequence)];
        const std::int64_t boundaries = parts[i].problem.BoundaryCount(static_cast<std::int64_t>(piece));
        of.h = testing::Concatenate(of.h, testing::Rows(outputs.h, boundary, boundaries));
        of.v_new =
            testing::Concatenate(of.v_new, testing::Rows(outputs.v_new, parts[i].problem.cu_seqlens[piece], count));
        of.done += count;
        boundary += boundaries;
      }
    }
    return true;
  }

  World world_;
};

}  // namespace
}  // namespace gdpcache::engine

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gdpcache::engine;  // NOLINT(google-build-using-namespace): the entry has to be outside
  static auto& unified = *new Target(Memory::kUnified);
  static auto& separate = *new Target(Memory::kSeparate);
  Bytes bytes(data, size);
  (bytes.Below(2) == 0 ? unified : separate).Run(bytes);
  return 0;
}
