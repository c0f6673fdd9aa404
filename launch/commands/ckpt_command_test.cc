// weft ckpt as a process, and what an rpc::Client reads from weft ckpt serve.

#include <signal.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/tls/credentials.h"
#include "weft/ps/export/export_service.h"
#include "weft/ps/export/export_table.h"
#include "weft/ps/export/exported_table.h"
#include "weft/ps/export/saved_checkpoint.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int kUsage = 2;
constexpr int kConfig = 3;
constexpr int kBadCheckpoint = 20;

using Words = std::vector<std::string>;

std::unique_ptr<testing::Process> Start(Words words) {
  words.insert(words.begin(), {testing::RunfilePath("launch/weft"), "ckpt"});
  auto process = testing::Process::Start({std::move(words), {}});
  EXPECT_THAT(process, IsOk());
  return *std::move(process);
}

struct Ended {
  int code = -1;
  std::string output;
};

Ended Ckpt(Words words) {
  const auto process = Start(std::move(words));
  const auto code = process->Wait(kLong);
  EXPECT_THAT(code, IsOk());
  return {code.ok() ? *code : -1, process->output()};
}

class CkptCommand : public ::testing::Test {
 protected:
  std::string Save(const std::vector<ps::TableContent>& tables,
                   int servers = 2) {
    return ps::SaveTables(saved_, ++step_, tables, servers);
  }
  // Flips a bit of a file of a checkpoint; returns its path.
  std::string Damage(const std::string& name, const std::string& file) {
    const std::string path = absl::StrCat(saved_, "/", name, "/", file);
    std::string bytes = ps::FileBytes(path);
    bytes.back() ^= 1;
    ps::PutBytes(path, bytes);
    return path;
  }

  testing::TempDir dir_;
  const std::string saved_ = dir_.Path("saved");
  int step_ = 0;
};

TEST_F(CkptCommand, ListShowsTablesOfEachCheckpoint) {
  const std::string first = Save({ps::Words(10)});
  const std::string second = Save({ps::Words(20), ps::Vector(5000)});
  const Ended text = Ckpt({"list", saved_});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.output,
              AllOf(HasSubstr(first + "  step 1, 3 files, "),
                    HasSubstr("  words  sparse dim 2, 20 rows, rule adagrad, "
                              "version 9\n"),
                    HasSubstr("  vector  dense elements 5000, 5 rows, rule "
                              "sgd, version 3\n")));
  const Ended ended = Ckpt({"list", saved_, "--json"});
  const json all = json::parse(ended.output)["checkpoints"];
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1]["name"], second);
  EXPECT_EQ(all[1]["tables"].size(), 2u);
  EXPECT_EQ(all[1]["files"].size(), 5u);
  const Ended none = Ckpt({"list", dir_.Path("none")});
  EXPECT_EQ(none.code, kConfig);
  EXPECT_THAT(none.output, HasSubstr(dir_.Path("none")));
}

TEST_F(CkptCommand, VerifyFindsAFlippedBitAndNamesTheFile) {
  const std::string first = Save({ps::Words(10)});
  const std::string second = Save({ps::Words(10), ps::Vector(5000)});
  const Ended whole = Ckpt({"verify", saved_});
  EXPECT_EQ(whole.code, 0) << whole.output;
  EXPECT_THAT(whole.output, HasSubstr(absl::StrCat("2 whole: ", first, ", ",
                                                   second, "\n0 damaged\n")));
  // A server's, and the model of a trainer.
  for (const char* file :
       {"shard-00003.safetensors", "shard-99999.safetensors"}) {
    const std::string path = Damage(second, file);
    const Ended damaged = Ckpt({"verify", saved_, "latest"});
    EXPECT_EQ(damaged.code, 1);
    EXPECT_THAT(damaged.output,
                AllOf(HasSubstr("DAMAGED: " + path), HasSubstr("has SHA-256 "),
                      HasSubstr("wanted ")));
    EXPECT_EQ(Ckpt({"verify", saved_, first}).code, 0);
    EXPECT_EQ(Ckpt({"verify", saved_, "--json"}).code, 1);
    Damage(second, file);  // back
  }
  EXPECT_EQ(Ckpt({"verify", saved_, "none"}).code, kConfig);
}

