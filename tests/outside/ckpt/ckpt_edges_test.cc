// weft ckpt and exported tables in clumsy hands: directories that hold no
// checkpoint, files that are links, pipes or missing, names that are paths or
// control characters, tables without rows, files that are replaced. What is
// promised is quoted from the headers of ps/export and docs/cli.md.

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/export/difference.h"
#include "weft/ps/export/export_service.h"
#include "weft/ps/export/export_table.h"
#include "weft/ps/export/exported_table.h"
#include "weft/ps/export/merge.h"
#include "weft/ps/export/saved_checkpoint.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/ps/export/served_exports.h"
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
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);
// docs/cli.md, "Exit codes".
constexpr int kUsage = 2, kConfig = 3, kBadCheckpoint = 20;

using Words_ = std::vector<std::string>;

struct Ended {
  int code = -1;
  std::string output;
};

class Ckpt : public ::testing::Test {
 protected:
  std::unique_ptr<testing::Process> Start(Words_ words) {
    words.insert(words.begin(), {testing::RunfilePath("launch/weft"), "ckpt"});
    auto process = testing::Process::Start({std::move(words), {}});
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }
  Ended Run(Words_ words) {
    const auto process = Start(std::move(words));
    const auto code = process->Wait(kLong);
    EXPECT_THAT(code, IsOk()) << process->output();
    return {code.ok() ? *code : -1, process->output()};
  }
  std::string Save(const std::vector<TableContent>& tables, int servers = 2) {
    return SaveTables(saved_, ++step_, tables, servers);
  }
  std::string Shard(const std::string& name, int number) {
    return absl::StrCat(saved_, "/", name, "/", checkpoint::ShardName(number));
  }
  void ExportTo(const std::string& path, const TableContent& table) {
    const auto saved = SavedCheckpoint::Open(saved_, Save({table}));
    ASSERT_THAT(saved, IsOk());
    ASSERT_THAT(ExportTable(**saved, table.spec.name(), path), IsOk());
  }

  testing::TempDir dir_;
  const std::string saved_ = dir_.Path("saved");
  int step_ = 0;
};

TableContent Weighing(int64_t version, int rows = 100) {
  TableContent words = Words(rows);
  words.version = version;
  for (auto& [key, row] : words.rows) row = {1.0f * version, 1.0f * version};
  return words;
}

// --- What is no checkpoint ---------------------------------------------------

// checkpoint_directory.h: "A directory without a manifest is no checkpoint."
// saved_checkpoint.h: "kNotFound if it is not there; nothing is made."
TEST_F(Ckpt, DirectoriesThatHoldNoneAreSaidAndNothingIsMade) {
  fs::create_directories(dir_.Path("empty"));
  fs::create_directories(dir_.Path("others/ckpt-000001-step-1"));
  fs::create_directories(dir_.Path("others/ckpt-x"));
  fs::create_directories(dir_.Path("others/tmp-000002-3-abc"));
  PutBytes(dir_.Path("others/LATEST"), "ckpt-000001-step-1\n");
  PutBytes(dir_.Path("others/NAME-best"), "../../../../etc");
  PutBytes(dir_.Path("others/NAME-own"), "ckpt-000001-step-1");
  PutBytes(dir_.Path("file"), "text");
  for (const std::string place : {"empty", "others"}) {
    const std::string path = dir_.Path(place);
    const Ended list = Run({"list", path});
    EXPECT_THAT(list.code, AnyOf(0, kConfig)) << list.output;
    EXPECT_THAT(list.output, Not(HasSubstr("internal error")));
    const Ended all = Run({"list", path, "--json"});
    if (all.code == 0) {
      EXPECT_THAT(json::parse(all.output)["checkpoints"], IsEmpty());
    }
    for (const std::string name : {"latest", "best", "own", "ckpt-x",
                                   "ckpt-000001-step-1", "", ".", "..", "/"}) {
      const Ended ended = Run({"verify", path, name});
      EXPECT_EQ(ended.code, kConfig) << name << ": " << ended.output;
    }
  }
  for (const std::string place : {"file", "none", "file/below"}) {
    for (const std::string word : {"list", "verify"}) {
      const Ended ended = Run({word, dir_.Path(place)});
      EXPECT_EQ(ended.code, kConfig) << place << ": " << ended.output;
      EXPECT_THAT(ended.output, HasSubstr(dir_.Path(place)));
    }
  }
  EXPECT_FALSE(fs::exists(dir_.Path("none")));
  EXPECT_EQ(fs::exists(dir_.Path("empty/LATEST")), false);
}

