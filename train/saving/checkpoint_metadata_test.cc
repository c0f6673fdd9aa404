#include "weft/train/saving/checkpoint_metadata.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

TEST(CheckpointMetadata, CheckpointOfTheSameSettingsGivesItsPlace) {
  Settings settings = {{{"--seed", "1"}}, {{"--lr", "0.1"}}};
  const auto metadata = MetadataOf(settings, {});
  settings.common["--lr"] = "0.2";
  EXPECT_THAT(PlaceInData("c", metadata, settings),
              IsOkAndHolds(input::ShardedSampler::State().ToString()));
  // One of an earlier version has no settings.
  EXPECT_THAT(PlaceInData("c", {{kPlaceInData, "here"}}, settings),
              IsOkAndHolds("here"));
}

TEST(CheckpointMetadata, CheckpointOfOtherSettingsIsRefusedWithBothValues) {
  const auto metadata = MetadataOf({{{"--seed", "1"}}, {}}, {});
  const auto place =
      PlaceInData("dir/ckpt-1", metadata, {{{"--seed", "2"}}, {{"--lr", "1"}}});
  EXPECT_THAT(place,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "cannot go on from dir/ckpt-1: --seed is 1 there "
                       "and 2 now; give what it was saved with, or begin "
                       "anew in another --checkpoint-dir (these may "
                       "change: --lr, the number of trainers"));
  EXPECT_EQ(worker::ExitCodeFor(place.status()), worker::ExitCode::kConfig);
  EXPECT_THAT(PlaceInData("c", {}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "c was not saved by a trainer"));
}

TEST(CheckpointMetadata, BestIsTheOneOfTheHighestScore) {
  testing::TempDir dir;
  const auto directory =
      checkpoint::CheckpointDirectory::Open({dir.path(), /*keep_last=*/10})
          .value();
  Options options;
  options.keep_best = true;
  options.keep_as = "mine";
  const auto save = [&](int64_t step, std::optional<double> score,
                        bool is_last = false) {
    const std::string name =
        directory->Save(step, {}, MetadataOf({}, {}, score)).value();
    EXPECT_THAT(NameCheckpoint(*directory, name, options, score, is_last),
                IsOk());
    return name;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string first = save(1, nan);
  EXPECT_THAT(directory->Named("best"), IsOkAndHolds(first));
  const std::string second = save(2, -3.5);  // above none
  EXPECT_THAT(directory->Named("best"), IsOkAndHolds(second));
  save(3, -4);
  save(4, std::nullopt);
  save(5, nan);
  EXPECT_THAT(directory->Named("best"), IsOkAndHolds(second));
  EXPECT_THAT(directory->Named("mine"), StatusIs(absl::StatusCode::kNotFound));
  const std::string last = save(6, -1, /*is_last=*/true);
  EXPECT_THAT(directory->Named("best"), IsOkAndHolds(last));
  EXPECT_THAT(directory->Named("mine"), IsOkAndHolds(last));
}

}  // namespace
}  // namespace weft::train
