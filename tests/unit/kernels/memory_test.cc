// What a backend does besides the recurrence: memory, copies of bytes and states, the search for non-finite values.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/reference/numbers.h"
#include "tests/unit/kernels/backend_test.h"
#include "tests/unit/kernels/problem_runner.h"

namespace gdpcache::testing {
namespace {

using kernels::DataType;
using kernels::MemoryKind;

class MemoryTest : public BackendTest {
 protected:
  kernels::Buffer Allocate(std::size_t size, MemoryKind kind = MemoryKind::kDevice) {
    auto buffer = backend().Allocate(size, kind);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }

  std::unique_ptr<GuardedMemory> Place(const std::vector<std::byte>& bytes, std::size_t offset = 0) {
    auto memory = std::make_unique<GuardedMemory>(backend(), stream(), bytes.size(), offset);
    memory->Upload(bytes);
    return memory;
  }

  /// `source`, [heads, 1, elements], copied into memory of another dtype.
  HostTensor Converted(const HostTensor& source, DataType dtype, std::size_t misalign = 0) {
    const kernels::RecurrenceShape shape{
        .heads = source.shape[0], .key_dim = source.shape[1], .value_dim = source.shape[2]};
    const std::int64_t head = shape.key_dim * shape.value_dim;
    HostTensor result{dtype, source.shape, {}};
    const auto from = Place(source.bytes, misalign * static_cast<std::size_t>(ByteSize(source.dtype)));
    GuardedMemory to(backend(), stream(), static_cast<std::size_t>(result.elements() * ByteSize(dtype)),
                     misalign * static_cast<std::size_t>(ByteSize(dtype)));
    EXPECT_TRUE(
        backend().CopyStates(shape, {{{to.data(), dtype, head}, {from->data(), source.dtype, head}}}, stream()).ok());
    result.bytes = to.Download();
    to.ExpectGuardsIntact();
    return result;
  }
};
GDPCACHE_INSTANTIATE_BACKEND_TESTS(MemoryTest);

TEST_P(MemoryTest, AllocationsAreAlignedAndWritable) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{65}, std::size_t{1} << 20,
                                 (std::size_t{3} << 20) + 5}) {
    for (const auto kind : {MemoryKind::kDevice, MemoryKind::kHost}) {
      const kernels::Buffer buffer = Allocate(size, kind);
      EXPECT_EQ(buffer.size(), size);
      EXPECT_EQ(buffer.kind(), kind);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
      EXPECT_TRUE(backend().ZeroBytes({{buffer.data(), size}}, stream()).ok());
      EXPECT_TRUE(backend().Synchronize(stream()).ok());
    }
  }
}

TEST_P(MemoryTest, TooLargeAnAllocationIsRefusedNamingItsSize) {
  const auto refused = backend().Allocate(std::size_t{1} << 50, MemoryKind::kDevice);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr("1125899906842624"));
}

TEST_P(MemoryTest, DeviceInfoIsFilledIn) {
  const kernels::DeviceInfo info = backend().device_info();
  EXPECT_EQ(info.backend, absl::AsciiStrToLower(GetParam().name));
  EXPECT_FALSE(info.device.empty());
  EXPECT_GT(info.memory_bytes, std::int64_t{1} << 20);
}

TEST_P(MemoryTest, CopiedBytesArriveWhateverTheirSizesAndKinds) {
  std::mt19937 random(1);
  std::vector<std::vector<std::byte>> sources;
  for (const std::size_t size : {0, 1, 2, 3, 7, 64, 100, 4097, 300000, 5000001, 3}) {
    sources.emplace_back(size);
    for (std::byte& byte : sources.back()) byte = std::byte(random());
  }
  for (const auto kind : {MemoryKind::kDevice, MemoryKind::kHost}) {
    std::vector<kernels::Buffer> buffers;
    std::vector<std::vector<std::byte>> copies;
    std::vector<kernels::ByteCopy> in;
    std::vector<kernels::ByteCopy> out;
    for (const auto& source : sources) {
      buffers.push_back(Allocate(source.size() + 1, kind));
      copies.emplace_back(source.size());
      in.push_back({buffers.back().bytes() + 1, source.data(), source.size()});
      out.push_back({copies.back().data(), buffers.back().bytes() + 1, source.size()});
    }
    ASSERT_TRUE(backend().CopyBytes(in, stream()).ok());
    ASSERT_TRUE(backend().CopyBytes(out, stream()).ok());
    ASSERT_TRUE(backend().Synchronize(stream()).ok());
    EXPECT_TRUE(copies == sources);
  }
}