// "Damaged" is no kind of "verified": who reads the last lines alone must see
// which may be restored.
TEST_F(CkptCommand, VerifyTellsByNameWhichAreWholeAndWhichAreDamaged) {
  const std::string first = Save({ps::Words(10)});
  const std::string second = Save({ps::Words(10)});
  const std::string third = Save({ps::Words(10)});
  Damage(first, "shard-00001.safetensors");
  Damage(third, "manifest.json");
  const Ended text = Ckpt({"verify", saved_});
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.output, HasSubstr(absl::StrCat("\n1 whole: ", second,
                                                  "\n2 damaged: ", first, ", ",
                                                  third, "\n")));
  EXPECT_THAT(text.output, Not(HasSubstr("verified")));
  const Ended ended = Ckpt({"verify", saved_, "--json"});
  EXPECT_EQ(ended.code, 1);
  const json all = json::parse(ended.output);
  EXPECT_EQ(all["whole"], json::array({second}));
  EXPECT_EQ(all["damaged"], json::array({first, third}));
  ASSERT_EQ(all["checkpoints"].size(), 3u);
  EXPECT_EQ(all["checkpoints"][0]["damaged"], true);
  EXPECT_EQ(all["checkpoints"][1]["damaged"], false);
  EXPECT_EQ(Ckpt({"verify", saved_, second}).code, 0);
  const Ended one = Ckpt({"verify", saved_, first});
  EXPECT_EQ(one.code, 1);
  EXPECT_THAT(one.output, HasSubstr("0 whole\n1 damaged: " + first + "\n"));
}

TEST_F(CkptCommand, ListShowsADamagedManifestAsDamagedAndOfNoStep) {
  const std::string first = Save({ps::Words(10)});
  const std::string second = Save({ps::Words(10)});
  const std::string path = Damage(second, "manifest.json");
  const Ended text = Ckpt({"list", saved_});
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_THAT(text.output, AllOf(HasSubstr(first + "  step 1, 3 files, "),
                                 HasSubstr(second +
                                           "  damaged, its manifest cannot be "
                                           "read\n  DAMAGED: " +
                                           path),
                                 Not(HasSubstr("step 0"))));
  const Ended ended = Ckpt({"list", saved_, "--json"});
  EXPECT_EQ(ended.code, 0) << ended.output;
  const json all = json::parse(ended.output)["checkpoints"];
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["damaged"], false);
  EXPECT_EQ(all[0]["step"], 1);
  EXPECT_EQ(all[1]["name"], second);
  EXPECT_EQ(all[1]["damaged"], true);
  EXPECT_TRUE(all[1]["step"].is_null()) << all[1];
  EXPECT_TRUE(all[1]["bytes"].is_null()) << all[1];
  ASSERT_EQ(all[1]["problems"].size(), 1u);
  EXPECT_THAT(all[1]["problems"][0].get<std::string>(), HasSubstr(path));
}

TEST_F(CkptCommand, DiffCountsRowsAndElements) {
  ps::TableContent words = ps::Words(12);
  ps::TableContent vector = ps::Vector(5000);
  const std::string a = Save({ps::Words(10), vector});
  words.rows.erase(ps::WordKey(3));
  words.rows[ps::WordKey(4)][0] += 2;
  vector.rows[0][7] += 0.5f;
  Save({words, vector});
  const Ended ended = Ckpt({"diff", saved_, a, "latest", "--json"});
  ASSERT_EQ(ended.code, 0) << ended.output;
  const json difference = json::parse(ended.output);
  EXPECT_EQ(difference["equal"], false);
  const json& of_vector = difference["tables"][0];
  EXPECT_EQ(of_vector["elements_changed"], 1);
  EXPECT_EQ(of_vector["largest"], 0.5);
  const json& of_words = difference["tables"][1];
  EXPECT_EQ(of_words["added"], 2);
  EXPECT_EQ(of_words["removed"], 1);
  EXPECT_EQ(of_words["changed"], 1);
  EXPECT_EQ(of_words["largest"], 2);
  EXPECT_EQ(of_words["largest_key"], ps::WordKey(4));
  const Ended text = Ckpt({"diff", saved_, a, "latest"});
  EXPECT_THAT(text.output, HasSubstr("2 added, 1 removed, 1 changed in 1 "
                                     "elements, largest difference 2.0"));
  EXPECT_THAT(Ckpt({"diff", saved_, a, a}).output,
              HasSubstr("they are equal\n"));
}

