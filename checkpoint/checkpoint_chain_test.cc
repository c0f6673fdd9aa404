// Checkpoints that hold what has changed since another one.

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/manifest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

class Chain : public ::testing::Test {
 protected:
  void Open(int keep_last, int64_t keep_every_steps = 0) {
    CheckpointDirectory::Options options;
    options.path = dir_.path();
    options.keep_last = keep_last;
    options.keep_every_steps = keep_every_steps;
    directory_ = *CheckpointDirectory::Open(options);
  }
  void SetUp() override { Open(CheckpointDirectory::Options::kKeepAll); }

  // A file for each writer; those of `parent` are deltas.
  absl::StatusOr<std::string> Save(const std::optional<Parent>& parent,
                                   bool is_delta, int64_t step = 1) {
    const auto attempt = directory_->Begin(step);
    if (!attempt.ok()) return attempt.status();
    std::vector<FileRecord> files;
    for (int shard = 0; shard < 2; ++shard) {
      Safetensors content;
      content.tensors["t"] = Tensor::Full({2}, 1.0f * ++written_);
      auto record = directory_->AddShard(*attempt, shard, "ps0", content);
      if (!record.ok()) return record.status();
      record->is_delta = is_delta && shard == 1;
      files.push_back(*record);
    }
    return directory_->Commit(*attempt, files, {}, parent);
  }
  // What has changed since the newest, if there is one to be the parent.
  std::string SaveNext(int full_every = 100, int64_t step = 1) {
    const auto parent = directory_->FindParent(full_every);
    EXPECT_THAT(parent, IsOk());
    const auto name = Save(*parent, parent->has_value(), step);
    EXPECT_THAT(name, IsOk());
    return name.value_or("");
  }
  std::vector<std::string> NamesOf(const std::string& name) {
    const auto chain = directory_->Chain(name);
    EXPECT_THAT(chain, IsOk());
    std::vector<std::string> names;
    if (!chain.ok()) return names;
    for (const auto& link : *chain) names.push_back(link.name);
    return names;
  }
  std::string PathOf(const std::string& name, const std::string& file) {
    return dir_.Path(absl::StrCat(name, "/", file));
  }
  std::string Bytes(const std::string& path) {
    return *LocalFiles().Read(path, 1 << 20);
  }
  void Put(const std::string& path, const std::string& bytes) {
    EXPECT_THAT(LocalFiles().Remove(path), IsOk());
    auto file = *LocalFiles().Create(path);
    EXPECT_THAT(file->Append(bytes), IsOk());
  }
  std::vector<std::string> FilesOf(const std::string& name) {
    return *LocalFiles().List(dir_.Path(name));
  }
  std::vector<std::string> Names() { return *directory_->List(); }
  void Remove(const std::string& name) {
    for (const std::string& file : FilesOf(name)) {
      EXPECT_THAT(LocalFiles().Remove(PathOf(name, file)), IsOk());
    }
    EXPECT_THAT(LocalFiles().Remove(dir_.Path(name)), IsOk());
  }

  const TempDir dir_;
  std::unique_ptr<CheckpointDirectory> directory_;
  int written_ = 0;
};

TEST_F(Chain, EndsAtAFullCheckpointAndEachNthIsFull) {
  EXPECT_EQ(*directory_->FindParent(3), std::nullopt);
  std::vector<std::string> names;
  for (int i = 0; i < 7; ++i) names.push_back(SaveNext(3));
  EXPECT_THAT(NamesOf(names[0]), ElementsAre(names[0]));
  EXPECT_THAT(NamesOf(names[2]), ElementsAre(names[2], names[1], names[0]));
  EXPECT_THAT(NamesOf(names[3]), ElementsAre(names[3]));
  EXPECT_THAT(NamesOf(names[5]), ElementsAre(names[5], names[4], names[3]));
  EXPECT_EQ(directory_->ReadManifest(names[5])->links, 2);
  for (const std::string& name : names) {
    EXPECT_THAT(directory_->Verify(name), IsOk());
  }
  EXPECT_EQ(*directory_->FindParent(1), std::nullopt) << "each holds all";
  EXPECT_THAT(directory_->Load(names[5]),
              StatusIs(absl::StatusCode::kFailedPrecondition, names[4]));
}

