#include "weft/tests/support/temp_dir.h"

#include <stdlib.h>

#include <filesystem>
#include <system_error>

#include "weft/base/check.h"

namespace weft::testing {

// Under /tmp rather than Bazel's folder for the test: that one's path is too
// long for the address of a unix socket, which has 107 characters.
TempDir::TempDir() : path_("/tmp/weft-XXXXXX") {
  WEFT_CHECK(mkdtemp(path_.data()) != nullptr) << path_;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace weft::testing