TEST_F(CkptCommand, MergeAndExportWriteWhatTheOthersRead) {
  const std::string name = Save({ps::Words(50), ps::Vector(5)}, 3);
  const Ended merged =
      Ckpt({"merge", saved_, name, "--out=" + dir_.Path("merged")});
  EXPECT_EQ(merged.code, 0) << merged.output;
  EXPECT_THAT(merged.output, HasSubstr(dir_.Path("merged/ckpt-000001-step-1")));
  const Ended verified = Ckpt({"verify", dir_.Path("merged")});
  EXPECT_EQ(verified.code, 0) << verified.output;
  EXPECT_THAT(verified.output, HasSubstr("step 1, 3 files"));
  const std::string out = dir_.Path("words.safetensors");
  const Ended exported = Ckpt({"export", dir_.Path("merged"), "latest",
                               "--table=words", "--out=" + out});
  EXPECT_EQ(exported.code, 0) << exported.output;
  EXPECT_THAT(exported.output, HasSubstr("50 rows of dim 2, version 9, from"));
  EXPECT_THAT(ps::ExportedTable::Open(out), IsOk());
  EXPECT_EQ(Ckpt({"export", saved_, name, "--table=no", "--out=" + out}).code,
            kConfig);
  const Ended into =
      Ckpt({"merge", saved_, name, absl::StrCat("--out=", saved_, "/", name)});
  EXPECT_EQ(into.code, kConfig);
  EXPECT_THAT(into.output,
              AllOf(HasSubstr(saved_ + "/" + name), HasSubstr("--out")));
  EXPECT_EQ(Ckpt({"verify", saved_}).code, 0);
  const std::string path = Damage(name, "shard-00000.safetensors");
  const Ended refused =
      Ckpt({"merge", saved_, name, "--out=" + dir_.Path("merged")});
  EXPECT_EQ(refused.code, kBadCheckpoint);
  EXPECT_THAT(refused.output, HasSubstr(path));
  // That file is of `words` alone.
  EXPECT_EQ(
      Ckpt({"export", saved_, name, "--table=vector", "--out=" + out}).code, 0);
  EXPECT_EQ(
      Ckpt({"export", saved_, name, "--table=words", "--out=" + out}).code,
      kBadCheckpoint);
}

TEST_F(CkptCommand, CommandLinesThatMakeNoSenseAreUsageErrors) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{}, "wanted list, verify"},
      {{"list"}, "weft ckpt list: wanted DIR"},
      {{"verify", "a", "b", "c"}, "wanted DIR [NAME]"},
      {{"diff", "a", "b"}, "wanted DIR A B"},
      {{"merge", "a", "b"}, "wanted --out=DIR"},
      {{"export", "a", "b", "--out=c"}, "--table=T --out=FILE"},
      {{"serve", "--listen=unix:/tmp/x"}, "wanted FILE..."},
      {{"serve", "f"}, "wanted --listen"},
      {{"serve", "f", "--tables=a", "--listen=unix:/tmp/x"},
       "wanted no --tables"},
      {{"serve", "f", "--listen=unix:/tmp/x", "--rank=1"}, "wanted no --rank"},
  };
  for (const auto& [words, wanted] : cases) {
    const Ended ended = Ckpt(words);
    EXPECT_EQ(ended.code, kUsage) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(wanted));
  }
}