// "exit code 0 if all are whole, 1 if not": what a job that saves meanwhile has
// removed, as --keep says, is no damaged one; nor does it make another out of
// `latest`.
TEST_F(Ckpt, CheckpointsThatAreRemovedMeanwhileAreNotDamaged) {
  std::atomic<bool> ends{false};
  const auto directory = checkpoint::CheckpointDirectory::Open({saved_, 1});
  ASSERT_THAT(directory, IsOk());
  const checkpoint::NamedTensors tensors = {{"w", Tensor::Ones({8})}};
  const auto save = [&] {
    EXPECT_THAT((*directory)->Save(++step_, tensors, {}), IsOk());
  };
  save();
  std::thread saves([&] {
    while (!ends) save();
  });
  for (int i = 0; i < 20; ++i) {
    for (const Words_& words :
         {Words_{"verify", saved_}, Words_{"verify", saved_, "latest"},
          Words_{"list", saved_}, Words_{"diff", saved_, "latest", "latest"}}) {
      const Ended ended = Run(words);
      EXPECT_THAT(ended.code, AnyOf(0, kConfig)) << words[0] << ended.output;
      EXPECT_THAT(ended.output, Not(HasSubstr("DAMAGED"))) << words[0];
      if (ended.code == kConfig) {
        EXPECT_THAT(ended.output, HasSubstr("removed")) << words[0];
      }
    }
  }
  ends = true;
  saves.join();
}

// saved_checkpoint.h: "kNotFound". What a user types is shown without what
// would change the terminal, and leads nowhere else.
TEST_F(Ckpt, NamesThatAreNoneAreNotFoundAndPrintedWithoutControlCharacters) {
  const std::string name = Save({Words(3)});
  const std::vector<std::string> names = {
      "\x1b[2J",          "a\nb",      "\xff\xfe", std::string(5000, 'x'),
      "../saved/" + name, "./" + name, name + "/", name + "/../" + name,
      " " + name};
  for (const std::string& each : names) {
    EXPECT_THAT(SavedCheckpoint::Resolve(saved_, each).status(),
                StatusIs(absl::StatusCode::kNotFound))
        << each;
  }
  for (size_t i = 0; i < 3; ++i) {
    for (const Words_& words :
         {Words_{"verify", saved_, names[i]},
          Words_{"diff", saved_, name, names[i]},
          Words_{"merge", saved_, names[i], "--out=" + dir_.Path("m")},
          Words_{"export", saved_, name, "--table=" + names[i],
                 "--out=" + dir_.Path("e")}}) {
      const Ended ended = Run(words);
      EXPECT_EQ(ended.code, kConfig) << words[0] << ended.output;
      EXPECT_THAT(ended.output, Not(HasSubstr("\x1b"))) << words[0];
      EXPECT_THAT(ended.output, Not(HasSubstr("\xff"))) << words[0];
    }
  }
  EXPECT_FALSE(fs::exists(dir_.Path("e")));
}

// A directory's name may have any character.
TEST_F(Ckpt, DirectoriesOfAnyNameAreRead) {
  const std::string name = Save({Words(3)});
  for (const std::string odd :
       {"with space", "quote'\"", "line\nbreak", "\x1b[2J", "-dash", "ünï"}) {
    const std::string path = dir_.Path(odd);
    fs::rename(saved_, path);
    const Ended verified = Run({"verify", path, "latest"});
    EXPECT_EQ(verified.code, 0) << odd << verified.output;
    EXPECT_THAT(verified.output, Not(HasSubstr("\x1b")));
    const Ended all = Run({"verify", path, "--json"});
    EXPECT_EQ(all.code, 0) << odd;
    EXPECT_FALSE(json::parse(all.output, nullptr, false).is_discarded())
        << all.output;
    fs::rename(path, saved_);
  }
}

