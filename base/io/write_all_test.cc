#include "weft/base/io/write_all.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(WriteAll, GoesOnUntilAReaderHasTakenAll) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  std::string bytes(1 << 20, '\0');  // more than a pipe holds
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  std::string read_bytes;
  std::thread reader([&, fd = ends[0]] {
    char part[4093];
    ssize_t n;
    while ((n = read(fd, part, sizeof(part))) > 0) read_bytes.append(part, n);
  });
  EXPECT_EQ(WriteAll(ends[1], bytes), 0);
  close(ends[1]);
  reader.join();
  close(ends[0]);
  EXPECT_TRUE(read_bytes == bytes);
}

TEST(WriteAll, ReturnsTheErrorOfAFullDiskAndOfAFullPipe) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  EXPECT_EQ(WriteAll(full, "x"), ENOSPC);
  EXPECT_EQ(WriteAll(full, ""), 0);
  close(full);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  EXPECT_EQ(WriteAll(ends[1], std::string(1 << 20, 'x')), EAGAIN);
  close(ends[0]);
  close(ends[1]);
}

TEST(WriteAll, NothingNeedsNoDescriptor) {
  EXPECT_EQ(WriteAll(-1, ""), 0);
  EXPECT_EQ(WriteAll(-1, "x"), EBADF);
}

}  // namespace
}  // namespace weft
