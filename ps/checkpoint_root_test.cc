#include "weft/ps/checkpoint_root.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

namespace fs = std::filesystem;

using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

class CheckpointRootTest : public ::testing::Test {
 protected:
  CheckpointRootTest() {
    fs::create_directories(Path("root/run"));
    fs::create_directories(Path("root2"));
    fs::create_directories(Path("elsewhere"));
  }
  std::string Path(const std::string& name) const { return temp_.Path(name); }

  const testing::TempDir temp_;
  const CheckpointRoot root_{Path("root")};
};

TEST_F(CheckpointRootTest, TakesItselfAndWhatIsBelow) {
  const fs::path at = fs::canonical(Path("root"));
  EXPECT_THAT(root_.Resolve(Path("root")), IsOkAndHolds(at.string()));
  EXPECT_THAT(root_.Resolve(Path("root/run/")),
              IsOkAndHolds((at / "run").string()));
  EXPECT_THAT(root_.Resolve(Path("elsewhere/../root/run")),
              IsOkAndHolds((at / "run").string()));
}

TEST_F(CheckpointRootTest, RefusesWhatIsElsewhereOrLeadsThere) {
  fs::create_directory_symlink(Path("elsewhere"), Path("root/link"));
  fs::create_directory_symlink(Path("root/link"), Path("root/run/link"));
  for (const std::string& path :
       {Path("root2"), Path("elsewhere"), Path("root/.."), Path(""),
        Path("root/../elsewhere"), Path("root/run/../../elsewhere/new"),
        Path("root/link"), Path("root/link/new"), Path("root/run/link"),
        std::string("/"), std::string("relative"), std::string(""),
        std::string("\0/x", 3), std::string(100000, 'x')}) {
    EXPECT_THAT(root_.Resolve(path),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         "is not in this server's --checkpoint-dir"))
        << path.substr(0, 200);
  }
}

TEST_F(CheckpointRootTest, MakesNoDirectory) {
  EXPECT_THAT(root_.Resolve(Path("root/new/run")),
              StatusIs(absl::StatusCode::kNotFound, "no directory"));
  EXPECT_FALSE(fs::exists(Path("root/new")));
  std::ofstream(Path("root/file")) << "x";
  EXPECT_THAT(root_.Resolve(Path("root/file")),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(CheckpointRootTest, MayBeALinkItself) {
  fs::create_directory_symlink(Path("root"), Path("link"));
  const std::string run = fs::canonical(Path("root/run")).string();
  const CheckpointRoot linked(Path("link"));
  EXPECT_THAT(linked.Resolve(Path("link/run")), IsOkAndHolds(run));
  EXPECT_THAT(linked.Resolve(Path("root/run")), IsOkAndHolds(run));
}

TEST_F(CheckpointRootTest, WithoutARootNamesTheFlag) {
  EXPECT_THAT(
      CheckpointRoot("").Resolve(Path("root")),
      StatusIs(absl::StatusCode::kFailedPrecondition, "--checkpoint-dir=DIR"));
}

}  // namespace
}  // namespace weft::ps
