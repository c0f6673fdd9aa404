// refill_trainer: a worker of role trainer that pushes to a large sparse table
// and says how fast: for bench/failover.py --refill, which kills a server.
//
// First it makes all rows (100 MB of them by default), then it pushes and pulls
// random ones and prints a line of JSON for each: {"step": n}.

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/time/time.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/ps/client.h"
#include "weft/ps/service.h"
#include "weft/tensor/tensor.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"
#include "weft/worker/table_client.h"
#include "weft/worker/worker.h"

namespace weft::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kDim = 64;
constexpr int64_t kFillKeys = 20'000;

absl::Status Run(int argc, char** argv) {
  worker::Options options;
  int64_t rows = 400'000;
  int64_t keys = 256;
  int64_t steps = 1'000'000;
  std::string durability = "default";
  worker::Flags flags("refill_trainer", "Pushes to a large sparse table.");
  options.AddTo(flags);
  flags.Add("rows", &rows, "of 64 floats in the table");
  flags.Add("keys", &keys, "of each push and pull");
  flags.Add("steps", &steps, "pushes");
  flags.Add("durability", &durability,
            "of the table: none (D0), applied (D1), stable (D2)");
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  WEFT_RETURN_IF_ERROR(options.Resolve());
  WEFT_ASSIGN_OR_RETURN(auto worker, worker::Worker::Start(options));
  ps::Client client(worker::TableClientOptions(*worker, kTimeout));
  ps::v1::TableSpec spec;
  spec.set_name("large");
  spec.set_mode(ps::v1::TableSpec::ASYNC);
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_dim(kDim);
  spec.set_partitions(64);
  ps::v1::TableSpec::Durability level;
  if (!ps::v1::TableSpec::Durability_Parse(absl::AsciiStrToUpper(durability),
                                           &level)) {
    return absl::InvalidArgumentError(
        "--durability=" + durability +
        ": wanted default, none, applied or stable");
  }
  spec.set_durability(level);
  spec.mutable_rule()->mutable_sgd()->set_lr(0.01);
  WEFT_ASSIGN_OR_RETURN(const auto table, client.Sparse(spec));
  for (int64_t begin = 0; begin < rows; begin += kFillKeys) {
    std::vector<int64_t> all(kFillKeys);
    for (int64_t i = 0; i < kFillKeys; ++i) all[i] = begin + i;
    WEFT_RETURN_IF_ERROR(
        table->Push(Tensor::FromVector(all), Tensor::Ones({kFillKeys, kDim}))
            .Wait(kTimeout));
  }
  std::mt19937_64 random(1);
  const Tensor ones = Tensor::Ones({keys, kDim});
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<int64_t> chosen(keys);
    for (int64_t& key : chosen) {
      key = static_cast<int64_t>(random() % static_cast<uint64_t>(rows));
    }
    const Tensor names = Tensor::FromVector(chosen);
    WEFT_RETURN_IF_ERROR(
        table->PushPull(names, ones, names).Wait(kTimeout).status());
    std::printf("{\"step\": %lld}\n", static_cast<long long>(step));
    std::fflush(stdout);
  }
  return worker->Shutdown().status();
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::ExitIfError(
      weft::CatchToStatus([&] { return weft::bench::Run(argc, argv); }));
}
