// raw_grpc: what gRPC itself reaches with one bidirectional stream: the rival
// and the floor of //bench:rpc_bench.
//
//   raw_grpc --listen=unix:/path|127.0.0.1:0 --size=64 --out=1 --seconds=1
//            [--poll] [--callback] [--copy] [--protobuf]
//            [--client-core=0 --server-core=1] [--certs=DIR] [--work=50]
//
// Prints p50_us and p99_us (of one at a time), calls_per_s and gb_per_s, one a
// line, tab-separated. A message of at most 4 KiB is echoed, a larger one and
// those of unary calls answered by 8 bytes. The
// server is a program of its own. Completion queues, byte buffers with the
// caller's memory as slices; --copy: the server also copies the slices into one
// chunk of memory. --callback: gRPC's callback API at both ends in place of
// completion queues, one echo at a time, never polled. --protobuf: unary calls
// by the callback API, of a message with a `bytes` field, as a first version
// would make them.
// --work: the server is busy for so many microseconds before it echoes, and
// latencies are given without them.
// --certs: mTLS, with the folders trainer0 (server) and trainer1 of `weft
// certs`.

#include <grpc/grpc.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/synchronization/mutex.h"
#include "weft/bench/measure.h"
#include "weft/proto/rpc.pb.h"

namespace {

using ::weft::bench::Now;
using ::weft::bench::Pin;

constexpr size_t kEchoBytes = 4096;
constexpr char kPut[] = "/raw/Put";

struct Options {
  std::string listen = "127.0.0.1:0";
  size_t size = 64;
  int out = 1;
  double seconds = 1;
  bool poll = false;
  bool copy = false;
  bool protobuf = false;
  bool callback = false;
  int client_core = 0;
  int server_core = 1;
  std::string certs;
  double work_us = 0;
  int serve = -1;  // where to write the port: this is the server
};
Options options;

bool UsesCallbacks() { return options.callback || options.protobuf; }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentials() {
  if (options.certs.empty()) return grpc::InsecureServerCredentials();
  const std::string own = options.certs + "/trainer0/";
  grpc::SslServerCredentialsOptions tls(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  tls.pem_root_certs = ReadFile(own + "ca.pem");
  tls.pem_key_cert_pairs.push_back(
      {ReadFile(own + "key.pem"), ReadFile(own + "cert.pem")});
  return grpc::SslServerCredentials(tls);
}

std::shared_ptr<grpc::ChannelCredentials> ClientCredentials() {
  if (options.certs.empty()) return grpc::InsecureChannelCredentials();
  const std::string own = options.certs + "/trainer1/";
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = ReadFile(own + "ca.pem");
  tls.pem_private_key = ReadFile(own + "key.pem");
  tls.pem_cert_chain = ReadFile(own + "cert.pem");
  return grpc::SslCredentials(tls);
}

// What a completion is for.
struct Tag {
  virtual ~Tag() = default;
  virtual void Go(bool ok) = 0;
};

// Runs completions until `*done`. Polling yields when nothing has come, since
// gRPC hands some work to threads of its own.
void RunQueue(grpc::CompletionQueue* queue, const bool* done) {
  void* tag;
  bool ok;
  while (!*done) {
    if (!options.poll) {
      if (!queue->Next(&tag, &ok)) return;
    } else {
      const auto got =
          queue->AsyncNext(&tag, &ok, gpr_inf_past(GPR_CLOCK_MONOTONIC));
      if (got == grpc::CompletionQueue::SHUTDOWN) return;
      if (got == grpc::CompletionQueue::TIMEOUT) {
        sched_yield();
        continue;
      }
    }
    static_cast<Tag*>(tag)->Go(ok);
  }
}

grpc::ByteBuffer Borrow(const char* bytes, size_t size) {
  grpc::Slice slice(grpc_slice_new_with_user_data(
                        const_cast<char*>(bytes), size, [](void*) {}, nullptr),
                    grpc::Slice::STEAL_REF);
  return grpc::ByteBuffer(&slice, 1);
}

// ------------------------------------------------------------------- server

// What the receiver of a large message does with it.
void Consume(grpc::ByteBuffer* message) {
  static thread_local std::vector<char> memory;
  if (options.protobuf) {
    weft::rpc::v1::Chunk chunk;
    (void)grpc::SerializationTraits<weft::rpc::v1::Chunk>::Deserialize(message,
                                                                       &chunk);
    memory.resize(std::max(memory.size(), chunk.data().size()));
    std::memcpy(memory.data(), chunk.data().data(), chunk.data().size());
    return;
  }
  if (!options.copy) return;
  std::vector<grpc::Slice> slices;
  (void)message->Dump(&slices);
  memory.resize(std::max(memory.size(), message->Length()));
  size_t offset = 0;
  for (const grpc::Slice& slice : slices) {
    std::memcpy(memory.data() + offset, slice.begin(), slice.size());
    offset += slice.size();
  }
}

class ServedStream final : public Tag {
 public:
  ServedStream(grpc::AsyncGenericService* service,
               grpc::ServerCompletionQueue* queue)
      : service_(service), queue_(queue) {
    service->RequestCall(&context_, &stream_, queue, queue, this);
  }

  void Go(bool ok) override {
    if (!ok) {
      if (state_ == State::kWaiting || state_ == State::kEnding)
        delete this;
      else
        End();
      return;
    }
    switch (state_) {
      case State::kWaiting:
        new ServedStream(service_, queue_);
        return Read();
      case State::kReading:
        return Answer();
      case State::kWriting:
        return Read();
      case State::kEnding:
        delete this;
    }
  }

 private:
  enum class State { kWaiting, kReading, kWriting, kEnding };

  void Read() {
    state_ = State::kReading;
    in_.Clear();
    stream_.Read(&in_, this);
  }
  void Answer() {
    static const char ack[8] = {};
    state_ = State::kWriting;
    const bool echo = in_.Length() <= kEchoBytes;
    if (!echo) Consume(&in_);
    if (options.work_us > 0) {
      const double end = Now() + options.work_us / 1e6;
      while (Now() < end) {
      }
    }
    out_ = echo ? in_ : Borrow(ack, sizeof ack);
    stream_.Write(out_, this);
  }
  void End() {
    state_ = State::kEnding;
    stream_.Finish(grpc::Status::OK, this);
  }

  grpc::AsyncGenericService* const service_;
  grpc::ServerCompletionQueue* const queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  grpc::ByteBuffer in_, out_;
  State state_ = State::kWaiting;
};

class CallbackStream final : public grpc::ServerGenericBidiReactor {
 public:
  CallbackStream() { StartRead(&in_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    out_ = in_;
    StartWrite(&out_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    in_.Clear();
    StartRead(&in_);
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer in_, out_;
};

// A unary call.
class CallbackCall final : public grpc::ServerGenericBidiReactor {
 public:
  CallbackCall() { StartRead(&in_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    static const char ack[8] = {};
    Consume(&in_);
    out_ = Borrow(ack, sizeof ack);
    StartWriteAndFinish(&out_, {}, grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer in_, out_;
};

class CallbackService final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    if (context->method() == kPut) return new CallbackCall;
    return new CallbackStream;
  }
};

template <typename Set>
void SetArguments(Set set) {
  set(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1);
  set(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1);
  constexpr int kChunk = 4 << 20;
  if (options.size > kEchoBytes && !options.protobuf) {
    set(GRPC_ARG_TCP_READ_CHUNK_SIZE, kChunk);
    set(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, kChunk);
    set(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kChunk);
  }
}

void Serve(int ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Pin(options.server_core);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.listen, ServerCredentials(), &port);
  SetArguments([&](const char* key, int value) {
    builder.AddChannelArgument(key, value);
  });
  grpc::AsyncGenericService service;
  CallbackService callback_service;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  if (UsesCallbacks()) {
    builder.RegisterCallbackGenericService(&callback_service);
  } else {
    builder.RegisterAsyncGenericService(&service);
    queue = builder.AddCompletionQueue();
  }
  auto server = builder.BuildAndStart();
  if (server == nullptr) _exit(3);
  if (!UsesCallbacks()) new ServedStream(&service, queue.get());
  if (write(ready, &port, sizeof port) != sizeof port) _exit(3);
  if (UsesCallbacks()) return server->Wait();
  const bool done = false;
  RunQueue(queue.get(), &done);
}

// ------------------------------------------------------------------- client

void PrintFigures(std::vector<double>* latencies, int64_t replies,
                  double elapsed) {
  if (!latencies->empty()) {
    std::sort(latencies->begin(), latencies->end());
    const auto at = [&](double q) {
      return 1e6 *
             (*latencies)[static_cast<size_t>(q * (latencies->size() - 1))];
    };
    std::printf("p50_us\t%.4g\np99_us\t%.4g\n", at(0.5), at(0.99));
  }
  std::printf("calls_per_s\t%.6g\n", replies / elapsed);
  std::printf("gb_per_s\t%.5g\n", replies * options.size / elapsed / 1e9);
  std::fflush(stdout);
}

class Pump {
 public:
  Pump(grpc::GenericStub* stub, grpc::CompletionQueue* queue)
      : memory_(options.size, 7) {
    stream_ = stub->PrepareCall(&context_, "/raw/Stream", queue);
    stream_->StartCall(&started_);
    RunQueue(queue, &ready_);
  }

  // Keeps `out` messages under way for `seconds`.
  void Run(grpc::CompletionQueue* queue, double seconds) {
    latencies_.clear();
    replies_ = 0;
    begin_ = Now();
    end_ = begin_ + seconds;
    idle_ = false;
    WriteMore();
    RunQueue(queue, &idle_);
    elapsed_ = Now() - begin_;
  }

  void Print() { PrintFigures(&latencies_, replies_, elapsed_); }

 private:
  struct On final : Tag {
    On(Pump* pump, void (Pump::*step)(bool)) : pump(pump), step(step) {}
    void Go(bool ok) override {
      if (!ok) {
        std::fprintf(stderr, "raw_grpc: the stream broke\n");
        _exit(5);
      }
      (pump->*step)(ok);
    }
    Pump* const pump;
    void (Pump::*const step)(bool);
  };

  void Started(bool) {
    ready_ = true;
    stream_->Read(&in_, &read_);
  }
  void WriteMore() {
    if (writing_ || under_way_ >= options.out || Now() >= end_) return;
    writing_ = true;
    ++under_way_;
    sent_at_ = Now();
    message_ = Borrow(memory_.data(), memory_.size());
    stream_->Write(message_, &written_);
  }
  void Written(bool) {
    writing_ = false;
    WriteMore();
  }
  void Read(bool) {
    if (options.out == 1) {
      latencies_.push_back(Now() - sent_at_ - options.work_us / 1e6);
    }
    ++replies_;
    --under_way_;
    in_.Clear();
    stream_->Read(&in_, &read_);
    WriteMore();
    idle_ = under_way_ == 0 && Now() >= end_;
  }

  std::vector<char> memory_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer in_, message_;
  On started_{this, &Pump::Started};
  On written_{this, &Pump::Written};
  On read_{this, &Pump::Read};
  bool ready_ = false;
  bool idle_ = false;
  bool writing_ = false;
  int under_way_ = 0;
  double begin_ = 0, end_ = 0, sent_at_ = 0, elapsed_ = 0;
  int64_t replies_ = 0;
  std::vector<double> latencies_;
};

// One echo after the other, by gRPC's callbacks.
class CallbackPump final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit CallbackPump(grpc::GenericStub* stub) : memory_(options.size, 7) {
    stub->PrepareBidiStreamingCall(&context_, "/raw/Stream", {}, this);
    warm_ = Now() + options.seconds / 5;
    end_ = warm_ + options.seconds;
    Send();
    StartCall();
  }

  void AwaitEnd() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&over_));
    PrintFigures(&latencies_, latencies_.size(), options.seconds);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      std::fprintf(stderr, "raw_grpc: the stream broke\n");
      _exit(5);
    }
    const double now = Now();
    if (now >= warm_) latencies_.push_back(now - sent_at_);
    GoOn();
  }
  void OnWriteDone(bool) override { GoOn(); }

