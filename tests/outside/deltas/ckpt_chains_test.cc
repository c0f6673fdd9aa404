// weft ckpt on checkpoints of what has changed: chains that are whole, broken
// in the middle, written while they are followed. What is promised is quoted
// from docs/cli.md, "weft ckpt", and docs/parameter_server.md.

#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/export/export_service.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;

constexpr absl::Duration kLong = absl::Seconds(60);
// docs/cli.md, "Exit codes".
constexpr int kUsage = 2, kConfig = 3, kBadCheckpoint = 20;
constexpr char kShard0[] = "shard-00000.safetensors";

struct Ended {
  int code = -1;
  std::string output;
};

// A table of 100 rows, whose row 0 holds `n`.
TableContent Step(int n) {
  TableContent words = Words(100);
  words.version = n;
  words.rows[WordKey(0)] = {1.0f * n, 1.0f * n};
  return words;
}

class CkptChains : public ::testing::Test {
 protected:
  std::unique_ptr<testing::Process> Start(std::vector<std::string> words) {
    words.insert(words.begin(), {testing::RunfilePath("launch/weft"), "ckpt"});
    auto process = testing::Process::Start({std::move(words), {}});
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }
  Ended Run(std::vector<std::string> words) {
    const auto process = Start(std::move(words));
    const auto code = process->Wait(kLong);
    EXPECT_THAT(code, IsOk()) << process->output();
    return {code.ok() ? *code : -1, process->output()};
  }
  // A chain of so many, whose last has Step(links).
  void SaveChain(int links) {
    names_.push_back(SaveTables(saved_, 1, {Step(1)}, 2));
    for (int n = 2; n <= links; ++n) SaveOneMore(n);
  }
  void SaveOneMore(int n) {
    names_.push_back(SaveChanges(saved_, n, {Step(n - 1)}, {Step(n)}, 2));
  }
  std::string Folder(size_t link) { return saved_ + "/" + names_[link]; }
  void Flip(const std::string& path) {
    std::string bytes = FileBytes(path);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    PutBytes(path, bytes);
  }

  testing::TempDir dir_;
  const std::string saved_ = dir_.Path("saved");
  std::vector<std::string> names_;
};

// "list shows its parent, and the rows that it has itself and that went";
// "verify goes through the chain"; "diff compares whole tables"; "merge makes
// one that has all, to the byte what a full checkpoint gives".
TEST_F(CkptChains, ChainOf65IsOneLikeAnyOther) {
  SaveChain(65);
  const std::string last = names_.back();
  const Ended list = Run({"list", saved_, "--json"});
  ASSERT_EQ(list.code, 0) << list.output;
  const json all = json::parse(list.output)["checkpoints"];
  ASSERT_EQ(all.size(), 65);
  EXPECT_EQ(all[64]["links"], 64);
  EXPECT_EQ(all[64]["parent"], names_[63]);
  EXPECT_TRUE(all[0]["parent"].is_null());
  EXPECT_TRUE(all[64]["tables"][0]["rows"].is_null()) << all[64].dump(1);
  EXPECT_EQ(all[64]["tables"][0]["own_rows"], 1);
  EXPECT_EQ(all[64]["tables"][0]["removed_rows"], 0);
  EXPECT_EQ(Run({"list", saved_}).code, 0);
  EXPECT_EQ(Run({"verify", saved_, last}).code, 0);
  const Ended difference = Run({"diff", saved_, names_[0], last, "--json"});
  ASSERT_EQ(difference.code, 0) << difference.output;
  const json table = json::parse(difference.output)["tables"][0];
  EXPECT_EQ(table["changed"], 1);
  EXPECT_EQ(table["added"], 0);
  EXPECT_EQ(table["removed"], 0);
  EXPECT_EQ(table["largest"], 64);
  const Ended merged =
      Run({"merge", saved_, "latest", "--out=" + dir_.Path("m")});
  ASSERT_EQ(merged.code, 0) << merged.output;
  const std::string full = SaveTables(dir_.Path("f"), 65, {Step(65)}, 2);
  const Ended full_merged =
      Run({"merge", dir_.Path("f"), full, "--out=" + dir_.Path("fm")});
  ASSERT_EQ(full_merged.code, 0) << full_merged.output;
  const auto shard = [&](const std::string& directory) {
    const auto opened = *checkpoint::CheckpointDirectory::Open({directory});
    return FileBytes(directory + "/" + opened->List()->back() + "/" + kShard0);
  };
  EXPECT_EQ(shard(dir_.Path("m")) == shard(dir_.Path("fm")), true);
  const Ended export_ = Run(
      {"export", saved_, last, "--table=words", "--out=" + dir_.Path("words")});
  EXPECT_EQ(export_.code, 0) << export_.output;
  // Into its own directory, and below a link of the chain.
  for (const std::string& out : {saved_, Folder(3), Folder(64) + "/x"}) {
    EXPECT_EQ(Run({"merge", saved_, last, "--out=" + out}).code, kConfig);
    EXPECT_FALSE(fs::exists(Folder(64) + "/x"));
  }
  EXPECT_EQ(Run({"verify", saved_}).code, 0);
}

