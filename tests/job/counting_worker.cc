// counting_worker: a trainer that counts on the servers, for logged_test.cc.
//
//   counting_worker FILE
//
// pushes 1 to each of some keys of a table of durability LOGGED, some pushes at
// a time, until FILE is there; then it compares what the table has with the
// number of pushes that were acknowledged. Each must have been. It tells every
// hundredth: "pushed N"; and at the end "counted N".

#include <cstdint>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/tensor/tensor.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/worker.h"

namespace weft::worker {
namespace {

constexpr int64_t kKeys = 100;
constexpr size_t kUnderWay = 6;
constexpr absl::Duration kLong = absl::Minutes(2);

absl::Status Run(Worker& worker, const std::string& file) {
  ps::ClientOptions options;
  options.agent = &worker.agent();
  for (int i = 0; i < worker.options().servers; ++i) {
    options.servers.push_back(absl::StrCat("ps", i));
  }
  options.rank = worker.options().rank;
  options.replicas = worker.options().replicas;
  options.timeout = kLong;
  ps::Client client(options);
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

}  // namespace
}  // namespace weft::worker

int main(int argc, char** argv) {
  auto worker = weft::worker::Worker::Start(
      weft::worker::Options::FromFlags(&argc, argv));
  weft::ExitIfError(worker);
  if (argc != 2) return 2;
  weft::ExitIfError(weft::worker::Run(**worker, argv[1]));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