// saved_checkpoint.h: "`problems` gets what is wrong, each with the path";
// mapped_file.h: "Links are followed. kNotFound [...], and kInvalidArgument for
// what is no regular file; all name the path."
TEST_F(Ckpt, FilesThatAreMissingLinksPipesOrDirectoriesAreToldApart) {
  const std::string name = Save({Words(10)});
  const std::string path = Shard(name, 1);
  const std::string aside = dir_.Path("aside");
  fs::rename(path, aside);
  const auto verify = [&] { return Run({"verify", saved_, name}); };
  const auto expect_damage = [&](const std::string& what) {
    const Ended ended = verify();
    EXPECT_EQ(ended.code, 1) << what << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("DAMAGED: ")) << what;
    EXPECT_THAT(ended.output, HasSubstr(path)) << what;
    EXPECT_EQ(Run({"export", saved_, name, "--table=words",
                   "--out=" + dir_.Path("e")})
                  .code,
              kBadCheckpoint)
        << what;
  };
  expect_damage("missing");
  fs::create_symlink(dir_.Path("nowhere"), path);
  expect_damage("a link to nothing");
  fs::remove(path);
  fs::create_symlink(path, path);
  expect_damage("a link to itself");
  fs::remove(path);
  fs::create_directory(path);
  expect_damage("a directory");
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  expect_damage("a pipe");
  fs::remove(path);
  fs::create_symlink("/dev/zero", path);
  expect_damage("a device");
  fs::remove(path);
  PutBytes(path, "");
  expect_damage("an empty file");
  fs::remove(path);
  fs::create_symlink(aside, path);
  EXPECT_EQ(verify().code, 0) << "a link to the file";
  // What is there beside is none of it.
  PutBytes(saved_ + "/" + name + "/shard-00077.safetensors", "nonsense");
  PutBytes(saved_ + "/" + name + "/notes.txt", "nonsense");
  EXPECT_EQ(verify().code, 0) << verify().output;
  PutBytes(saved_ + "/" + name + "/manifest.json", "");
  EXPECT_EQ(verify().code, 1) << verify().output;
  EXPECT_EQ(Run({"list", saved_}).code, 0);
}

// "kInvalidArgument for what is no regular file" of the files of a checkpoint.
TEST_F(Ckpt, ManifestsAndLabelsThatArePipesAreSaid) {
  const std::string name = Save({Words(3)});
  ASSERT_EQ(mkfifo((saved_ + "/NAME-best").c_str(), 0600), 0);
  EXPECT_EQ(Run({"verify", saved_, "best"}).code, kConfig);
  const std::string manifest = saved_ + "/" + name + "/manifest.json";
  fs::remove(manifest);
  ASSERT_EQ(mkfifo(manifest.c_str(), 0600), 0);
  EXPECT_EQ(Run({"verify", saved_}).code, 1);
  EXPECT_EQ(Run({"list", saved_}).code, 0);
}

// --- Differences -------------------------------------------------------------

// difference.h: "elements that are not equal to the bit. A difference to or
// from a value that is not finite is infinite."
TEST_F(Ckpt, DifferencesOfWhatIsNotFiniteAreInfiniteAndOfZerosNone) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  TableContent a = Vector(8), b = Vector(8);
  a.rows[0] = {0.0f, nan, nan, 1, INFINITY, INFINITY, 3e38f, 5};
  b.rows[0] = {-0.0f, nan, 1, nan, INFINITY, -INFINITY, -3e38f, 5};
  const std::string first = Save({a}), second = Save({b});
  const auto saved_a = SavedCheckpoint::Open(saved_, first);
  const auto saved_b = SavedCheckpoint::Open(saved_, second);
  ASSERT_THAT(saved_a, IsOk());
  ASSERT_THAT(saved_b, IsOk());
  const auto difference = DifferenceBetween(**saved_a, **saved_b);
  ASSERT_THAT(difference, IsOk());
  EXPECT_EQ(difference->tables[0].weights.elements, 5);
  EXPECT_EQ(difference->tables[0].weights.largest, INFINITY);
  const Ended ended = Run({"diff", saved_, first, second, "--json"});
  EXPECT_EQ(json::parse(ended.output)["tables"][0]["largest"], "inf");
  // Zeros of either sign differ, by nothing.
  a.rows[0] = std::vector<float>(8, 0.0f);
  b.rows[0] = std::vector<float>(8, -0.0f);
  const Ended zeros = Run({"diff", saved_, Save({a}), Save({b}), "--json"});
  const json table = json::parse(zeros.output)["tables"][0];
  EXPECT_EQ(table["elements_changed"], 8);
  EXPECT_EQ(table["largest"], 0);
}

TEST_F(Ckpt, TablesWithoutRowsDifferMergeAndVerify) {
  const std::string none = Save({Words(0)}), some = Save({Words(5)});
  const Ended ended = Run({"diff", saved_, none, some, "--json"});
  ASSERT_EQ(ended.code, 0) << ended.output;
  const json table = json::parse(ended.output)["tables"][0];
  EXPECT_EQ(table["added"], 5);
  EXPECT_EQ(table["removed"], 0);
  EXPECT_EQ(Run({"merge", saved_, none, "--out=" + dir_.Path("m")}).code, 0);
  const Ended verified = Run({"verify", dir_.Path("m")});
  EXPECT_EQ(verified.code, 0) << verified.output;
}

// --- Merge -------------------------------------------------------------------

