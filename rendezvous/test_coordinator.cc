// test_coordinator: a coordinator in a process of its own, for tests to kill.
// Arguments: address, log.

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "weft/base/check.h"
#include "weft/base/thread_pool.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rendezvous/grpc_coordinator.h"
#include "weft/rendezvous/journal/coordinator_log.h"

int main(int argc, char** argv) {
  WEFT_CHECK_EQ(argc, 3);
  auto loop = weft::net::Loop::Create();
  WEFT_CHECK(loop.ok()) << loop.status().ToString();
  auto executor = weft::ThreadPool::Create({});
  WEFT_CHECK(executor.ok()) << executor.status().ToString();
  const auto timers = weft::rendezvous::MakeLoopTimers(**loop);
  weft::rendezvous::CoordinatorOptions options;
  auto log = weft::rendezvous::CoordinatorLog::Open(argv[2]);
  WEFT_CHECK(log.ok()) << log.status().ToString();
  options.journal = *std::move(log);
  auto coordinator = weft::rendezvous::Coordinator::Create(*timers, **executor,
                                                           std::move(options));
  WEFT_CHECK(coordinator.ok()) << coordinator.status().ToString();
  weft::net::EndpointOptions at;
  at.name = "ps0";
  at.listen = argv[1];
  auto endpoint = weft::net::Endpoint::Open(**loop, at);
  WEFT_CHECK(endpoint.ok()) << endpoint.status().ToString();
  weft::rendezvous::Serve(**coordinator, **endpoint);
  const absl::Status started = (*endpoint)->Start();
  WEFT_CHECK(started.ok()) << started.ToString();
  std::puts("serving");
  std::fflush(stdout);
  for (;;) pause();
}
