#include "weft/base/io/streaming_copy.h"

#include <cstddef>
#include <string>

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(StreamingCopy, CopiesExactlyTheBytesOfEachRange) {
  std::string from;
  for (int i = 0; i < 1000; ++i) from.push_back(static_cast<char>(i % 251));
  for (const size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 400}) {
    for (size_t from_at = 0; from_at < 70; ++from_at) {
      for (size_t to_at = 0; to_at < 70; ++to_at) {
        std::string to(600, '#');
        StreamingCopy(to.data() + to_at, from.data() + from_at, bytes);
        std::string wanted(600, '#');
        wanted.replace(to_at, bytes, from, from_at, bytes);
        ASSERT_EQ(to, wanted) << bytes << " bytes to " << to_at;
      }
    }
  }
}

}  // namespace
}  // namespace weft
