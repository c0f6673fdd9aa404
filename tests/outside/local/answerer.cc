// answerer: a worker alone in its job, which serves the functions of answers.h
// until it is killed:
//
//   answerer --listen=unix:/t/socket
//
// With --call=ADDRESS:BYTES, before all other flags, it is no worker: it calls
// Turned there with so many bytes, again and again.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/tests/outside/local/answers.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace {

void Say(const char* word) {
  std::puts(word);
  std::fflush(stdout);
}

void CallForEver(const std::string& address, int64_t bytes) {
  const auto client = weft::rpc::Client::Connect(address);
  weft::ExitIfError(client.status());
  for (;;) {
    const auto turned =
        weft::rpc::Call((*client)->To(), weft::outside::Turned,
                        std::string(static_cast<size_t>(bytes), 'x'));
    weft::ExitIfError(turned.status());
    Say("called");
  }
}

}  // namespace

int main(int argc, char** argv) {
  absl::string_view call = argc > 1 ? argv[1] : "";
  if (absl::ConsumePrefix(&call, "--call=")) {
    const size_t colon = call.rfind(':');
    CallForEver(std::string(call.substr(0, colon)),
                std::atoll(call.data() + colon + 1));
  }
  const auto worker =
      weft::worker::Worker::Start(weft::worker::Options::FromFlags(argc, argv));
  weft::ExitIfError(worker.status());
  Say("serving");
  for (;;) pause();
}