 private:
  void Send() {
    sent_at_ = Now();
    message_ = Borrow(memory_.data(), memory_.size());
    in_.Clear();
    under_way_ = 2;
    StartRead(&in_);
    StartWrite(&message_);
  }
  // The reply may come before the notice that the message was written.
  void GoOn() {
    if (under_way_.fetch_sub(1) > 1) return;
    if (Now() < end_) return Send();
    absl::MutexLock lock(&mu_);
    over_ = true;
  }

  std::vector<char> memory_;
  grpc::ClientContext context_;
  grpc::ByteBuffer in_, message_;
  double warm_ = 0, end_ = 0, sent_at_ = 0;
  std::vector<double> latencies_;
  std::atomic<int> under_way_{0};
  absl::Mutex mu_;
  bool over_ = false;
};

// Keeps `out` unary calls under way, by gRPC's callbacks.
class UnaryPump {
 public:
  explicit UnaryPump(grpc::GenericStub* stub)
      : stub_(stub), memory_(options.size, 7) {
    warm_ = Now() + options.seconds / 5;
    end_ = warm_ + options.seconds;
    under_way_ = options.out;
    for (int i = 0; i < options.out; ++i) Start();
  }

  void AwaitEnd() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](UnaryPump* pump) { return pump->under_way_ == 0; }, this));
    std::vector<double> latencies;
    PrintFigures(&latencies, replies_, options.seconds);
  }

 private:
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer message, reply;
  };

  void Start() {
    auto call = std::make_shared<Call>();
    weft::rpc::v1::Chunk chunk;
    chunk.set_data(memory_.data(), memory_.size());
    bool own = false;
    (void)grpc::SerializationTraits<weft::rpc::v1::Chunk>::Serialize(
        chunk, &call->message, &own);
    stub_->UnaryCall(&call->context, kPut, {}, &call->message, &call->reply,
                     [this, call](const grpc::Status& status) { End(status); });
  }
  void End(const grpc::Status& status) {
    if (!status.ok()) {
      std::fprintf(stderr, "raw_grpc: %s\n", status.error_message().c_str());
      _exit(5);
    }
    const double now = Now();
    {
      absl::MutexLock lock(&mu_);
      if (now >= warm_ && now < end_) ++replies_;
      if (now >= end_) {
        --under_way_;
        return;
      }
    }
    Start();
  }

  grpc::GenericStub* const stub_;
  const std::vector<char> memory_;
  double warm_ = 0, end_ = 0;
  absl::Mutex mu_;
  int64_t replies_ = 0;
  int under_way_ = 0;
};