TEST_F(Chain, CheckpointWithoutDeltasHasNoParent) {
  const std::string first = SaveNext();
  const auto parent = *directory_->FindParent(9);
  const auto second = Save(parent, /*is_delta=*/false);
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(NamesOf(*second), ElementsAre(*second));
  EXPECT_THAT(Save(std::nullopt, /*is_delta=*/true),
              StatusIs(absl::StatusCode::kInvalidArgument, "no parent"));
}

TEST_F(Chain, ParentThatIsGoneIsToldBeforeTheCheckpointIsThere) {
  const std::string first = SaveNext();
  const auto parent = *directory_->FindParent(9);
  Remove(first);
  EXPECT_THAT(Save(parent, true),
              StatusIs(absl::StatusCode::kFailedPrecondition, first));
  // Another one of that name.
  const auto attempt = directory_->Begin(1);
  ASSERT_THAT(attempt, IsOk());
  Parent other = *parent;
  other.name = "ckpt-000099-step-1";
  EXPECT_THAT(directory_->Commit(*attempt, {}, {}, other), IsOk());
  EXPECT_THAT(Save(other, true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "no name of a checkpoint of a smaller number"));
}

TEST_F(Chain, LinkThatIsMissingDamagedOrAnotherOneIsNamed) {
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) names.push_back(SaveNext());
  const std::string manifest = PathOf(names[1], "manifest.json");
  const std::string good = Bytes(manifest);
  const auto broken = [&](const char* why) {
    EXPECT_THAT(directory_->Chain(names[3]),
                StatusIs(absl::StatusCode::kDataLoss, why));
    EXPECT_THAT(directory_->Verify(names[3]),
                StatusIs(absl::StatusCode::kDataLoss, names[1]));
    EXPECT_THAT(directory_->Verify(names[2]),
                StatusIs(absl::StatusCode::kDataLoss, names[1]));
    EXPECT_THAT(directory_->Verify(names[0]), IsOk());
    EXPECT_EQ(*directory_->FindParent(9), std::nullopt) << "all is saved next";
  };
  for (size_t at = 0; at < good.size(); ++at) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    Put(manifest, damaged);
    EXPECT_THAT(directory_->Chain(names[3]),
                StatusIs(absl::StatusCode::kDataLoss, names[1]))
        << at;
    Put(manifest, good.substr(0, at));
    EXPECT_THAT(directory_->Chain(names[3]),
                StatusIs(absl::StatusCode::kDataLoss, names[1]))
        << at;
  }
  broken("which is damaged");
  // Whole, but not the one since which the next has what has changed.
  Manifest other = *ParseManifest(good, "");
  other.step = 77;
  Put(manifest, *FormatManifest(other));
  broken("which is another one");
  Put(manifest, good);
  EXPECT_THAT(directory_->Verify(names[3]), IsOk());
  Remove(names[1]);
  broken("which is missing");
}

TEST_F(Chain, FlippedBitOfAnyFileIsFound) {
  std::vector<std::string> names;
  for (int i = 0; i < 3; ++i) names.push_back(SaveNext());
  for (const std::string& name : names) {
    for (const std::string& file : FilesOf(name)) {
      const std::string path = PathOf(name, file);
      const std::string good = Bytes(path);
      for (size_t at = 0; at < good.size(); at += 7) {
        std::string damaged = good;
        damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
        Put(path, damaged);
        EXPECT_THAT(directory_->Verify(names[2]),
                    StatusIs(absl::StatusCode::kDataLoss, name))
            << file << " " << at;
        Put(path, good.substr(0, at));
        EXPECT_THAT(directory_->Verify(names[2]),
                    StatusIs(absl::StatusCode::kDataLoss, name))
            << file << " cut to " << at;
      }
      Put(path, good);
    }
  }
  EXPECT_THAT(directory_->Verify(names[2]), IsOk());
}

