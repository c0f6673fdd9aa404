#include "weft/collectives/backends/host/peer_memory.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

uint64_t AddressOf(const void* memory) {
  return reinterpret_cast<uint64_t>(memory);
}

TEST(PeerMemory, CopiesMemoryOfAnotherProcessAndFailsOnceItHasEnded) {
  std::vector<int64_t> numbers(100'000, 1);
  const pid_t child = fork();  // has them at the same address
  if (child == 0) {
    for (;;) pause();
  }
  numbers.assign(numbers.size(), 2);
  const PeerMemory peers(
      {{getpid(), PeerMemory::OwnProbe()}, {child, PeerMemory::OwnProbe()}});
  if (!peers.reads_all()) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    GTEST_SKIP() << "the kernel does not let processes read each other";
  }
  std::vector<int64_t> read(numbers.size());
  const int64_t bytes = static_cast<int64_t>(read.size()) * 8;
  auto* const to = reinterpret_cast<std::byte*>(read.data());
  ASSERT_THAT(peers.Read(1, AddressOf(numbers.data()), bytes, to), IsOk());
  EXPECT_EQ(read, std::vector<int64_t>(read.size(), 1));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_THAT(peers.Read(1, AddressOf(numbers.data()), bytes, to),
              StatusIs(absl::StatusCode::kUnavailable, "cannot be read"));
}

TEST(PeerMemory, AddressThatIsNotMappedIsAnError) {
  const PeerMemory peers({{getpid(), PeerMemory::OwnProbe()}});
  ASSERT_TRUE(peers.reads_all());
  std::byte byte;
  EXPECT_THAT(peers.Read(0, 16, 1, &byte),
              StatusIs(absl::StatusCode::kUnavailable, "cannot be read"));
}

TEST(PeerMemory, PeerWithoutTheProbeIsNotRead) {
  const uint64_t other = 7;
  EXPECT_FALSE(PeerMemory({{getpid(), AddressOf(&other)}}).reads_all());
  EXPECT_FALSE(PeerMemory({{0, PeerMemory::OwnProbe()}}).reads_all());
  EXPECT_FALSE(PeerMemory().reads_all());
}

}  // namespace
}  // namespace weft::collectives