TEST_P(MemoryTest, ZeroedBytesAreZeroAndNoOthers) {
  const std::vector<std::byte> pattern(3000000, std::byte{0x5A});
  const auto memory = Place(pattern);
  ASSERT_TRUE(
      backend()
          .ZeroBytes({{memory->data() + 1, 5}, {memory->data() + 10, 0}, {memory->data() + 1000, 2500000}}, stream())
          .ok());
  std::vector<std::byte> expected = pattern;
  std::fill_n(expected.begin() + 1, 5, std::byte{0});
  std::fill_n(expected.begin() + 1000, 2500000, std::byte{0});
  EXPECT_TRUE(memory->Download() == expected);
}

TEST_P(MemoryTest, EveryHalfConvertsExactlyBothWays) {
  for (const auto dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    HostTensor all{dtype, {1, 64, 1024}, {}};
    for (unsigned bits = 0; bits < 65536; ++bits) {
      all.bytes.push_back(std::byte(bits & 0xFF));
      all.bytes.push_back(std::byte(bits >> 8));
    }
    const HostTensor wide = Converted(all, DataType::kFloat32);
    const HostTensor back = Converted(wide, dtype);
    const std::vector<double> values = Decode(all);
    const std::vector<double> wide_values = Decode(wide);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool nan = std::isnan(values[i]);
      ASSERT_TRUE(nan ? std::isnan(wide_values[i]) : wide_values[i] == values[i]) << i;
      ASSERT_EQ(std::signbit(values[i]), std::signbit(wide_values[i])) << i;
      ASSERT_TRUE(nan ? std::isnan(Decode(dtype, &back.bytes[2 * i]))
                      : std::equal(&all.bytes[2 * i], &all.bytes[2 * i] + 2, &back.bytes[2 * i]))
          << i;
    }
  }
}

TEST_P(MemoryTest, FloatsRoundToTheNearestHalfTiesToEven) {
  std::mt19937 random(2);
  HostTensor floats = ZeroTensor(DataType::kFloat32, {2, 128, 1000});
  for (std::size_t i = 0; i < floats.bytes.size() / 4; ++i) {
    std::uint32_t bits = random();
    // Every third is a tie or next to one, in both formats; every fifth lies in float16's range and below it.
    if (i % 3 == 0)
      bits = (bits & (i % 2 == 0 ? 0xFFFF0000U : 0xFFFFE000U)) + (i % 2 == 0 ? 0x8000U : 0x1000U) + random() % 3 - 1;
    if (i % 5 == 0) bits = (bits & 0x87FFFFFFU) | 0x30000000U;
    std::copy_n(reinterpret_cast<const std::byte*>(&bits), 4, &floats.bytes[4 * i]);
  }
  const double special[] = {0.0,
                            -0.0,
                            65504,
                            65519.996,
                            65520,
                            65536,
                            1e30,
                            0x1p-24,
                            0x1p-25,
                            0x1.000002p-25,
                            0x1p-26,
                            0x1.8p-24,
                            0x1.ffcp-15,
                            0x1.ffep-15,
                            0x1.fffp-15,
                            3.4e38,
                            std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()};
  std::size_t at = 0;
  for (const double value : special) {
    Encode(DataType::kFloat32, value, &floats.bytes[4 * at++]);
    Encode(DataType::kFloat32, -value, &floats.bytes[4 * at++]);
  }
  const std::vector<double> values = Decode(floats);
  for (const auto dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    const HostTensor expected = Encode(dtype, floats.shape, values);
    const HostTensor actual = Converted(floats, dtype);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(Decode(dtype, &actual.bytes[2 * i]))) << i;
      } else {
        ASSERT_TRUE(std::equal(&actual.bytes[2 * i], &actual.bytes[2 * i] + 2, &expected.bytes[2 * i]))
            << Name(dtype) << " of " << values[i];
      }
    }
  }
}