// merge.h: "kInvalidArgument  `to` is where `from` is": by any of its names.
TEST_F(Ckpt, MergeIntoItsOwnDirectoryIsRefusedByAnyNameOfIt) {
  const std::string name = Save({Words(10)});
  fs::create_directory_symlink(saved_, dir_.Path("link"));
  for (const std::string& to :
       {saved_, saved_ + "/", saved_ + "/.", dir_.Path("saved/../saved"),
        dir_.Path("link"), dir_.Path("link/"), saved_ + "/" + name + "/.."}) {
    const auto saved = SavedCheckpoint::Open(saved_, name);
    ASSERT_THAT(saved, IsOk());
    EXPECT_THAT(Merge(**saved, to).status(),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << to;
  }
  EXPECT_THAT(SavedCheckpoint::List(saved_).value(), ElementsAre(name));
}

// "which is made if it is not there"; twice gives two; a file is no directory.
TEST_F(Ckpt, MergeTwiceGivesTwoAndAFileIsNoDirectory) {
  const std::string name = Save({Words(10), Vector(5)}, 3);
  const std::string to = dir_.Path("merged");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Run({"merge", saved_, name, "--out=" + to}).code, 0);
  }
  const auto names = SavedCheckpoint::List(to);
  ASSERT_THAT(names, IsOk());
  EXPECT_THAT(*names, SizeIs(2));
  const auto a = SavedCheckpoint::Open(saved_, name);
  const auto b = SavedCheckpoint::Open(to, names->back());
  ASSERT_THAT(b, IsOk());
  EXPECT_TRUE(DifferenceBetween(**a, **b)->IsNone());
  PutBytes(dir_.Path("file"), "text");
  const Ended file = Run({"merge", saved_, name, "--out=" + dir_.Path("file")});
  EXPECT_EQ(file.code, kConfig) << file.output;
  EXPECT_EQ(FileBytes(dir_.Path("file")), "text");
  const Ended below = Run({"merge", saved_, name, "--out=/proc/none/x"});
  EXPECT_THAT(below.code, AnyOf(kConfig, kUsage)) << below.output;
}

// --- Exports -----------------------------------------------------------------

// exported_table.h: "one that is not there has the values that the initializer
// gives it, as on a server; beyond the end of a dense table 0. Keys may come in
// any order and twice. Returns how many were found."
TEST_F(Ckpt, ExportsWithoutRowsAndDenseOnesAreLookedUp) {
  ExportTo(dir_.Path("words"), Words(0));
  auto words = ExportedTable::Open(dir_.Path("words"));
  ASSERT_THAT(words, IsOk());
  EXPECT_EQ((*words)->rows(), 0);
  const std::vector<uint64_t> keys = {5, 0, ~uint64_t{0}, 5, uint64_t{1} << 63};
  std::vector<float> values(10, 7);
  std::vector<uint8_t> found(5, 9);
  EXPECT_EQ((*words)
                ->LookUp(keys, absl::MakeSpan(values), absl::MakeSpan(found))
                .value(),
            0);
  EXPECT_THAT(found, Each(0));
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(values[2 * i], FirstWeights(WordsSpec(), keys[i])[0]);
  }
  EXPECT_EQ((*words)->LookUp({}, {}, {}).value(), 0);
  ExportTo(dir_.Path("vector"), Vector(5000));
  auto vector = ExportedTable::Open(dir_.Path("vector"));
  ASSERT_THAT(vector, IsOk());
  EXPECT_EQ((*vector)->rows(), 5000);
  const std::vector<uint64_t> places = {4999, 5000, 0, ~uint64_t{0}, 4999};
  values.assign(5, 7);
  EXPECT_EQ((*vector)
                ->LookUp(places, absl::MakeSpan(values), absl::MakeSpan(found))
                .value(),
            3);
  EXPECT_THAT(values, ElementsAre(4999, 0, 0, 0, 4999));
  EXPECT_THAT(found, ElementsAre(1, 0, 1, 0, 1));
}

// export_table.h: "kNotFound  [...] no directory for the file"; "After an error
// `path` is as it was."
TEST_F(Ckpt, ExportToWhatIsNoFileLeavesItAlone) {
  const std::string name = Save({Words(10)});
  fs::create_directories(dir_.Path("folder/inner"));
  const auto export_to = [&](const std::string& out) {
    return Run(
        {"export", saved_, name, "--table=words", "--out=" + dir_.Path(out)});
  };
  EXPECT_NE(export_to("folder").code, 0);
  EXPECT_TRUE(fs::is_directory(dir_.Path("folder/inner")));
  EXPECT_EQ(export_to("none/file").code, kConfig);
  EXPECT_NE(export_to("folder/").code, 0);
  // Nothing but what was there is left behind.
  int entries = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir_.path())) {
    entries += entry.path().string().find("/saved") == std::string::npos;
  }
  EXPECT_EQ(entries, 2);
}