// The second checkpoint has only what has changed since the first; each verb
// still shows the whole table.
TEST_F(CkptCommand, ChainIsListedVerifiedComparedMergedAndExported) {
  const std::vector<ps::TableContent> before = {ps::Words(50)};
  std::vector<ps::TableContent> after = before;
  after[0].rows.erase(ps::WordKey(3));
  after[0].rows[ps::WordKey(4)] = {8, 8};
  after[0].rows[ps::WordKey(99)] = {9, 9};
  const std::string first = Save(before);
  const std::string second = ps::SaveChanges(saved_, 2, before, after, 2);
  const Ended listed = Ckpt({"list", saved_});
  EXPECT_THAT(listed.output,
              AllOf(HasSubstr(", changes since " + first + "\n"),
                    HasSubstr("2 rows saved here, 1 gone, rule adagrad")));
  const json all = json::parse(Ckpt({"list", saved_, "--json"}).output);
  EXPECT_EQ(all["checkpoints"][1]["parent"], first);
  EXPECT_EQ(all["checkpoints"][1]["links"], 1);
  EXPECT_TRUE(all["checkpoints"][0]["parent"].is_null());
  EXPECT_LT(all["checkpoints"][1]["bytes"], all["checkpoints"][0]["bytes"]);

  const Ended verified = Ckpt({"verify", saved_});
  EXPECT_EQ(verified.code, 0);
  EXPECT_THAT(verified.output,
              AllOf(HasSubstr("50 rows, 2 of them saved here, 1 gone"),
                    HasSubstr("2 whole: ")));
  const json difference =
      json::parse(Ckpt({"diff", saved_, first, second, "--json"}).output);
  EXPECT_EQ(difference["tables"][0]["added"], 1);
  EXPECT_EQ(difference["tables"][0]["removed"], 1);
  EXPECT_EQ(difference["tables"][0]["changed"], 1);

  const Ended merged =
      Ckpt({"merge", saved_, "latest", "--out=" + dir_.Path("merged")});
  ASSERT_EQ(merged.code, 0) << merged.output;
  const Ended exported = Ckpt({"export", saved_, "latest", "--table=words",
                               "--out=" + dir_.Path("words")});
  EXPECT_THAT(exported.output, HasSubstr("50 rows of dim 2"));

  const std::string path = Damage(first, "shard-00000.safetensors");
  for (const Words& words :
       {Words{"verify", saved_, second}, Words{"diff", saved_, first, second},
        Words{"merge", saved_, second, "--out=" + dir_.Path("other")},
        Words{"export", saved_, second, "--table=words",
              "--out=" + dir_.Path("words")}}) {
    const Ended damaged = Ckpt(words);
    EXPECT_NE(damaged.code, 0);
    EXPECT_THAT(damaged.output, HasSubstr(path));
  }
  EXPECT_THAT(Ckpt({"verify", saved_}).output,
              HasSubstr("2 damaged: " + first + ", " + second));
  std::filesystem::remove_all(saved_ + "/" + first);
  EXPECT_THAT(Ckpt({"verify", saved_}).output,
              AllOf(HasSubstr(first + ", which is missing"),
                    HasSubstr("1 damaged: " + second)));
}

// A process that serves words.safetensors, all of whose weights are the
// table's version.
class CkptServe : public CkptCommand {
 protected:
  void Export(int64_t version) {
    ps::TableContent words = ps::Words(kRows);
    words.version = version;
    for (auto& [key, row] : words.rows) row = {1.0f * version, 1.0f * version};
    const auto saved = ps::SavedCheckpoint::Open(saved_, Save({words}));
    ASSERT_THAT(saved, IsOk());
    ASSERT_THAT(ps::ExportTable(**saved, "words", file_), IsOk());
  }
  void Serve() {
    process_ = Start({"serve", file_, "--listen=" + address_});
    ASSERT_THAT(process_->WaitForOutput("serving at ", kLong), IsOk());
  }
  std::unique_ptr<rpc::Client> Connect() {
    auto client = rpc::Client::Connect(address_);
    EXPECT_THAT(client, IsOk());
    return *std::move(client);
  }

  static constexpr int kRows = 400;
  const std::string file_ = dir_.Path("words.safetensors");
  const std::string address_ = "unix:" + dir_.Path("serve.sock");
  std::unique_ptr<testing::Process> process_;
};

