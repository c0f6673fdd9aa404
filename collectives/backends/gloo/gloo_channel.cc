#include "weft/collectives/backends/gloo/gloo_channel.h"

#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "weft/base/bytes.h"
#include "weft/base/check.h"
#include "weft/base/driver.h"
#include "weft/base/mutex.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/gloo/sigpipe_scope.h"

namespace weft::collectives {
namespace {

// A message is its length, as 8 bytes, and its bytes. The longest of a Mesh is
// a chunk with its header and text.
constexpr size_t kLengthBytes = sizeof(uint64_t);
constexpr size_t kMaxMessageBytes = Inbox::kChunkBytes + (64 << 10);
constexpr uint64_t kSlot = 0;
// Nobody sends there: a receive that is pending fails with the connection,
// which gloo does not do to a message of which a part has been moved.
constexpr uint64_t kOutgoingLife = 1;
constexpr uint64_t kIncomingLife = 2;
// The wait of a thread that the destructor ends; after a timeout gloo would
// close all pairs.
constexpr std::chrono::hours kForever(24 * 365);

}  // namespace

// What the mesh has written and the writer has not sent, at most one message.
class GlooChannel::Outbox {
 public:
  // Close ends the wait for `outgoing`, which must outlive the writer.
  explicit Outbox(::gloo::transport::UnboundBuffer* outgoing)
      : outgoing_(outgoing) {}

  transport::Connection::Written Put(Slices message) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (is_closed_ || message_.has_value()) {
      return transport::Connection::Written::kRefused;
    }
    message_ = std::move(message);
    changed_.NotifyAll();
    return transport::Connection::Written::kUnderWay;
  }
  // The next message; none once it is closed.
  absl::optional<Slices> Await() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    while (!message_.has_value() && !is_closed_) changed_.Wait(mu_);
    return is_closed_ ? absl::nullopt : message_;
  }
  // The message has been sent.
  void Pop() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    message_.reset();
  }
  void Close() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    is_closed_ = true;
    if (outgoing_ != nullptr) outgoing_->abortWaitSend();
    changed_.NotifyAll();
  }
  // The writer has ended.
  void Detach() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    outgoing_ = nullptr;
  }
  bool is_closed() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return is_closed_;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::optional<Slices> message_ ABSL_GUARDED_BY(mu_);
  ::gloo::transport::UnboundBuffer* outgoing_ ABSL_GUARDED_BY(mu_);
};

// What the mesh has of it. The mesh may release it on a thread of the channel.
class GlooChannel::Connection final : public transport::Connection {
 public:
  explicit Connection(std::shared_ptr<Outbox> outbox)
      : outbox_(std::move(outbox)) {}
  ~Connection() override { outbox_->Close(); }

  Written Write(Slices message) override {
    return outbox_->Put(std::move(message));
  }
  void Close(absl::Status) override { outbox_->Close(); }

 private:
  const std::shared_ptr<Outbox> outbox_;
};

GlooChannel::GlooChannel(std::shared_ptr<::gloo::Context> context, int peer,
                         std::shared_ptr<Mesh> mesh,
                         std::function<void()> on_lost)
    : context_(std::move(context)),
      peer_(peer),
      mesh_(std::move(mesh)),
      on_lost_(std::move(on_lost)),
      outgoing_cell_(kLengthBytes + kMaxMessageBytes),
      incoming_cell_(kLengthBytes + kMaxMessageBytes),
      outgoing_(context_->createUnboundBuffer(outgoing_cell_.data(),
                                              outgoing_cell_.size())),
      incoming_(context_->createUnboundBuffer(incoming_cell_.data(),
                                              incoming_cell_.size())),
      outbox_(std::make_shared<Outbox>(outgoing_.get())) {}

GlooChannel::~GlooChannel() {
  outbox_->Close();
  incoming_->abortWaitRecv();
  if (writer_.joinable()) writer_.join();
  if (reader_.joinable()) reader_.join();
  outbox_->Detach();
}

absl::Status GlooChannel::Start() {
  // OnOpened must come before anything of the peer's is read.
  auto connection = std::make_shared<Connection>(outbox_);
  if (peer_ > mesh_->rank()) {
    mesh_->OnOpened(peer_, std::move(connection));
  } else {
    WEFT_RETURN_IF_ERROR(mesh_->OnHello(peer_, std::move(connection)));
  }
  WEFT_ASSIGN_OR_RETURN(writer_,
                        StartThread("gloo writer", [this] { RunWriter(); }));
  WEFT_ASSIGN_OR_RETURN(reader_,
                        StartThread("gloo reader", [this] { RunReader(); }));
  return absl::OkStatus();
}

void GlooChannel::RunWriter() {
  InlineScope callbacks;
  SigpipeScope sigpipe;
  try {
    outgoing_->recv(peer_, kOutgoingLife, 0, 0);
    while (absl::optional<Slices> message = outbox_->Await()) {
      char* to = outgoing_cell_.data() + kLengthBytes;
      for (const Bytes& slice : *message) {
        WEFT_CHECK(slice.size() <=
                   static_cast<size_t>(&outgoing_cell_.back() + 1 - to));
        memcpy(to, slice.data(), slice.size());
        to += slice.size();
      }
      const size_t bytes = to - outgoing_cell_.data();
      const uint64_t length = bytes - kLengthBytes;
      memcpy(outgoing_cell_.data(), &length, kLengthBytes);
      outgoing_->send(peer_, kSlot, 0, bytes);
      if (!outgoing_->waitSend(kForever)) return;
      outbox_->Pop();
      mesh_->OnWritten(peer_);
    }
  } catch (const std::exception&) {
    // The reader's wait fails too, after it has taken what came before.
  }
}

void GlooChannel::RunReader() {
  InlineScope callbacks;
  SigpipeScope sigpipe;
  try {
    incoming_->recv(peer_, kIncomingLife, 0, 0);
    incoming_->recv(peer_, kSlot);
    while (incoming_->waitRecv(kForever)) {
      if (!TakeMessage()) return;
    }
  } catch (const std::exception& error) {
    OnLost(absl::UnavailableError(error.what()));
  }
}

void GlooChannel::OnLost(const absl::Status& why) {
  mesh_->OnClosed(peer_, why);
  if (!mesh_->HasLeft(peer_)) on_lost_();
}

bool GlooChannel::TakeMessage() {
  uint64_t length = 0;
  memcpy(&length, incoming_cell_.data(), kLengthBytes);
  if (length > kMaxMessageBytes) {
    OnLost(absl::InvalidArgumentError(absl::StrCat(
        "a message of ", length, " bytes, of at most ", kMaxMessageBytes)));
    return false;
  }
  Slices message = {Bytes::Copy(
      absl::string_view(incoming_cell_.data() + kLengthBytes, length))};
  // Fails if the peer has closed its end, perhaps after this message.
  std::exception_ptr failure;
  try {
    incoming_->recv(peer_, kSlot);
  } catch (...) {
    failure = std::current_exception();
  }
  mesh_->OnMessage(peer_, message);
  if (failure != nullptr) std::rethrow_exception(failure);
  return !outbox_->is_closed();
}

}  // namespace weft::collectives