// merge.h refuses "where `from` is: the servers write there"; an export may
// not write over the checkpoint that it reads either.
TEST_F(Ckpt, ExportOntoAFileOfItsCheckpointIsRefused) {
  const std::string name = Save({Words(10)});
  for (const std::string& out :
       {Shard(name, 0), saved_ + "/" + name + "/manifest.json"}) {
    EXPECT_NE(
        Run({"export", saved_, name, "--table=words", "--out=" + out}).code, 0);
    EXPECT_EQ(Run({"verify", saved_}).code, 0);
  }
}

// served_exports.h: "each replaced once another file has been renamed onto its
// own"; mapped_file.h: "Links are followed": so a link that is moved to another
// file is another file; one that goes leaves the old one.
TEST_F(Ckpt, LinkThatIsMovedIsAnotherFile) {
  ExportTo(dir_.Path("one"), Weighing(1));
  ExportTo(dir_.Path("two"), Weighing(2));
  const std::string link = dir_.Path("link");
  fs::create_symlink(dir_.Path("one"), link);
  const auto served = ServedExports::Open({link});
  ASSERT_THAT(served, IsOk());
  const auto old = (*served)->Find("words");
  ASSERT_THAT(old, IsOk());
  EXPECT_EQ((*old)->version(), 1);
  fs::create_symlink(dir_.Path("two"), dir_.Path("next"));
  fs::rename(dir_.Path("next"), link);
  EXPECT_THAT((*served)->Poll(), SizeIs(1));
  EXPECT_EQ((*(*served)->Find("words"))->version(), 2);
  fs::remove(link);
  (void)(*served)->Poll();
  EXPECT_EQ((*(*served)->Find("words"))->version(), 2);
  fs::create_directory(link);
  (void)(*served)->Poll();
  EXPECT_EQ((*(*served)->Find("words"))->version(), 2);
  fs::remove(link);
  fs::rename(dir_.Path("one"), link);
  EXPECT_THAT((*served)->Poll(), SizeIs(1));
  EXPECT_EQ((*(*served)->Find("words"))->version(), 1);
  // "kAlreadyExists if a table is in two": also in one file given twice.
  EXPECT_THAT(ServedExports::Open({link, dir_.Path("two")}).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, "words"));
  EXPECT_THAT(ServedExports::Open({link, link}).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, "words"));
}

// export_service.h: "kInvalidArgument  keys of another dtype or shape"; no keys
// are keys.
TEST_F(Ckpt, ServerAnswersOddKeysAndGoesOn) {
  const std::string file = dir_.Path("with space");
  ExportTo(file, Weighing(4));
  const std::string address = "unix:" + dir_.Path("s");
  const auto process = Start({"serve", file, "--listen=" + address});
  ASSERT_THAT(process->WaitForOutput("serving at ", kLong), IsOk());
  const auto client = rpc::Client::Connect(address);
  ASSERT_THAT(client, IsOk());
  const auto look_up = [&](const std::string& table, const Tensor& keys) {
    return rpc::Call((*client)->To(kLong), LookUp, table, keys);
  };
  const auto none = look_up("words", Tensor::Zeros({0}, DType::kI64));
  ASSERT_THAT(none, IsOk());
  EXPECT_EQ(std::get<2>(*none).shape(), (Shape{0, 2}));
  for (const Shape& shape : {Shape{}, Shape{1, 1}, Shape{0, 3}}) {
    EXPECT_THAT(look_up("words", Tensor::Zeros(shape, DType::kI64)),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(look_up("words", Tensor()), Not(IsOk()));
  EXPECT_THAT(look_up("\x1b[2J\xff", Tensor::Zeros({1}, DType::kI64)),
              Not(IsOk()));
  EXPECT_THAT(look_up("", Tensor::Zeros({1}, DType::kI64)),
              StatusIs(absl::StatusCode::kNotFound, "words"));
  const auto one = look_up(
      "words", Tensor::FromVector<int64_t>({static_cast<int64_t>(WordKey(1))}));
  ASSERT_THAT(one, IsOk());
  EXPECT_EQ(std::get<0>(*one), 4);
  // A second server at the same place says so, and the first goes on.
  const Ended second = Run({"serve", file, "--listen=" + address});
  EXPECT_EQ(second.code, kConfig) << second.output;
  EXPECT_THAT(look_up("words", Tensor::Zeros({1}, DType::kI64)), IsOk());
  EXPECT_THAT(process->output(), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace weft::ps
