// The test of somebody who builds on Weft: a function of its own, called
// between real workers of this process, and a process group of the trainers.

#include <cstdio>
#include <string>

#include "weft/testing.h"
#include "weft/weft.h"

namespace {

std::string Greet(weft::rpc::CallContext& context, const std::string& name) {
  return context.peer().name + " greets " + name;
}
WEFT_RPC(Greet);

// The two trainers add up what they have.
absl::Status Reduce(weft::worker::Worker& worker) {
  WEFT_ASSIGN_OR_RETURN(const auto group, weft::worker::JoinGroup(worker));
  const weft::Tensor tensor = weft::Tensor::Full({3}, group->rank() + 1);
  WEFT_RETURN_IF_ERROR(group->AllReduce(tensor));
  return tensor.data<float>()[2] == 3 ? absl::OkStatus()
                                      : absl::InternalError("wrong sum");
}

absl::Status Run() {
  weft::worker::TestWorkers::Options options;
  options.servers = 1;
  options.trainers = 2;
  WEFT_ASSIGN_OR_RETURN(const auto workers,
                        weft::worker::TestWorkers::Start(options));
  WEFT_RETURN_IF_ERROR(
      workers->Run([](weft::worker::Worker& worker) -> absl::Status {
        const std::string& self = worker.self().name;
        WEFT_ASSIGN_OR_RETURN(
            const std::string said,
            weft::rpc::Call(worker.agent().To("ps0", absl::Seconds(30)), Greet,
                            "ps0"));
        if (said != self + " greets ps0") {
          return absl::InternalError("ps0 says: " + said);
        }
        return worker.self().role == "trainer" ? Reduce(worker)
                                               : absl::OkStatus();
      }));
  return workers->Shutdown();
}

}  // namespace

int main() {
  weft::ExitIfError(weft::CatchToStatus([] { return Run(); }));
  std::puts("consumer_workers: ok");
}
