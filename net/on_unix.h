// OnUnix: a test of endpoints at unix sockets.

#ifndef WEFT_NET_ON_UNIX_H_
#define WEFT_NET_ON_UNIX_H_

#include <string>

#include "gtest/gtest.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::net {

class OnUnix : public ::testing::Test {
 protected:
  std::string Socket(const std::string& name = "s") {
    return "unix:" + dir_.Path(name);
  }

  testing::TempDir dir_;
};

}  // namespace weft::net

#endif  // WEFT_NET_ON_UNIX_H_