TEST_F(CkptServe, AClientLooksRowsUp) {
  Export(3);
  Serve();
  const auto client = Connect();
  const auto described = rpc::Call(client->To(kLong), ps::DescribeExports);
  ASSERT_THAT(described, IsOk());
  ASSERT_EQ(described->size(), 1u);
  EXPECT_EQ(std::get<0>((*described)[0]), "words");
  EXPECT_EQ(std::get<3>((*described)[0]), kRows);
  const Tensor keys = Tensor::FromVector<int64_t>(
      {static_cast<int64_t>(ps::WordKey(5)), 12345});
  const auto rows =
      rpc::Call(client->To(kLong), ps::LookUp, std::string("words"), keys);
  ASSERT_THAT(rows, IsOk());
  const auto& [version, checkpoint, values, found] = *rows;
  EXPECT_EQ(version, 3);
  EXPECT_EQ(checkpoint, "ckpt-000001-step-1");
  EXPECT_EQ(values.ToVector<float>()[0], 3);
  EXPECT_EQ(found.ToVector<uint8_t>(), (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(values.ToVector<float>()[2],
            ps::FirstWeights(ps::WordsSpec(), 12345)[0]);
  EXPECT_THAT(
      rpc::Call(client->To(kLong), ps::LookUp, std::string("none"), keys),
      StatusIs(absl::StatusCode::kNotFound, "there are words"));
  EXPECT_THAT(rpc::Call(client->To(kLong), ps::LookUp, std::string("words"),
                        Tensor::Zeros({2})),
              StatusIs(absl::StatusCode::kInvalidArgument, "wanted keys i64"));
  EXPECT_THAT(rpc::Call(client->To(kLong), ps::LookUp, std::string("words"),
                        Tensor::Zeros({8'000'000}, DType::kI64)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "ask for them in several"));
  process_->Signal(SIGTERM);
  EXPECT_THAT(process_->Wait(kLong), IsOkAndHolds(0)) << process_->output();
}

TEST_F(CkptServe, EachAnswerIsOfOneFileWhileTheFileIsReplaced) {
  Export(1);
  Serve();
  std::vector<int64_t> all;
  for (int i = 0; i < kRows; ++i) {
    all.push_back(static_cast<int64_t>(ps::WordKey(i)));
  }
  const Tensor keys = Tensor::FromVector(all);
  std::atomic<int64_t> newest{1};
  std::atomic<bool> is_over{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      const auto client = Connect();
      int64_t before = 0;
      while (!is_over) {
        const auto rows = rpc::Call(client->To(kLong), ps::LookUp,
                                    std::string("words"), keys);
        ASSERT_THAT(rows, IsOk());
        const int64_t version = std::get<0>(*rows);
        for (const float v : std::get<2>(*rows).ToVector<float>()) {
          ASSERT_EQ(v, version);
        }
        ASSERT_GE(version, before);
        before = version;
        if (version > newest) newest = version;
      }
    });
  }
  for (int version = 2; version < 5; ++version) {
    Export(version);
    EXPECT_TRUE(testing::Becomes([&] { return newest == version; }))
        << process_->output();
  }
  // What is none changes nothing, and is told.
  ps::PutBytes(dir_.Path("broken"), "nonsense");
  std::filesystem::rename(dir_.Path("broken"), file_);
  EXPECT_THAT(process_->WaitForOutput("is served on", kLong), IsOk());
  EXPECT_EQ(newest, 4);
  is_over = true;
  for (std::thread& reader : readers) reader.join();
}

