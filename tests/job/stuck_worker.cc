// stuck_worker: a rank of a job that gets stuck in one way or another, for
// stuck_test.cc. All trainers do all-reduces together; trainer1 then
//
//   stuck_worker sleep FILE   sleeps in its own code
//   stuck_worker spin FILE    computes in its own code
//   stuck_worker order FILE   calls the operations of two groups in another
//                             order than trainer0
//   stuck_worker run FILE     goes on
//
// until FILE is there (of `order`: for good); then all go on and end.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/process_group.h"
#include "weft/tensor/tensor.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/join_group.h"
#include "weft/worker/worker.h"

namespace weft::worker {
namespace {

void SleepIn(const std::string& file) {
  while (!std::filesystem::exists(file)) absl::SleepFor(absl::Milliseconds(20));
}

void SpinUntil(const std::string& file) {
  uint64_t x = 1;
  while (!std::filesystem::exists(file)) {
    for (int i = 0; i < 10'000'000; ++i) x = x * 6364136223846793005u + 1;
  }
  std::fprintf(stderr, "spun to %d\n", static_cast<int>(x % 10));
}

absl::Status Run(Worker& worker, const std::string& how,
                 const std::string& file) {
  WEFT_ASSIGN_OR_RETURN(const auto world, JoinGroup(worker));
  JoinGroupOptions other;
  other.name = "other";
  WEFT_ASSIGN_OR_RETURN(const auto second, JoinGroup(worker, other));
  Tensor numbers = Tensor::Ones({16});
  for (int i = 0; i < 10; ++i) WEFT_RETURN_IF_ERROR(world->AllReduce(numbers));
  if (world->rank() == 0) std::fprintf(stderr, "all are in\n");
  const bool is_it = worker.options().rank == 1;
  if (how == "sleep" && is_it) SleepIn(file);
  if (how == "spin" && is_it) SpinUntil(file);
  if (how == "order") {
    WEFT_RETURN_IF_ERROR((is_it ? second : world)->AllReduce(numbers));
    return (is_it ? world : second)->AllReduce(numbers);
  }
  // All together find whether the file is there.
  for (bool goes_on = how == "run"; goes_on;) {
    Tensor is_there = Tensor::Full({1}, std::filesystem::exists(file) ? 1 : 0);
    WEFT_RETURN_IF_ERROR(world->AllReduce(is_there));
    goes_on = is_there.data<float>()[0] == 0;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return world->Barrier();
}

}  // namespace
}  // namespace weft::worker

int main(int argc, char** argv) {
  auto worker = weft::worker::Worker::Start(
      weft::worker::Options::FromFlags(&argc, argv));
  weft::ExitIfError(worker);
  if (argc != 3) return 2;
  weft::ExitIfError(weft::worker::Run(**worker, argv[1], argv[2]));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