int Measure(int port) {
  Pin(options.client_core);
  std::string target = options.listen;
  if (target.rfind("unix:", 0) != 0) {
    target = "127.0.0.1:" + std::to_string(port);
  }
  grpc::ChannelArguments arguments;
  SetArguments(
      [&](const char* key, int value) { arguments.SetInt(key, value); });
  if (!options.certs.empty()) {
    arguments.SetSslTargetNameOverride("trainer0.bench.weft");
  }
  auto channel =
      grpc::CreateCustomChannel(target, ClientCredentials(), arguments);
  const auto deadline =
      std::chrono::system_clock::now() + std::chrono::seconds(10);
  if (!channel->WaitForConnected(deadline)) return 4;
  grpc::GenericStub stub(channel);
  if (options.callback) {
    CallbackPump pump(&stub);
    pump.AwaitEnd();
    std::fflush(stdout);
    _exit(0);  // the stream is still open; the server dies with its parent
  }
  if (options.protobuf) {
    UnaryPump pump(&stub);
    pump.AwaitEnd();
    _exit(0);
  }
  grpc::CompletionQueue queue;
  Pump pump(&stub, &queue);
  pump.Run(&queue, options.seconds / 5);  // warm
  pump.Run(&queue, options.seconds);
  pump.Print();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("gRPC with one bidirectional stream");
  app.add_option("--listen", options.listen, "unix:/path or 127.0.0.1:0");
  app.add_option("--size", options.size, "bytes of a message");
  app.add_option("--out", options.out, "messages under way");
  app.add_option("--seconds", options.seconds, "how long to measure");
  app.add_flag("--poll", options.poll, "poll the queues, do not block");
  app.add_flag("--callback", options.callback, "gRPC's callback API");
  app.add_flag("--copy", options.copy, "copy what arrives into one chunk");
  app.add_flag("--protobuf", options.protobuf, "unary calls with bytes");
  app.add_option("--client-core", options.client_core, "-1: not pinned");
  app.add_option("--certs", options.certs, "mTLS with these certificates");
  app.add_option("--server-core", options.server_core, "-1: not pinned");
  app.add_option("--work", options.work_us, "us of work before an echo");
  app.add_option("--serve", options.serve, "")->group("");
  CLI11_PARSE(app, argc, argv);
  // Debian builds Abseil with deadlock detection on, which costs a tenth.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  if (options.serve >= 0) {
    Serve(options.serve);
    return 0;
  }
  int ready[2];
  if (pipe(ready) != 0) return 2;
  const pid_t server = fork();
  if (server == 0) {
    // A program of its own, as servers are: a fork would have all its code at
    // the client's addresses, and what the processor has learnt of it too.
    std::vector<char*> arguments(argv, argv + argc);
    std::string serve = "--serve=" + std::to_string(ready[1]);
    arguments.push_back(serve.data());
    arguments.push_back(nullptr);
    execv("/proc/self/exe", arguments.data());
    _exit(2);
  }
  int port = 0;
  if (read(ready[0], &port, sizeof port) != sizeof port) return 3;
  const int result = Measure(port);
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  std::fflush(stdout);
  _exit(result);  // gRPC's threads are not waited for
}
