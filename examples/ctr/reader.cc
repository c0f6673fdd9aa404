// reader: reads the exported tables of recommender.cc while it trains, by gRPC
// and without being a worker, and checks each answer against the ledger's rule
// (ledger.h): wholly of one version, no row torn, none that had been evicted.
//
//   weft ckpt serve --follow=saved --tables=ledger,embedding0
//     embedding1.safetensors --listen=unix:/tmp/exports.sock
//   reader unix:/tmp/exports.sock --until=250
//     --embeddings=embedding0,embedding1
// Prints what it has found as one JSON object; exit code 1 if an answer is
// wrong.

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "examples/ctr/dlrm.h"
#include "examples/ctr/ledger.h"
#include "nlohmann/json.hpp"
#include "weft/ps/export/export_service.h"
#include "weft/weft.h"

namespace {

using weft::Tensor;
namespace ledger = example::ledger;
namespace ps = weft::ps;

// Rounds of which each row is asked for, around the newest that is known; of
// those before one row is.
constexpr int64_t kBack = 2 * ledger::kIdle;
constexpr int64_t kAhead = 64;

class Reader {
 public:
  explicit Reader(weft::rpc::Client& client) : client_(client) {}

  int64_t newest() const { return newest_; }

  absl::Status ReadLedger() {
    // Which row each key stands for: its round, or none of a count.
    std::vector<int64_t> rounds, keys;
    for (int64_t i = 0; i < ledger::kRows; ++i) {
      rounds.push_back(-1);
      keys.push_back(ledger::KeyOfCount(i));
      for (int64_t round = 0; round < newest_ + kAhead; ++round) {
        if (round < newest_ - kBack && i != round % ledger::kRows) continue;
        rounds.push_back(round);
        keys.push_back(ledger::KeyOfRound(round, i));
      }
    }
    WEFT_ASSIGN_OR_RETURN(const ps::LookUpReply answer,
                          LookUp(ledger::kTable, keys));
    const auto& [version, checkpoint, rows, found] = answer;
    const std::vector<float> values = rows.ToVector<float>();
    const std::vector<uint8_t> is_there = found.ToVector<uint8_t>();
    for (size_t i = 0; i < keys.size(); ++i) {
      const int64_t wanted =
          rounds[i] < 0 ? version : ledger::Wanted(version, rounds[i]);
      Check(wanted, is_there[i] != 0, &values[i * ledger::kDim]);
      if (rounds[i] >= 0 && rounds[i] < version && wanted == 0) ++gone_;
    }
    return absl::OkStatus();
  }

  // A version must give the same answer whenever it is asked.
  absl::Status ReadEmbedding(const std::string& table) {
    std::vector<int64_t> keys;
    for (int64_t value = 0; value < 256; ++value) keys.push_back(value);
    WEFT_ASSIGN_OR_RETURN(const ps::LookUpReply answer, LookUp(table, keys));
    const auto& [version, checkpoint, rows, found] = answer;
    const auto [first, is_new] =
        embeddings_.emplace(std::make_pair(table, version), rows);
    changed_ +=
        !is_new && first->second.ToVector<float>() != rows.ToVector<float>();
    return absl::OkStatus();
  }

  // The number of errors found, of all kinds.
  int64_t wrong() const {
    return torn_ + other_version_ + missing_ + evicted_ + changed_;
  }
  void Print() const {
    const nlohmann::ordered_json line = {{"answers", answers_},
                                         {"versions", versions_.size()},
                                         {"newest", newest_},
                                         {"rows", rows_},
                                         {"gone_rows", gone_},
                                         {"torn", torn_},
                                         {"of_another_version", other_version_},
                                         {"missing", missing_},
                                         {"evicted", evicted_},
                                         {"changed", changed_}};
    std::printf("%s\n", line.dump().c_str());
  }

 private:
  absl::StatusOr<ps::LookUpReply> LookUp(const std::string& table,
                                         const std::vector<int64_t>& keys) {
    WEFT_ASSIGN_OR_RETURN(ps::LookUpReply answer,
                          weft::rpc::Call(client_.To(), ps::LookUp, table,
                                          Tensor::FromVector<int64_t>(keys)));
    const int64_t version = std::get<0>(answer);
    if (table == ledger::kTable) newest_ = version;
    versions_.insert(version);
    ++answers_;
    rows_ += static_cast<int64_t>(keys.size());
    return answer;
  }

  // A row of the ledger, which should hold `wanted`; 0: there should be none.
  void Check(int64_t wanted, bool is_there, const float* row) {
    if (!is_there || wanted == 0) {
      missing_ += wanted != 0;
      evicted_ += is_there;
      return;
    }
    bool is_even = true;
    for (int64_t c = 1; c < ledger::kDim; ++c) is_even &= row[c] == row[0];
    torn_ += !is_even;
    other_version_ += is_even && row[0] != static_cast<float>(wanted);
  }

  weft::rpc::Client& client_;
  int64_t newest_ = 0;
  std::set<int64_t> versions_;
  std::map<std::pair<std::string, int64_t>, Tensor> embeddings_;
  int64_t answers_ = 0, rows_ = 0, gone_ = 0;
  int64_t torn_ = 0, other_version_ = 0, missing_ = 0, evicted_ = 0,
          changed_ = 0;
};

absl::Status Run(int argc, char** argv) {
  int64_t until = 1;
  std::string embeddings = "embedding0";
  absl::Duration timeout = absl::Minutes(5);
  weft::worker::Flags flags("reader", "Checks exported tables.");
  flags.AllowPositional("ADDRESS", /*anywhere=*/true);
  flags.Add("until", &until, "reads until the ledger is of this version");
  flags.Add("embeddings", &embeddings, "the other tables that are read: A,B");
  flags.Add("timeout", &timeout, "after which it ends with an error");
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.positional().size() != 1) {
    return weft::worker::WithExitCode(
        absl::InvalidArgumentError("reader: wanted ADDRESS, one word"),
        weft::worker::ExitCode::kUsage);
  }
  WEFT_ASSIGN_OR_RETURN(const auto client,
                        weft::rpc::Client::Connect(flags.positional()[0]));
  Reader reader(*client);
  const absl::Time end = absl::Now() + timeout;
  WEFT_RETURN_IF_ERROR(reader.ReadLedger());  // of which version it is
  do {
    if (absl::Now() > end) {
      reader.Print();
      return absl::DeadlineExceededError(absl::StrCat(
          "reader: wanted version ", until, " of the ledger in ",
          absl::FormatDuration(timeout), ", found ", reader.newest()));
    }
    WEFT_RETURN_IF_ERROR(reader.ReadLedger());
    for (const absl::string_view table : absl::StrSplit(embeddings, ',')) {
      WEFT_RETURN_IF_ERROR(reader.ReadEmbedding(std::string(table)));
    }
    absl::SleepFor(absl::Milliseconds(50));
  } while (reader.wrong() == 0 && reader.newest() < until);
  reader.Print();
  if (reader.wrong() == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("reader: ", reader.wrong(), " rows are not as they should"));
}

}  // namespace

int main(int argc, char** argv) {
  weft::ExitIfError(weft::CatchToStatus([&] { return Run(argc, argv); }));
}