TEST_P(MemoryTest, StatesOfEveryDtypePairAndOddSizeConvert) {
  std::mt19937 random(3);
  const std::vector<DataType> dtypes = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16};
  for (const auto from : dtypes) {
    for (const auto to : dtypes) {
      for (const std::int64_t elements : {1, 3, 17, 100}) {
        HostTensor source = ZeroTensor(from, {3, 1, elements});
        std::vector<double> values(static_cast<std::size_t>(source.elements()));
        for (double& value : values) value = static_cast<double>(random()) * 0x1p-30 - 2;
        source = Encode(from, source.shape, values);
        const HostTensor expected = Encode(to, source.shape, Decode(source));
        EXPECT_TRUE(Converted(source, to).bytes == expected.bytes);
        EXPECT_TRUE(Converted(source, to, 1).bytes == expected.bytes);
      }
    }
  }
}

TEST_P(MemoryTest, StateCopiesHonourHeadStridesAndFillWithZeros) {
  const kernels::RecurrenceShape shape{.heads = 2, .key_dim = 3, .value_dim = 5};
  std::vector<std::byte> bytes(160);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i % 100);
  const auto source = Place(bytes);  // heads 20 elements apart
  const std::vector<std::byte> pattern(136, std::byte{0x77});
  const auto copy = Place(pattern);  // heads 17 elements apart
  const auto zeroed = Place(pattern);
  ASSERT_TRUE(backend()
                  .CopyStates(shape,
                              {{{copy->data(), DataType::kFloat32, 17}, {source->data(), DataType::kFloat32, 20}},
                               {{zeroed->data(), DataType::kFloat32, 17}, {}},
                               {{source->data(), DataType::kFloat32, 20}, {source->data(), DataType::kFloat32, 20}}},
                              stream())
                  .ok());
  std::vector<std::byte> expected_copy = pattern;
  std::vector<std::byte> expected_zeroed = pattern;
  for (const std::ptrdiff_t head : {0, 1}) {
    std::copy_n(bytes.begin() + head * 80, 60, expected_copy.begin() + head * 68);
    std::fill_n(expected_zeroed.begin() + head * 68, 60, std::byte{0});
  }
  EXPECT_TRUE(copy->Download() == expected_copy);
  EXPECT_TRUE(zeroed->Download() == expected_zeroed);
  EXPECT_TRUE(source->Download() == bytes);
}

