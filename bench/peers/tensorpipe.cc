// tensorpipe: what TensorPipe reaches with tensors sent one way: a rival of
// //bench:rpc_bench.
//
//   tensorpipe shm cma|uv basic --size=65536 --out=4 --seconds=1
//              [--client-core=0 --server-core=1]
//
// Prints gb_per_s. Tensors in flight are different ones. The server, which is
// forked, reads each into the same memory, checks the first, and answers each
// by 8 bytes.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <tensorpipe/tensorpipe.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "weft/bench/measure.h"

namespace {

using ::weft::bench::Now;
using ::weft::bench::Pin;

struct Options {
  std::string transport = "shm";
  std::string channel = "cma";
  size_t size = 65536;
  int out = 4;
  double seconds = 1;
  int client_core = 0;
  int server_core = 1;
};
Options options;

char ByteAt(size_t i) { return static_cast<char>(i * 2654435761u >> 13); }

std::shared_ptr<tensorpipe::Context> MakeContext() {
  auto context = std::make_shared<tensorpipe::Context>();
  if (options.transport == "shm") {
    context->registerTransport(1, "shm", tensorpipe::transport::shm::create());
  } else {
    context->registerTransport(1, "uv", tensorpipe::transport::uv::create());
  }
  if (options.channel == "cma") {
    context->registerChannel(2, "cma", tensorpipe::channel::cma::create());
  }
  context->registerChannel(1, "basic", tensorpipe::channel::basic::create());
  return context;
}

// The pipe ends when the client does.
void ExitOn(const tensorpipe::Error& error) {
  if (error) _exit(0);
}

// Reads one message, its payload or its tensor, into `memory`.
void Receive(tensorpipe::Pipe& pipe, std::vector<char>& memory) {
  std::promise<void> done;
  pipe.readDescriptor(
      [&](const tensorpipe::Error& error, tensorpipe::Descriptor descriptor) {
        ExitOn(error);
        tensorpipe::Allocation into;
        for (size_t i = 0; i < descriptor.payloads.size(); ++i) {
          into.payloads.emplace_back();
          into.payloads.back().data = memory.data();
        }
        for (size_t i = 0; i < descriptor.tensors.size(); ++i) {
          into.tensors.emplace_back();
          into.tensors.back().buffer = tensorpipe::CpuBuffer{memory.data()};
        }
        pipe.read(into, [&done](const tensorpipe::Error& error) {
          ExitOn(error);
          done.set_value();
        });
      });
  done.get_future().wait();
}

[[noreturn]] void Serve(int ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Pin(options.server_core);
  auto context = MakeContext();
  const bool shm = options.transport == "shm";
  auto listener = context->listen({shm ? "shm://" : "uv://127.0.0.1"});
  std::string url = listener->url(options.transport);
  url.resize(256);
  if (write(ready, url.data(), url.size()) != 256) _exit(3);
  std::promise<std::shared_ptr<tensorpipe::Pipe>> accepted;
  listener->accept([&](const tensorpipe::Error& error,
                       std::shared_ptr<tensorpipe::Pipe> pipe) {
    ExitOn(error);
    accepted.set_value(std::move(pipe));
  });
  const std::shared_ptr<tensorpipe::Pipe> pipe = accepted.get_future().get();
  std::vector<char> memory(options.size);
  static char answer[8] = {};
  for (bool first = true;; first = false) {
    Receive(*pipe, memory);
    for (size_t i = 0; first && i < memory.size(); ++i) {
      if (memory[i] != ByteAt(i)) _exit(4);  // the client gets no answer
    }
    tensorpipe::Message reply;
    reply.payloads.emplace_back();
    reply.payloads.back().data = answer;
    reply.payloads.back().length = sizeof answer;
    pipe->write(reply, ExitOn);
  }
}

// Bytes a second, `out` tensors in flight.
double MeasureRate(tensorpipe::Pipe& pipe,
                   std::vector<std::vector<char>>& tensors, double seconds) {
  std::vector<char> answer(8);
  size_t turn = 0;
  int in_flight = 0;
  int64_t received = 0;
  const double begin = Now();
  for (;;) {
    while (in_flight < options.out && Now() < begin + seconds) {
      std::vector<char>& tensor = tensors[turn++ % tensors.size()];
      tensorpipe::Message message;
      message.tensors.emplace_back();
      message.tensors.back().buffer = tensorpipe::CpuBuffer{tensor.data()};
      message.tensors.back().length = tensor.size();
      pipe.write(message, ExitOn);
      ++in_flight;
    }
    if (in_flight == 0) break;
    Receive(pipe, answer);
    --in_flight;
    ++received;
  }
  return static_cast<double>(received * options.size) / (Now() - begin);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("TensorPipe with tensors of one size");
  app.add_option("transport", options.transport, "shm or uv");
  app.add_option("channel", options.channel, "cma or basic");
  app.add_option("--size", options.size, "bytes of a tensor");
  app.add_option("--out", options.out, "tensors in flight");
  app.add_option("--seconds", options.seconds, "how long to measure");
  app.add_option("--client-core", options.client_core, "-1: not pinned");
  app.add_option("--server-core", options.server_core, "-1: not pinned");
  CLI11_PARSE(app, argc, argv);
  int ready[2];
  if (pipe(ready) != 0) return 2;
  const pid_t server = fork();
  if (server == 0) Serve(ready[1]);
  char url[257] = {};
  if (read(ready[0], url, 256) != 256) return 3;
  Pin(options.client_core);
  auto context = MakeContext();
  const std::shared_ptr<tensorpipe::Pipe> pipe = context->connect(url);
  std::vector<char> tensor(options.size);
  for (size_t i = 0; i < tensor.size(); ++i) tensor[i] = ByteAt(i);
  std::vector<std::vector<char>> tensors(options.out + 1, tensor);
  (void)MeasureRate(*pipe, tensors, options.seconds / 5);  // warm
  const double rate = MeasureRate(*pipe, tensors, options.seconds);
  std::printf("gb_per_s\t%.5g\n", rate / 1e9);
  std::fflush(stdout);
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  _exit(0);  // its threads are not waited for
}
