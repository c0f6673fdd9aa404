// stuck_worker: a rank of a job that gets stuck in one way or another, for
// stuck_test.cc. All trainers do all-reduces together; trainer1 then
//
//   stuck_worker sleep FILE    sleeps in its own code
//   stuck_worker spin FILE     computes in its own code
//   stuck_worker order FILE    calls the operations of two groups in another
//                              order than trainer0
//   stuck_worker message FILE  sleeps, and sends nothing meanwhile to trainer0,
//                              which receives
//   stuck_worker receive FILE  receives from trainer0, which receives from it
//   stuck_worker key FILE      waits for a key of the store
//   stuck_worker barrier FILE  waits at a barrier for trainer2, which sleeps
//   stuck_worker run FILE      goes on
//
// until FILE is there (of `order` and `receive`: for good); then all go on and
// end. With parameter servers they push and pull together, in place of
// all-reduces:
//
//   stuck_worker round FILE    trainer1 sleeps before it pushes to a round
//   stuck_worker stable FILE   the same; the others wait until what they have
//                              pushed is stable, on two servers
//   stuck_worker clock FILE    trainer1 sleeps within a step, with staleness 0
//   stuck_worker rounds FILE   none sleeps

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/process_group.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/store.h"
#include "weft/tensor/tensor.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/join_group.h"
#include "weft/worker/table_client.h"
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

constexpr absl::Duration kLong = absl::Minutes(2);

// Rounds, or steps with clocks, until `file` is there.
absl::Status RunWithServers(Worker& worker, const std::string& how,
                            const std::string& file) {
  ps::Client client(TableClientOptions(worker, kLong));
  ps::v1::TableSpec spec;
  spec.set_name("users");
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_mode(how == "clock" ? ps::v1::TableSpec::ASYNC
                               : ps::v1::TableSpec::SYNC);
  if (how == "clock") spec.set_staleness(0);
  if (how != "clock") spec.set_shards(worker.options().trainers);
  spec.set_dim(1);
  spec.mutable_rule()->mutable_sgd()->set_lr(1);
  WEFT_ASSIGN_OR_RETURN(const auto table, client.Sparse(spec));
  const Tensor keys = Tensor::Arange(8, DType::kI64);
  const Tensor ones = Tensor::Full({8, 1}, 1);
  const bool is_it = worker.options().rank == 1;
  bool ends = false;
  for (int step = 0; !ends; ++step) {
    if (step == 10 && is_it) std::fprintf(stderr, "all are in\n");
    if (step == 10 && is_it && how != "rounds") SleepIn(file);
    // All see the file in one round: the sums of those who have seen it.
    const bool has_seen = std::filesystem::exists(file);
    const Tensor gradient = has_seen ? ones : Tensor::Zeros({8, 1});
    if (how == "stable") {
      const ps::RoundPart part = {worker.options().rank, table->round(),
                                  /*take_over=*/true};
      WEFT_RETURN_IF_ERROR(table->PushShard(part, keys, gradient).Wait(kLong));
      WEFT_RETURN_IF_ERROR(table->AwaitStable(kLong));
      table->EndRound();
    }
    WEFT_ASSIGN_OR_RETURN(
        const Tensor rows,
        how == "stable" ? table->Pull(keys).Wait(kLong)
                        : table->PushPull(keys, gradient, keys).Wait(kLong));
    ends = how == "clock" ? has_seen : rows.data<float>()[0] != 0;
    absl::SleepFor(absl::Milliseconds(5));
  }
  if (is_it) std::fprintf(stderr, "the last round has ended\n");
  return how == "clock" ? table->LeaveClock().Wait(kLong) : absl::OkStatus();
}

// Once `file` is there another thread sets the key.
absl::Status AwaitOrders(Worker& worker, const std::string& file) {
  rendezvous::Store& store = worker.membership().store();
  std::thread setter([&] {
    SleepIn(file);
    store.Set("orders", "go", kLong).IgnoreError();
  });
  const absl::Status set = store.Wait("orders", 0, kLong).status();
  setter.join();
  return set;
}

absl::Status Run(Worker& worker, const std::string& how,
                 const std::string& file) {
  if (worker.options().servers > 0) return RunWithServers(worker, how, file);
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
  if (how == "key" && is_it) WEFT_RETURN_IF_ERROR(AwaitOrders(worker, file));
  if (how == "barrier" && world->rank() > 0) {
    if (!is_it) SleepIn(file);
    WEFT_RETURN_IF_ERROR(
        worker.membership().Barrier("orders", {"trainer1", "trainer2"}, kLong));
  }
  if (how == "order") {
    WEFT_RETURN_IF_ERROR((is_it ? second : world)->AllReduce(numbers));
    return (is_it ? world : second)->AllReduce(numbers);
  }
  if (how == "message" && is_it) {
    SleepIn(file);
    WEFT_RETURN_IF_ERROR(world->Send(numbers, 0, 7));
  }
  if (how == "message" && world->rank() == 0) {
    WEFT_RETURN_IF_ERROR(world->Receive(numbers, 1, 7));
  }
  if (how == "receive" && world->rank() < 2) {
    WEFT_RETURN_IF_ERROR(world->Receive(numbers, 1 - world->rank(), 7));
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