TEST_P(MemoryTest, ManyStateCopiesOfEveryFormArrive) {
  constexpr std::int64_t kHeads = 3;
  constexpr std::int64_t kWidth = 40;
  std::mt19937 random(5);
  for (const std::int64_t key_dim : {7, 9, 16}) {
    for (const std::size_t count : {1, 496, 497}) {
      for (const bool uniform : {true, false}) {  // dense and of one dtype, as slots are, or of any form
        SCOPED_TRACE(::testing::Message() << "K " << key_dim << ", " << count << " copies, uniform " << uniform);
        const kernels::RecurrenceShape shape{.heads = kHeads, .key_dim = key_dim, .value_dim = kWidth};
        const std::int64_t head = key_dim * kWidth;
        const std::int64_t room = kHeads * (head + 8) * 4;  // bytes for a state of any form
        std::vector<std::byte> source(static_cast<std::size_t>(room) * 4);
        for (std::size_t i = 0; i < source.size(); i += 2) {  // finite in every dtype
          const auto bits = static_cast<std::uint16_t>(0x3000U + random() % 0x0C00U);
          std::copy_n(reinterpret_cast<const std::byte*>(&bits), 2, &source[i]);
        }
        std::vector<std::byte> expected(static_cast<std::size_t>(room) * count, std::byte{0x11});
        const auto from = Place(source);
        const auto to = Place(expected);
        std::vector<kernels::StateCopy> copies;
        for (std::size_t i = 0; i < count; ++i) {
          const auto any = [&](std::initializer_list<DataType> dtypes) {
            return uniform ? DataType::kFloat32 : dtypes.begin()[random() % dtypes.size()];
          };
          const auto destination_dtype = any({DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16});
          const auto source_dtype = any({DataType::kFloat32, destination_dtype});
          const std::int64_t destination_stride = head + (uniform ? 0 : static_cast<std::int64_t>(random() % 3 * 4));
          const std::int64_t source_stride = head + (uniform ? 0 : static_cast<std::int64_t>(random() % 9));
          const auto number = static_cast<std::size_t>(random() % 5);  // the last one: zeros
          const std::size_t source_at = number * static_cast<std::size_t>(room);
          const std::size_t at = i * static_cast<std::size_t>(room);
          kernels::StateCopy copy;
          copy.destination = {to->data() + at, destination_dtype, destination_stride};
          if (number < 4) copy.source = {from->data() + source_at, source_dtype, source_stride};
          copies.push_back(copy);
          for (std::int64_t h = 0; h < kHeads; ++h) {
            for (std::int64_t element = 0; element < head; ++element) {
              std::byte* target = &expected[at + static_cast<std::size_t>((h * destination_stride + element) *
                                                                          ByteSize(destination_dtype))];
              const std::byte* origin =
                  number == 4 ? nullptr
                              : &source[source_at + static_cast<std::size_t>((h * source_stride + element) *
                                                                             ByteSize(source_dtype))];
              if (origin == nullptr) {
                std::fill_n(target, ByteSize(destination_dtype), std::byte{0});
              } else if (source_dtype == destination_dtype) {
                std::copy_n(origin, ByteSize(source_dtype), target);
              } else {
                Encode(destination_dtype, Decode(source_dtype, origin), target);
              }
            }
          }
        }
        ASSERT_TRUE(backend().CopyStates(shape, copies, stream()).ok());
        EXPECT_TRUE(to->Download() == expected);
        to->ExpectGuardsIntact();
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(MemoryTest, ManyByteCopiesWithinTheDeviceArriveAndRangesBecomeZero) {
  std::mt19937 random(6);
  std::vector<std::byte> source(3000000);
  for (std::byte& byte : source) byte = std::byte(random());
  std::vector<std::byte> expected(source.size(), std::byte{0x22});
  const auto from = Place(source);
  const auto to = Place(expected);
  std::vector<kernels::ByteCopy> copies;
  std::vector<kernels::ByteRange> ranges;
  const std::size_t sizes[] = {16, 4096, 4096, 5000, 48, 65536, 1, 0};
  for (std::size_t at = 0, number = 0; at + 70000 < expected.size(); ++number) {
    at += random() % 3 == 0 ? random() % 50 : 16 - at % 16;
    const std::size_t size = sizes[random() % 8];
    const std::size_t origin = random() % 2 == 0 ? random() % 100000 / 16 * 16 : random() % 100000;
    if (number % 3 == 0) {
      ranges.push_back({to->data() + at, size});
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(at), size, std::byte{0});
    } else {
      copies.push_back({to->data() + at, from->data() + origin, size});
      std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(origin), size,
                  expected.begin() + static_cast<std::ptrdiff_t>(at));
    }
    at += size;
  }
  ASSERT_TRUE(backend().CopyBytes(copies, stream()).ok());
  ASSERT_TRUE(backend().ZeroBytes(ranges, stream()).ok());
  EXPECT_TRUE(to->Download() == expected);
  to->ExpectGuardsIntact();
}

TEST_P(MemoryTest, CopiesAheadAndAsideMeetTheWorkBetweenThem) {
  const std::vector<std::byte> pattern(1 << 20, std::byte{0x42});
  const kernels::RecurrenceShape shape{.heads = 1, .key_dim = 256, .value_dim = 1024};
  const kernels::Buffer in = Allocate(pattern.size());
  const kernels::Buffer out = Allocate(pattern.size());
  const kernels::Buffer pinned = Allocate(pattern.size(), MemoryKind::kHost);
  std::copy(pattern.begin(), pattern.end(), pinned.bytes());
  std::vector<kernels::Buffer> results;
  std::vector<std::unique_ptr<kernels::Event>> events;
  for (int round = 0; round < 20; ++round) {
    results.push_back(Allocate(pattern.size(), MemoryKind::kHost));
    ASSERT_TRUE(backend().CopyBytesAhead({{in.data(), pinned.data(), pattern.size()}}, stream()).ok());
    ASSERT_TRUE(
        backend()
            .CopyStates(shape, {{{out.data(), DataType::kFloat32, 0}, {in.data(), DataType::kFloat32, 0}}}, stream())
            .ok());
    ASSERT_TRUE(backend().CopyBytesAside({{results.back().data(), out.data(), pattern.size()}}, stream()).ok());
    auto event = backend().Record(stream());
    ASSERT_TRUE(event.ok()) << event.status();
    events.push_back(*std::move(event));
  }
  for (std::size_t round = 0; round < events.size(); ++round) {
    ASSERT_TRUE(backend().Wait(*events[round]).ok());
    EXPECT_TRUE(std::equal(pattern.begin(), pattern.end(), results[round].bytes())) << round;
  }
  ASSERT_TRUE(backend().Synchronize(stream()).ok());
}

TEST_P(MemoryTest, StreamsThatAwaitAnEventOfAnotherComeBehindItsWork) {
  constexpr int kRounds = 20;
  const std::vector<std::byte> zeros(std::size_t{1} << 22);
  const auto source = Place(std::vector<std::byte>(zeros.size(), std::byte{0x42}));
  const kernels::Buffer between = Allocate(zeros.size());
  const auto to = Place(zeros);
  auto other = backend().CreateStream();
  ASSERT_TRUE(other.ok()) << other.status();
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(backend().ZeroBytes({{between.data(), zeros.size()}, {to->data(), zeros.size()}}, stream()).ok());
    ASSERT_TRUE(backend().CopyBytes({{between.data(), source->data(), zeros.size()}}, stream()).ok());
    auto event = backend().Record(stream());
    ASSERT_TRUE(event.ok()) << event.status();
    ASSERT_TRUE(backend().Await(**event, **other).ok());
    const auto shared = std::shared_ptr<kernels::Event>(*std::move(event));
    ASSERT_TRUE(backend().CopyBytes({{to->data(), between.data(), zeros.size()}}, **other).ok());
    ASSERT_TRUE(backend().Synchronize(**other).ok());
    EXPECT_EQ(backend().HasHappened(*shared).value(), true);
    ASSERT_TRUE(to->Download() == source->Download()) << round;
  }
}

TEST_P(MemoryTest, EventsThatGoBeforeTheyHaveHappenedAreStillWaitedForWhateverIsRecordedNext) {
  constexpr int kRounds = 10;
  const std::vector<std::byte> zeros(std::size_t{1} << 23);
  const auto source = Place(std::vector<std::byte>(zeros.size(), std::byte{0x42}));
  const kernels::Buffer between = Allocate(zeros.size());
  const auto to = Place(zeros);
  auto other = backend().CreateStream();
  auto idle = backend().CreateStream();
  ASSERT_TRUE(other.ok() && idle.ok());
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(backend().ZeroBytes({{to->data(), zeros.size()}}, stream()).ok());
    for (int copy = 0; copy < 8; ++copy) {
      ASSERT_TRUE(backend().ZeroBytes({{between.data(), zeros.size()}}, stream()).ok());
      ASSERT_TRUE(backend().CopyBytes({{between.data(), source->data(), zeros.size()}}, stream()).ok());
    }
    {
      auto event = backend().Record(stream());
      ASSERT_TRUE(event.ok()) << event.status();
      ASSERT_TRUE(backend().Await(**event, **other).ok());
    }
    ASSERT_TRUE(backend().CopyBytes({{to->data(), between.data(), zeros.size()}}, **other).ok());
    for (int later = 0; later < 8; ++later) ASSERT_TRUE(backend().Record(**idle).ok());
    const auto last = backend().Record(**other);
    ASSERT_TRUE(last.ok()) << last.status();
    ASSERT_TRUE(backend().Wait(**last).ok());
    ASSERT_TRUE(to->Download() == source->Download()) << round;
  }
}