// "verify [...] names each file that is damaged [...] and at the end each
// checkpoint that is whole and each that is damaged": those that need a
// damaged one are damaged as well, and it is said why.
TEST_F(CkptChains, WhatNeedsADamagedOneIsDamagedAndTheFileIsNamed) {
  SaveChain(4);
  const std::string alone = SaveTables(saved_, 9, {Step(9)}, 1);
  Flip(Folder(1) + "/" + kShard0);
  const Ended verified = Run({"verify", saved_, "--json"});
  EXPECT_EQ(verified.code, 1) << verified.output;
  const json report = json::parse(verified.output);
  EXPECT_THAT(report["whole"].get<std::vector<std::string>>(),
              ElementsAre(names_[0], alone));
  EXPECT_THAT(report["damaged"].get<std::vector<std::string>>(),
              ElementsAre(names_[1], names_[2], names_[3]));
  for (int i = 1; i <= 3; ++i) {
    EXPECT_THAT(report["checkpoints"][i]["problems"].dump(),
                HasSubstr(names_[1]))
        << i;
  }
  const Ended text = Run({"verify", saved_, names_[3]});
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.output, HasSubstr(Folder(1) + "/" + kShard0));
  EXPECT_EQ(Run({"list", saved_}).code, 0);
  EXPECT_EQ(Run({"diff", saved_, names_[0], names_[3]}).code, kBadCheckpoint);
  EXPECT_EQ(Run({"merge", saved_, names_[3], "--out=" + dir_.Path("m")}).code,
            kBadCheckpoint);
  EXPECT_EQ(Run({"export", saved_, names_[2], "--table=words",
                 "--out=" + dir_.Path("e")})
                .code,
            kBadCheckpoint);
  EXPECT_FALSE(fs::exists(dir_.Path("e")));
  EXPECT_EQ(Run({"verify", saved_, names_[0]}).code, 0);
}

// A link that is not there: what is named is the one that is missing, whatever
// is asked of the chain, and of none it is an internal error.
TEST_F(CkptChains, ParentThatIsGoneIsNamedByEachCommand) {
  SaveChain(4);
  fs::remove_all(Folder(1));
  const std::vector<std::vector<std::string>> commands = {
      {"verify", saved_, names_[3]},
      {"diff", saved_, names_[3], names_[0]},
      {"merge", saved_, names_[3], "--out=" + dir_.Path("m")},
      {"export", saved_, names_[3], "--table=words",
       "--out=" + dir_.Path("e")}};
  for (const auto& words : commands) {
    const Ended ended = Run(words);
    EXPECT_THAT(ended.output, HasSubstr(names_[1])) << words[0];
    EXPECT_THAT(ended.code, AnyOf(1, kConfig, kBadCheckpoint)) << words[0];
    EXPECT_THAT(ended.output, Not(HasSubstr("internal"))) << words[0];
  }
  EXPECT_FALSE(fs::exists(dir_.Path("e")));
  const Ended list = Run({"list", saved_, "--json"});
  EXPECT_EQ(list.code, 0);
  const json all = json::parse(list.output)["checkpoints"];
  ASSERT_EQ(all.size(), 3);
  EXPECT_EQ(all[1]["parent"], names_[1]);
  // Two names for two checkpoints the wrong way round.
  SaveTables(saved_, 20, {Step(20)}, 2);
  fs::rename(Folder(2), saved_ + "/" + names_[1]);
  EXPECT_EQ(Run({"verify", saved_, names_[3]}).code, 1);
}