TEST_F(Chain, ThatLeadsBackToItselfIsRefused) {
  const std::string first = SaveNext();
  const std::string second = SaveNext();
  Manifest manifest = *directory_->ReadManifest(second);
  for (const std::string& name :
       {second, std::string("ckpt-000009-step-1"), std::string("../elsewhere"),
        std::string("ckpt-1-step-1")}) {
    manifest.parent->name = name;
    Put(PathOf(second, "manifest.json"), *FormatManifest(manifest));
    EXPECT_THAT(directory_->Chain(second),
                StatusIs(absl::StatusCode::kDataLoss, "can come before it"))
        << name;
  }
}

TEST_F(Chain, ManifestWhoseFilesAndParentDoNotFitIsRefused) {
  const std::string first = SaveNext();
  const Manifest good = *directory_->ReadManifest(SaveNext());
  for (const auto& change : std::vector<void (*)(Manifest&)>{
           [](Manifest& m) { m.parent = std::nullopt; },
           [](Manifest& m) { m.files[1].is_delta = false; },
           [](Manifest& m) { m.links = 0; },
           [](Manifest& m) { m.parent->links = kMaxLinks, m.links = 1001; },
           [](Manifest& m) { m.parent->checksum = "1234"; },
           [](Manifest& m) { m.parent->name.clear(); }}) {
    Manifest damaged = good;
    change(damaged);
    EXPECT_THAT(FormatManifest(damaged),
                StatusIs(absl::StatusCode::kInvalidArgument, "parent"));
  }
}

TEST_F(Chain, CheckpointOfAnOlderBuildIsNoParent) {
  const std::string first = SaveNext();
  Manifest manifest = *directory_->ReadManifest(first);
  manifest.attempt.clear();
  Put(PathOf(first, "manifest.json"), *FormatManifest(manifest));
  ASSERT_THAT(directory_->Verify(first), IsOk());
  EXPECT_EQ(*directory_->FindParent(9), std::nullopt);
}

// Whatever is kept, and for whatever reason, what it needs is there.
TEST_F(Chain, CheckpointsThatAKeptOneNeedsAreKept) {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    for (const std::string& name : Names()) Remove(name);
    EXPECT_THAT(LocalFiles().Remove(dir_.Path("NAME-best")), IsOk());
    const int keep_last = 1 + static_cast<int>(random() % 4);
    Open(keep_last, random() % 2 == 0 ? 0 : 7);
    const int full_every = 1 + static_cast<int>(random() % 6);
    for (int i = 0; i < 20; ++i) {
      const std::string name = SaveNext(random() % 5 == 0 ? 1 : full_every, i);
      if (random() % 6 == 0) {
        ASSERT_THAT(directory_->SetName("best", name), IsOk());
      }
      const std::vector<std::string> names = Names();
      for (const std::string& there : names) {
        ASSERT_THAT(directory_->Verify(there), IsOk());
      }
      // The last ones, what they need, those of a name and of steps 0, 7, 14.
      ASSERT_LE(static_cast<int>(names.size()), keep_last + 5 * full_every);
    }
  }
}

TEST_F(Chain, DamagedCheckpointDoesNotCountAsKept) {
  Open(2);
  const std::string first = SaveNext(1);
  const std::string second = SaveNext(1);
  const std::string third = SaveNext();  // since the second
  ASSERT_THAT(Names(), ElementsAre(second, third));
  Put(PathOf(second, "shard-00000.safetensors"), "short");
  const std::string fourth = SaveNext();
  EXPECT_THAT(NamesOf(fourth), ElementsAre(fourth)) << "all was saved";
  // Neither the second nor the third is good: both stay until there are two.
  EXPECT_THAT(Names(), ElementsAre(second, third, fourth));
  const std::string fifth = SaveNext();
  EXPECT_THAT(Names(), ElementsAre(fourth, fifth));
}

}  // namespace
}  // namespace weft::checkpoint