// Rows of which (i + version) % 4 is 0 are not there.
TEST_F(CkptServe, EachAnswerIsOfOneCheckpointWhileDeltasAreTakenIn) {
  const auto words = [](int64_t version) {
    ps::TableContent table = ps::Words(0);
    table.version = version;
    for (int i = 0; i < kRows; ++i) {
      if ((i + version) % 4 == 0) continue;
      table.rows[ps::WordKey(i)] = {1.0f * version, 1.0f * version};
    }
    return table;
  };
  Save({words(1)});
  process_ = Start({"serve", "--follow=" + saved_, "--tables=words",
                    "--listen=" + address_});
  ASSERT_THAT(process_->WaitForOutput("serving at ", kLong), IsOk());
  std::vector<int64_t> all;
  for (int i = 0; i < kRows; ++i) {
    all.push_back(static_cast<int64_t>(ps::WordKey(i)));
  }
  const Tensor keys = Tensor::FromVector(all);
  const auto client = Connect();
  for (int64_t version = 1; version < 5; ++version) {
    if (version > 1) {
      ps::SaveChanges(saved_, version, {words(version - 1)}, {words(version)},
                      2);
    }
    int64_t seen = 0;
    EXPECT_TRUE(testing::Becomes([&] {
      const auto rows =
          rpc::Call(client->To(kLong), ps::LookUp, std::string("words"), keys);
      EXPECT_THAT(rows, IsOk());
      if (!rows.ok()) return true;
      seen = std::get<0>(*rows);
      const std::vector<float> values = std::get<2>(*rows).ToVector<float>();
      const std::vector<uint8_t> found = std::get<3>(*rows).ToVector<uint8_t>();
      for (int i = 0; i < kRows; ++i) {
        EXPECT_EQ(found[i] != 0, (i + seen) % 4 != 0);
        if (found[i] != 0) {
          EXPECT_EQ(values[2 * i], seen);
        }
      }
      return seen == version || HasFailure();
    })) << process_->output();
    EXPECT_EQ(seen, version);
  }
  process_->Signal(SIGTERM);
  EXPECT_THAT(process_->Wait(kLong), IsOkAndHolds(0)) << process_->output();
}

TEST_F(CkptServe, ADamagedFileIsRefusedAtTheStart) {
  Export(1);
  std::string bytes = ps::FileBytes(file_);
  bytes.back() ^= 1;
  ps::PutBytes(file_, bytes);
  const Ended ended = Ckpt({"serve", file_, "--listen=" + address_});
  EXPECT_EQ(ended.code, kBadCheckpoint);
  EXPECT_THAT(ended.output, AllOf(HasSubstr(file_), HasSubstr("XXH3")));
  EXPECT_EQ(Ckpt({"serve", dir_.Path("none"), "--listen=" + address_}).code,
            kConfig);
}

TEST_F(CkptServe, ATableInAFileAndInTheFollowedDirectoryIsRefusedWithBoth) {
  Export(1);
  const Ended ended =
      Ckpt({"serve", file_, "--follow=" + saved_, "--listen=" + address_});
  EXPECT_EQ(ended.code, kUsage);
  EXPECT_THAT(ended.output,
              HasSubstr("table 'words' is in " + file_ + " and in " + saved_));
  EXPECT_THAT(ended.output, HasSubstr("wanted it from one place"));
}

// With a certificate of role client, which a server of tables would refuse.
TEST_F(CkptServe, OverTcpAClientShowsItsCertificate) {
  Export(1);
  const std::string certs = dir_.Path("certs");
  auto made = testing::Process::Start(
      {{testing::RunfilePath("launch/weft"), "certs", "init", "--dir=" + certs,
        "--job=demo", "--servers=1", "--trainers=0", "--clients=1"},
       {}});
  ASSERT_THAT(made, IsOk());
  ASSERT_THAT((*made)->Wait(kLong), IsOkAndHolds(0)) << (*made)->output();
  process_ = Start({"serve", file_, "--listen=127.0.0.1:0", "--job=demo",
                    "--certs=" + certs});
  ASSERT_THAT(process_->WaitForOutput("serving at ", kLong), IsOk());
  std::string address;
  EXPECT_TRUE(testing::Becomes([&] {
    const std::string output = process_->output();
    const size_t begin = output.find("serving at ") + 11;
    const size_t end = output.find('\n', begin);
    if (end != output.npos) address = output.substr(begin, end - begin);
    return end != output.npos;
  }));
  rpc::ClientOptions options;
  auto credentials = net::Credentials::ForMember(certs, "client0");
  ASSERT_THAT(credentials, IsOk());
  options.credentials = *std::move(credentials);
  options.worker = "ps0";
  options.job = "demo";
  const auto client = rpc::Client::Connect(address, options);
  ASSERT_THAT(client, IsOk());
  EXPECT_THAT(rpc::Call((*client)->To(kLong), ps::LookUp, std::string("words"),
                        Tensor::FromVector<int64_t>({1})),
              IsOk());
  EXPECT_THAT(rpc::Client::Connect(address), Not(IsOk()));
}

}  // namespace
}  // namespace weft::launch
