#include "weft/net/edge/socket_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "weft/net/edge/descriptor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::net {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class SocketFileTest : public ::testing::Test {
 protected:
  // A bound socket; listening if it is a stream.
  Descriptor Bind(int type) {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    strncpy(name.sun_path, path_.c_str(), sizeof name.sun_path - 1);
    Descriptor fd(socket(AF_UNIX, type, 0));
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name),
              0);
    if (type == SOCK_STREAM) {
      EXPECT_EQ(listen(fd.get(), 1), 0);
    }
    return fd;
  }
  bool Exists() const { return FileIdOf(path_).has_value(); }

  testing::TempDir dir_;
  const std::string path_ = dir_.Path("s");
};

TEST_F(SocketFileTest, NothingThereIsOk) {
  EXPECT_THAT(RemoveAbandonedSocket(path_, SOCK_STREAM), IsOk());
}

TEST_F(SocketFileTest, AbandonedSocketIsRemoved) {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    { const Descriptor dead = Bind(type); }
    ASSERT_TRUE(Exists());
    EXPECT_THAT(RemoveAbandonedSocket(path_, type), IsOk());
    EXPECT_FALSE(Exists());
  }
}

TEST_F(SocketFileTest, SocketInUseStays) {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    const Descriptor alive = Bind(type);
    EXPECT_THAT(
        RemoveAbandonedSocket(path_, type),
        StatusIs(absl::StatusCode::kUnavailable, "in use by another process"));
    EXPECT_TRUE(Exists());
    unlink(path_.c_str());
  }
}

TEST_F(SocketFileTest, SocketOfAnotherTypeStays) {
  const Descriptor alive = Bind(SOCK_DGRAM);
  EXPECT_THAT(RemoveAbandonedSocket(path_, SOCK_STREAM),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       "a socket of another type is there"));
  EXPECT_TRUE(Exists());
}

TEST_F(SocketFileTest, RegularFileStaysAndIsNamed) {
  std::ofstream(path_) << "thesis";
  EXPECT_THAT(RemoveAbandonedSocket(path_, SOCK_STREAM),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       "a regular file of 6 bytes is there, which is not "
                       "replaced: move it, or choose another path"));
  EXPECT_TRUE(Exists());
}

TEST_F(SocketFileTest, OtherFilesStay) {
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  EXPECT_THAT(
      RemoveAbandonedSocket(path_, SOCK_STREAM),
      StatusIs(absl::StatusCode::kAlreadyExists, "a directory is there"));
  const std::string link = dir_.Path("link");
  {
    ASSERT_EQ(rmdir(path_.c_str()), 0);
    const Descriptor dead = Bind(SOCK_STREAM);
    ASSERT_EQ(symlink(path_.c_str(), link.c_str()), 0);
  }
  EXPECT_THAT(
      RemoveAbandonedSocket(link, SOCK_STREAM),
      StatusIs(absl::StatusCode::kAlreadyExists, "a symbolic link is there"));
  EXPECT_TRUE(FileIdOf(link).has_value());
  EXPECT_TRUE(Exists());
}

TEST_F(SocketFileTest, RemoveSocketTakesAnySocketAndNoOtherFile) {
  const Descriptor alive = Bind(SOCK_STREAM);
  RemoveSocket(path_);
  EXPECT_FALSE(Exists());
  RemoveSocket(path_);
  std::ofstream(path_) << "thesis";
  RemoveSocket(path_);
  EXPECT_TRUE(Exists());
}

TEST_F(SocketFileTest, RemoveIfSameKeepsAnotherFile) {
  const Descriptor socket = Bind(SOCK_STREAM);
  const std::optional<FileId> made = FileIdOf(path_);
  unlink(path_.c_str());
  const std::string other = dir_.Path("other");  // so that the inode differs
  std::ofstream(other) << "thesis";
  std::ofstream(path_) << "thesis";
  RemoveIfSame(path_, FileIdOf(other));
  EXPECT_TRUE(Exists());
  RemoveIfSame(path_, std::nullopt);
  EXPECT_TRUE(Exists());
  RemoveIfSame(path_, FileIdOf(path_));
  EXPECT_FALSE(Exists());
  EXPECT_TRUE(made.has_value());
}

}  // namespace
}  // namespace weft::net