// "serve has the flags of every worker"; exit codes as docs/cli.md has them.
TEST_F(CkptChains, FollowOfWhatCannotBeFollowedEndsWithTheReason) {
  const std::string listen = "--listen=unix:" + dir_.Path("s");
  const auto expect = [&](std::vector<std::string> words, int code,
                          const std::string& said) {
    words.insert(words.begin(), "serve");
    const Ended ended = Run(words);
    EXPECT_EQ(ended.code, code) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(said));
    EXPECT_THAT(ended.output, Not(HasSubstr("internal error")));
  };
  expect({"--follow=" + dir_.Path("none"), listen}, kConfig, "none");
  EXPECT_FALSE(fs::exists(dir_.Path("none")));
  fs::create_directory(dir_.Path("empty"));
  expect({"--follow=" + dir_.Path("empty"), listen}, kConfig, "empty");
  PutBytes(dir_.Path("file"), "text");
  expect({"--follow=" + dir_.Path("file"), listen}, kConfig, "file");
  SaveChain(3);
  expect({"--follow=" + saved_, "--tables=none", listen}, kConfig, "words");
  expect({"--follow=" + saved_, "--tables=words,none", listen}, kConfig,
         "none");
  expect({listen}, kUsage, "");
  expect({"--tables=words", listen}, kUsage, "");
  expect({"--follow=", listen}, kUsage, "");
  const Ended twice =
      Run({"serve", "--follow=" + saved_, "--tables=words,words", listen});
  EXPECT_THAT(twice.code, AnyOf(kUsage, kConfig)) << twice.output;
  // A table that a file has, too.
  ASSERT_EQ(Run({"export", saved_, "latest", "--table=words",
                 "--out=" + dir_.Path("words")})
                .code,
            0);
  const Ended both =
      Run({"serve", dir_.Path("words"), "--follow=" + saved_, listen});
  EXPECT_NE(both.code, 0) << both.output;
  EXPECT_THAT(both.output, HasSubstr("words"));
  Flip(Folder(0) + "/" + kShard0);
  const Ended damaged = Run({"serve", "--follow=" + saved_, listen});
  EXPECT_EQ(damaged.code, kBadCheckpoint) << damaged.output;
  EXPECT_THAT(damaged.output, HasSubstr(names_[0]));
}

// "--follow=DIR serves the newest checkpoint of a directory and takes each
// newer one in"; "One that is damaged [...] is told in the log, and the old one
// stays"; "Removed checkpoints are served as long as they are the newest".
TEST_F(CkptChains, FollowedDirectoryInWhichAllMayHappenIsServedOn) {
  SaveChain(2);
  const std::string address = "unix:" + dir_.Path("s");
  const auto process =
      Start({"serve", "--follow=" + saved_, "--listen=" + address});
  ASSERT_THAT(process->WaitForOutput("serving at ", kLong), IsOk());
  const auto client = rpc::Client::Connect(address);
  ASSERT_THAT(client, IsOk());
  const Tensor key =
      Tensor::FromVector<int64_t>({static_cast<int64_t>(WordKey(0))});
  const auto version = [&]() -> int64_t {
    const auto answer =
        rpc::Call((*client)->To(kLong), LookUp, std::string("words"), key);
    EXPECT_THAT(answer, IsOk());
    if (!answer.ok()) return -1;
    EXPECT_EQ(std::get<2>(*answer).ToVector<float>()[0], std::get<0>(*answer));
    return std::get<0>(*answer);
  };
  EXPECT_EQ(version(), 2);
  SaveOneMore(3);
  EXPECT_TRUE(Becomes([&] { return version() == 3; }));
  // One comes that is damaged: it is written elsewhere, and moved here.
  const std::string copy = dir_.Path("copy");
  fs::copy(saved_, copy, fs::copy_options::recursive);
  names_.push_back(SaveChanges(copy, 4, {Step(3)}, {Step(4)}, 2));
  Flip(copy + "/" + names_[3] + "/" + kShard0);
  fs::rename(copy + "/" + names_[3], Folder(3));
  EXPECT_TRUE(Becomes([&] {
    return process->output().find(names_[3]) != std::string::npos;
  })) << process->output();
  EXPECT_EQ(version(), 3);
  // One that has all comes, and what came before is removed.
  names_.push_back(SaveTables(saved_, 5, {Step(5)}, 1));
  EXPECT_TRUE(Becomes([&] { return version() == 5; }));
  fs::remove_all(saved_);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(version(), 5);
  SaveTables(saved_, 6, {Step(6)}, 1);
  EXPECT_THAT(version(), AnyOf(5, 6));
  process->Signal(SIGTERM);
  const auto code = process->Wait(kLong);
  ASSERT_THAT(code, IsOk());
  EXPECT_THAT(*code, AnyOf(0, 128 + SIGTERM)) << process->output();
}

}  // namespace
}  // namespace weft::ps