TEST_P(MemoryTest, EventsOfManyThreadsAtOnceAreEachOfItsOwnStream) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  std::vector<std::thread> threads;
  for (int n = 0; n < 8; ++n) {
    threads.emplace_back([this, n] {
      auto own = backend().CreateStream();
      ASSERT_TRUE(own.ok()) << own.status();
      const kernels::Buffer device = Allocate(kBytes);
      const kernels::Buffer in = Allocate(kBytes, MemoryKind::kHost);
      const kernels::Buffer out = Allocate(kBytes, MemoryKind::kHost);
      std::vector<std::unique_ptr<kernels::Event>> events;
      for (int round = 1; round <= 60; ++round) {
        const int value = (8 * round + n) % 251;
        std::memset(in.data(), value, kBytes);
        ASSERT_TRUE(backend().CopyBytes({{device.data(), in.data(), kBytes}}, **own).ok());
        ASSERT_TRUE(backend().CopyBytes({{out.data(), device.data(), kBytes}}, **own).ok());
        auto event = backend().Record(**own);
        ASSERT_TRUE(event.ok()) << event.status();
        ASSERT_TRUE(backend().Wait(**event).ok());
        ASSERT_EQ(out.bytes()[kBytes - 1], static_cast<std::byte>(value));
        events.push_back(*std::move(event));
        if (round % 20 == 0) events.clear();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(MemoryTest, AStreamWritesAValueBehindItsWorkIntoPinnedMemory) {
  kernels::MemorySharing* const sharing = backend().memory_sharing();
  if (sharing == nullptr) GTEST_SKIP() << "all memory is the host's";
  constexpr std::size_t kWords = 4096;
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  void* const mapped =
      mmap(nullptr, kWords * sizeof(std::uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ASSERT_EQ(sharing->Pin(mapped, kWords * sizeof(std::uint32_t)), absl::OkStatus());
  auto* const words = static_cast<std::uint32_t*>(mapped);
  const kernels::Buffer device = Allocate(kBytes);
  const kernels::Buffer host = Allocate(kBytes, MemoryKind::kHost);
  std::memset(host.data(), 0xff, kBytes);
  for (std::uint32_t round = 1; round <= 20; ++round) {
    const std::size_t word = std::size_t{round} * 137 % kWords;
    ASSERT_EQ(backend().ZeroBytes({{device.data(), kBytes}}, stream()), absl::OkStatus());
    ASSERT_EQ(backend().CopyBytes({{host.data(), device.data(), kBytes}}, stream()), absl::OkStatus());
    ASSERT_EQ(sharing->WriteValue(words + word, round, stream()), absl::OkStatus());
    while (std::atomic_ref(words[word]).load(std::memory_order_acquire) != round) std::this_thread::yield();
    EXPECT_EQ(host.bytes()[kBytes - 1], std::byte{0}) << "the copy comes before";
    ASSERT_EQ(backend().Synchronize(stream()), absl::OkStatus());
    std::memset(host.data(), 0xff, kBytes);
  }
  EXPECT_EQ(std::count(words, words + kWords, 0U), static_cast<std::ptrdiff_t>(kWords) - 20);
  sharing->Unpin(mapped);
  munmap(mapped, kWords * sizeof(std::uint32_t));
}

TEST_P(MemoryTest, RunningOutOfDeviceMemoryLosesNothing) {
  if (backend().device_info().unified_memory) GTEST_SKIP() << "a host promises more memory than it has";
  const std::vector<std::byte> pattern(1 << 16, std::byte{0x5C});
  const auto kept = Place(pattern);
  const auto step = static_cast<std::size_t>(backend().device_info().memory_bytes / 8);
  for (int round = 0; round < 2; ++round) {  // what was refused and freed is there again
    std::vector<kernels::Buffer> taken;
    absl::Status refused;
    while (refused.ok() && taken.size() < 9) {
      auto buffer = backend().Allocate(step, MemoryKind::kDevice);
      refused = buffer.status();
      if (buffer.ok()) taken.push_back(*std::move(buffer));
    }
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr(std::to_string(step)));
    EXPECT_GE(taken.size(), 1U);
    EXPECT_TRUE(kept->Download() == pattern);
  }
}

TEST_P(MemoryTest, ManyCopiesThatFindNoMemoryForTheirListChangeNothing) {
  if (backend().device_info().unified_memory) GTEST_SKIP() << "the host needs no list of its copies";
  constexpr std::size_t kSmall = 1000;    // copies of 16 bytes: their list fits where that of an earlier call was
  constexpr std::size_t kLarge = 300000;  // copies of 32 bytes
  const std::vector<std::byte> before(kSmall * 32 + kLarge * 64 + 1, std::byte{0x11});
  const std::vector<std::byte> pattern(64, std::byte{0x77});
  const auto from = Place(pattern);
  const auto to = Place(before);
  std::vector<kernels::ByteCopy> copies = {{to->data() + before.size() - 1, from->data(), 1}};
  for (std::size_t i = 0; i < kSmall; ++i) copies.push_back({to->data() + i * 32, from->data(), 16});
  ASSERT_TRUE(backend().CopyBytes(absl::MakeConstSpan(copies).subspan(1), stream()).ok());
  ASSERT_TRUE(backend().Synchronize(stream()).ok());
  to->Upload(before);
  std::vector<kernels::ByteRange> ranges = {{to->data() + before.size() - 1, 1}};
  for (std::size_t i = 0; i < kSmall; ++i) ranges.push_back({to->data() + i * 32, 16});
  for (std::size_t i = 0; i < kLarge; ++i) {
    copies.push_back({to->data() + kSmall * 32 + i * 64, from->data(), 32});
    ranges.push_back({to->data() + kSmall * 32 + i * 64, 32});
  }

  std::vector<kernels::Buffer> taken;
  for (auto size = static_cast<std::size_t>(backend().device_info().memory_bytes); size >= std::size_t{1} << 20;) {
    auto buffer = backend().Allocate(size, MemoryKind::kDevice);
    if (buffer.ok()) {
      taken.push_back(*std::move(buffer));
    } else {
      size /= 2;
    }
  }
  EXPECT_EQ(backend().CopyBytes(copies, stream()).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(backend().ZeroBytes(ranges, stream()).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(to->Download() == before);

  taken.clear();
  EXPECT_TRUE(backend().CopyBytes(copies, stream()).ok());
  const std::vector<std::byte> after = to->Download();
  EXPECT_EQ(std::count(after.begin(), after.end(), std::byte{0x77}), kSmall * 16 + kLarge * 32 + 1);
}

TEST_P(MemoryTest, StateCopiesOfWrongFormAreRefused) {
  const kernels::RecurrenceShape shape{.heads = 2, .key_dim = 3, .value_dim = 5};
  const auto memory = Place(std::vector<std::byte>(120));
  const kernels::StateView good{memory->data(), DataType::kFloat32, 15};
  EXPECT_EQ(backend().CopyStates(shape, {{{}, good}}, stream()).code(), absl::StatusCode::kInvalidArgument);
  const kernels::StateView overlapping{memory->data(), DataType::kFloat32, 14};
  EXPECT_EQ(backend().CopyStates(shape, {{overlapping, {}}}, stream()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend().CopyStates({.heads = 0, .key_dim = 3, .value_dim = 5}, {{good, {}}}, stream()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(MemoryTest, FirstRangeWithANonFiniteValueIsFound) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    const auto size = static_cast<std::size_t>(ByteSize(dtype));
    const std::int64_t counts[] = {0, 5, 1000003, 64};
    std::vector<std::vector<std::byte>> clean;
    for (const std::int64_t count : counts) {
      // The largest finite value of every dtype that looks most like an infinity.
      clean.push_back(Encode(dtype, {count}, std::vector<double>(static_cast<std::size_t>(count), -65504.0)).bytes);
    }
    const auto find = [&](const std::vector<std::vector<std::byte>>& contents) {
      std::vector<std::unique_ptr<GuardedMemory>> memory;
      std::vector<kernels::FiniteCheck> checks;
      for (const auto& bytes : contents) {
        memory.push_back(Place(bytes, size));
        checks.push_back({memory.back()->data(), static_cast<std::int64_t>(bytes.size() / size), dtype});
      }
      const auto found = backend().FindNonFinite(checks, stream());
      EXPECT_TRUE(found.ok()) << found.status();
      return *found;
    };
    EXPECT_EQ(find(clean), -1);
    for (const double bad : {infinity, -infinity, nan}) {
      for (const std::size_t range : {1, 2, 3}) {
        for (const bool at_end : {false, true}) {
          auto contents = clean;
          Encode(dtype, bad, at_end ? &contents[range].back() + 1 - size : contents[range].data());
          Encode(dtype, bad, contents[3].data());  // a later one does not matter
          EXPECT_EQ(find(contents), static_cast<std::int64_t>(range));
        }
      }
    }
  }
}

}  // namespace
}  // namespace gdpcache::testing
