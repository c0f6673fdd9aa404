#include "weft/collectives/algorithms/piece_reader.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace weft::collectives {
namespace {

// Messages of random sizes, from every alignment, cut at random places.
TEST(PieceReader, PiecesOfAnyCutAreTheMessageInAlignedWholeItems) {
  std::mt19937 random(1);
  for (const int64_t item : {1, 2, 4, 8}) {
    for (int round = 0; round < 200; ++round) {
      const int64_t items = random() % 8000;
      const int64_t lead = random() % 8;  // before the message: its alignment
      std::vector<std::byte> memory(lead + items * item);
      for (std::byte& b : memory) b = static_cast<std::byte>(random());
      const auto message = absl::MakeConstSpan(memory).subspan(lead);

      std::vector<std::byte> taken;
      const auto take = [&](int64_t offset, absl::Span<const std::byte> piece) {
        EXPECT_EQ(offset, static_cast<int64_t>(taken.size()));
        EXPECT_GT(piece.size(), 0u);
        EXPECT_EQ(piece.size() % item, 0u);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(piece.data()) % item, 0u);
        taken.insert(taken.end(), piece.begin(), piece.end());
      };
      PieceReader reader(item, take);
      for (size_t at = 0; at < message.size();) {
        const size_t most = random() % 3 == 0 ? 5 : 20000;
        const size_t n =
            std::min<size_t>(random() % (most + 1), message.size() - at);
        reader.Feed(message.subspan(at, n));
        at += n;
        ASSERT_EQ(reader.fed(), static_cast<int64_t>(at));
      }
      ASSERT_EQ(taken.size(), message.size());
      if (!taken.empty()) {
        EXPECT_EQ(memcmp(taken.data(), message.data(), taken.size()), 0);
      }
    }
  }
}

}  // namespace
}  // namespace weft::collectives
