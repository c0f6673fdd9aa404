// counting_worker: a trainer that counts on the servers, for logged_test.cc.
//
//   counting_worker FILE
//
// pushes 1 to each of some keys of a table of durability LOGGED, some pushes at
// a time, until FILE is there; then it compares what the table has with the
// number of pushes that were acknowledged. Each must have been. It tells every
// hundredth: "pushed N"; and at the end "counted N".
//
//   counting_worker FILE STALENESS
//
// counts steps, as all trainers of the job do, in a table of that staleness:
// each in a row of its own. Until FILE is there, each row that it pulls must be
// that of a worker which is ahead, or behind, by what the bound allows. It
// tells every tenth.

#include <cstdint>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/store.h"
#include "weft/tensor/tensor.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/table_client.h"
#include "weft/worker/worker.h"

namespace weft::worker {
namespace {

constexpr int64_t kKeys = 100;
constexpr size_t kUnderWay = 6;
constexpr absl::Duration kLong = absl::Minutes(2);

absl::Status Run(Worker& worker, const std::string& file) {
  ps::Client client(TableClientOptions(worker, kLong));
  ps::v1::TableSpec spec;
  spec.set_name("counts");
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_mode(ps::v1::TableSpec::ASYNC);
  spec.set_dim(1);
  spec.mutable_rule()->mutable_sgd()->set_lr(1);
  spec.set_durability(ps::v1::TableSpec::LOGGED);
  WEFT_ASSIGN_OR_RETURN(const auto table, client.Sparse(spec));
  const Tensor keys = Tensor::Arange(kKeys, DType::kI64);
  const Tensor one = Tensor::Full({kKeys, 1}, -1);
  std::deque<Future<void>> under_way;
  int64_t acknowledged = 0;
  const auto acknowledge = [&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(under_way.front().Wait(kLong));
    under_way.pop_front();
    if (++acknowledged % 100 == 0) {
      std::printf("pushed %lld\n", static_cast<long long>(acknowledged));
      std::fflush(stdout);
    }
    return absl::OkStatus();
  };
  while (!std::filesystem::exists(file)) {
    under_way.push_back(table->Push(keys, one));
    if (under_way.size() >= kUnderWay) WEFT_RETURN_IF_ERROR(acknowledge());
  }
  while (!under_way.empty()) WEFT_RETURN_IF_ERROR(acknowledge());
  WEFT_ASSIGN_OR_RETURN(const Tensor rows, table->Pull(keys).Wait(kLong));
  for (int64_t i = 0; i < kKeys; ++i) {
    if (rows.data<float>()[i] == static_cast<float>(acknowledged)) continue;
    return absl::InternalError(absl::StrCat("key ", i, ": wanted ",
                                            acknowledged, ", found ",
                                            rows.data<float>()[i]));
  }
  std::printf("counted %lld\n", static_cast<long long>(acknowledged));
  return absl::OkStatus();
}

// The steps of each worker, as far as the clocks have let them be seen.
absl::Status CheckBound(const Tensor& rows, int64_t step, int64_t staleness) {
  for (int64_t i = 0; i < rows.numel(); ++i) {
    const auto seen = static_cast<int64_t>(rows.data<float>()[i]);
    if (seen >= step - staleness && seen <= step + staleness + 1) continue;
    return absl::InternalError(absl::StrCat(
        "after step ", step, ": wanted rank ", i, " to have made ",
        step - staleness, " to ", step + staleness + 1, ", found ", seen));
  }
  return absl::OkStatus();
}

absl::Status RunSteps(Worker& worker, const std::string& file,
                      int64_t staleness) {
  ps::Client client(TableClientOptions(worker, kLong));
  ps::v1::TableSpec spec;
  spec.set_name("steps");
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_mode(ps::v1::TableSpec::ASYNC);
  spec.set_dim(1);
  spec.mutable_rule()->mutable_sgd()->set_lr(1);
  spec.set_durability(ps::v1::TableSpec::LOGGED);
  spec.set_staleness(staleness);
  WEFT_ASSIGN_OR_RETURN(const auto table, client.Sparse(spec));
  // Who opens it later than another steps begins at the lowest clock.
  rendezvous::Store& store = worker.membership().store();
  const auto key = [](int rank) { return absl::StrCat("open/", rank); };
  WEFT_RETURN_IF_ERROR(
      store.Set(key(worker.options().rank), "", kLong).status());
  for (int rank = 0; rank < worker.options().trainers; ++rank) {
    WEFT_RETURN_IF_ERROR(store.Wait(key(rank), 0, kLong).status());
  }
  const Tensor all = Tensor::Arange(worker.options().trainers, DType::kI64);
  const Tensor mine = Tensor::FromVector<int64_t>({worker.options().rank});
  const Tensor one = Tensor::Full({1, 1}, -1);
  int64_t step = 0;
  // Who sees the file leaves, and then the others may pass it by.
  while (!std::filesystem::exists(file)) {
    WEFT_ASSIGN_OR_RETURN(const Tensor rows,
                          table->PushPull(mine, one, all).Wait(kLong));
    ++step;
    if (std::filesystem::exists(file)) break;
    WEFT_RETURN_IF_ERROR(CheckBound(rows, step, staleness));
    if (step % 10 != 0 || worker.options().rank != 0) continue;
    std::printf("pushed %lld\n", static_cast<long long>(step));
    std::fflush(stdout);
  }
  WEFT_RETURN_IF_ERROR(table->LeaveClock().Wait(kLong));
  WEFT_ASSIGN_OR_RETURN(const Tensor row, table->Pull(mine).Wait(kLong));
  if (row.data<float>()[0] != static_cast<float>(step)) {
    return absl::InternalError(
        absl::StrCat("wanted ", step, " steps, found ", row.data<float>()[0]));
  }
  std::printf("counted %lld\n", static_cast<long long>(step));
  return absl::OkStatus();
}

}  // namespace
}  // namespace weft::worker

int main(int argc, char** argv) {
  auto worker = weft::worker::Worker::Start(
      weft::worker::Options::FromFlags(&argc, argv));
  weft::ExitIfError(worker);
  int64_t staleness = 0;
  if (argc != 2 && (argc != 3 || !absl::SimpleAtoi(argv[2], &staleness))) {
    return 2;
  }
  weft::ExitIfError(argc == 2
                        ? weft::worker::Run(**worker, argv[1])
                        : weft::worker::RunSteps(**worker, argv[1], staleness));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
