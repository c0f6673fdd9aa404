#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/memory/allocator.h"
#include "weft/memory/segment.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::memory {
namespace {

using testing::IsOk;
using testing::RunRanks;
using testing::StatusIs;

constexpr int64_t kPage = 4096;

bool IsAligned(const void* memory, uintptr_t alignment) {
  return reinterpret_cast<uintptr_t>(memory) % alignment == 0;
}

TEST(Segment, IsZeroedAllocatedAndSealed) {
  WEFT_ASSERT_OK_AND_ASSIGN(Segment segment, Segment::Create(3 * kPage));
  EXPECT_EQ(segment.size_bytes(), 3 * kPage);
  for (std::byte byte : segment.span()) ASSERT_EQ(byte, std::byte{0});
  struct stat found;
  ASSERT_EQ(fstat(segment.fd(), &found), 0);
  EXPECT_EQ(found.st_blocks * 512, 3 * kPage);  // no holes
  EXPECT_NE(ftruncate(segment.fd(), kPage), 0);
  EXPECT_NE(ftruncate(segment.fd(), 4 * kPage), 0);
  EXPECT_NE(fcntl(segment.fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(Segment, IsSharedWithAnotherProcess) {
  WEFT_ASSERT_OK_AND_ASSIGN(Segment segment, Segment::Create(kPage));
  const pid_t child = fork();
  if (child == 0) {
    auto theirs = Segment::FromFd(dup(segment.fd()), kPage);
    if (theirs.ok()) theirs->data()[7] = std::byte{42};
    _exit(theirs.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(segment.data()[7], std::byte{42});
}

TEST(Segment, PartWithoutPagesGetsThemWhereItIsNeeded) {
  WEFT_ASSERT_OK_AND_ASSIGN(Segment segment,
                            Segment::CreateInPart(8 * kPage, 2 * kPage));
  const auto allocated = [&] {
    struct stat found;
    EXPECT_EQ(fstat(segment.fd(), &found), 0);
    return int64_t{found.st_blocks} * 512;
  };
  EXPECT_EQ(segment.size_bytes(), 8 * kPage);
  EXPECT_EQ(allocated(), 2 * kPage);
  segment.data()[0] = std::byte{1};
  WEFT_ASSERT_OK_AND_ASSIGN(
      Segment theirs,
      Segment::FromFdInPart(dup(segment.fd()), 8 * kPage, 2 * kPage));
  EXPECT_EQ(allocated(), 2 * kPage);
  WEFT_EXPECT_OK(theirs.Allocate(2 * kPage, 6 * kPage));
  EXPECT_EQ(allocated(), 8 * kPage);
  WEFT_EXPECT_OK(segment.Allocate(2 * kPage, 6 * kPage));
  EXPECT_EQ(allocated(), 8 * kPage);
  theirs.data()[8 * kPage - 1] = std::byte{2};
  EXPECT_EQ(segment.data()[8 * kPage - 1], std::byte{2});
  EXPECT_EQ(theirs.data()[0], std::byte{1});
}

TEST(Segment, RefusesUnsealedMemory) {
  const int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(fd, kPage), 0);
  EXPECT_THAT(Segment::FromFd(fd, kPage),
              StatusIs(absl::StatusCode::kInvalidArgument, "sealed"));
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);  // owned, so closed
  EXPECT_THAT(Segment::FromFd(open("/dev/null", O_RDWR), kPage),
              StatusIs(absl::StatusCode::kInvalidArgument, "something else"));
  EXPECT_THAT(Segment::FromFd(-1, kPage),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Segment, RefusesOneThatIsSmallerThanSaid) {
  WEFT_ASSERT_OK_AND_ASSIGN(Segment segment, Segment::Create(kPage));
  EXPECT_THAT(
      Segment::FromFd(dup(segment.fd()), kPage + 1),
      StatusIs(absl::StatusCode::kInvalidArgument, "4097 bytes, found 4096"));
}

TEST(Segment, SaysThatMemoryDoesNotSuffice) {
  EXPECT_THAT(Segment::Create(0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Segment::Create(int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted, "available"));
}

TEST(Segment, MovesWithItsMapping) {
  WEFT_ASSERT_OK_AND_ASSIGN(Segment first, Segment::Create(kPage));
  WEFT_ASSERT_OK_AND_ASSIGN(Segment second, Segment::Create(kPage));
  first.data()[0] = std::byte{1};
  second = std::move(first);
  EXPECT_EQ(second.data()[0], std::byte{1});
  Segment third = std::move(second);
  EXPECT_EQ(third.data()[0], std::byte{1});
  EXPECT_EQ(second.data(), nullptr);
}

TEST(CachingAllocator, AlignsEverySizeAndWastesAtMostAQuarter) {
  CachingAllocator allocator;
  for (int64_t bytes = 0; bytes < 100'000; bytes += 1 + bytes / 7) {
    void* memory = allocator.Allocate(bytes);
    ASSERT_TRUE(IsAligned(memory, 64)) << bytes;
    std::memset(memory, 1, bytes);
    const int64_t used = allocator.stats().used_bytes;
    EXPECT_GE(used, bytes);
    EXPECT_LE(used, std::max<int64_t>(bytes + 64, bytes * 5 / 4 + 1)) << bytes;
    allocator.Deallocate(memory, bytes);
    ASSERT_EQ(allocator.stats().used_bytes, 0) << bytes;
  }
}

TEST(CachingAllocator, ReusesFreedBlocks) {
  CachingAllocator allocator;
  for (int64_t bytes : {1000, 5 << 20}) {
    void* first = allocator.Allocate(bytes);
    std::memset(first, 1, bytes);
    allocator.Deallocate(first, bytes);
    void* second = allocator.Allocate(bytes - 8);  // the same class
    EXPECT_EQ(first, second);
    allocator.Deallocate(second, bytes - 8);
  }
  EXPECT_EQ(allocator.stats().cache_hits, 2);
  EXPECT_EQ(allocator.stats().allocations, 4);
  EXPECT_GT(allocator.stats().cached_bytes, 5 << 20);
  allocator.ReleaseCached();
  EXPECT_EQ(allocator.stats().cached_bytes, 0);
}

TEST(CachingAllocator, KeepsItsLimitAndReleasesItsCacheFirst) {
  CachingAllocator::Options options;
  options.limit_bytes = 8192;
  CachingAllocator allocator(options);
  void* small = allocator.Allocate(4096);
  allocator.Deallocate(small, 4096);
  void* large = allocator.Allocate(8192);  // not beside the cached one
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(allocator.stats().cached_bytes, 0);
  EXPECT_EQ(allocator.Allocate(1), nullptr);
  EXPECT_EQ(allocator.Allocate(int64_t{1} << 62), nullptr);
  EXPECT_EQ(allocator.stats().peak_bytes, 8192);
  allocator.Deallocate(large, 8192);
  allocator.Deallocate(nullptr, 1);
}

TEST(CachingAllocator, KeepsNoMoreThanItsCacheLimit) {
  CachingAllocator::Options options;
  options.cache_limit_bytes = 1024;
  CachingAllocator allocator(options);
  void* a = allocator.Allocate(1024);
  void* b = allocator.Allocate(1024);
  allocator.Deallocate(a, 1024);
  allocator.Deallocate(b, 1024);
  EXPECT_EQ(allocator.stats().cached_bytes, 1024);
}

TEST(CachingAllocatorDeathTest, LeakedBlockIsFatal) {
  EXPECT_DEATH(
      {
        CachingAllocator allocator;
        allocator.Allocate(1);
      },
      "not given back");
}

TEST(CachingAllocatorStress, ThreadsDoNotShareABlock) {
  CachingAllocator::Options options;
  options.cache_limit_bytes = 64 * 1024;
  CachingAllocator allocator(options);
  auto statuses = RunRanks(4, [&](int rank) -> absl::Status {
    for (int i = 0; i < 2000; ++i) {
      const int64_t bytes = 64 + (i * 37 + rank) % 8192;
      auto* memory = static_cast<int*>(allocator.Allocate(bytes));
      for (int k = 0; k < 16; ++k) memory[k] = rank;
      if (i % 500 == 0) allocator.ReleaseCached();
      for (int k = 0; k < 16; ++k) {
        if (memory[k] != rank) return absl::InternalError("shared");
      }
      allocator.Deallocate(memory, bytes);
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(status, IsOk());
  EXPECT_EQ(allocator.stats().used_bytes, 0);
}

TEST(HostAllocator, IsOneForTheProcess) {
  void* memory = HostAllocator().Allocate(10);
  EXPECT_TRUE(IsAligned(memory, 64));
  EXPECT_GE(HostAllocator().stats().used_bytes, 10);
  HostAllocator().Deallocate(memory, 10);
}

}  // namespace
}  // namespace weft::memory
