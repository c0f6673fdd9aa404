#include "weft/collectives/backends/gloo/breakable_context.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "gloo/common/error.h"
#include "gloo/transport/context.h"
#include "gloo/transport/unbound_buffer.h"
#include "weft/base/mutex.h"

namespace weft::collectives {

using ::gloo::transport::UnboundBuffer;

// The buffers that somebody may wait for.
class BreakableContext::Waits {
 public:
  void Add(UnboundBuffer* buffer) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    buffers_.insert(buffer);
  }
  void Remove(UnboundBuffer* buffer) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    buffers_.erase(buffer);
  }
  // A wait that begins after this has thrown nothing is ended by Break.
  void ThrowIfBroken() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (is_broken_) throw ::gloo::IoException("a rank ended, or the group");
  }
  void Break() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    is_broken_ = true;
    for (UnboundBuffer* buffer : buffers_) {
      // Each ends the buffer's next wait, if none has begun.
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }

 private:
  mutable Mutex mu_;
  bool is_broken_ ABSL_GUARDED_BY(mu_) = false;
  std::set<UnboundBuffer*> buffers_ ABSL_GUARDED_BY(mu_);
};

namespace {

using Waits = BreakableContext::Waits;
using std::chrono::milliseconds;

class BreakableBuffer final : public UnboundBuffer {
 public:
  BreakableBuffer(std::shared_ptr<Waits> waits,
                  std::unique_ptr<UnboundBuffer> buffer)
      : UnboundBuffer(buffer->ptr, buffer->size),
        waits_(std::move(waits)),
        buffer_(std::move(buffer)) {
    waits_->Add(buffer_.get());
  }
  ~BreakableBuffer() override { waits_->Remove(buffer_.get()); }

  bool waitRecv(int* rank, milliseconds timeout) override {
    return Wait(timeout,
                [&](milliseconds t) { return buffer_->waitRecv(rank, t); });
  }
  bool waitSend(int* rank, milliseconds timeout) override {
    return Wait(timeout,
                [&](milliseconds t) { return buffer_->waitSend(rank, t); });
  }
  void abortWaitRecv() override { buffer_->abortWaitRecv(); }
  void abortWaitSend() override { buffer_->abortWaitSend(); }
  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    buffer_->send(to, slot, offset, bytes);
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    buffer_->recv(from, slot, offset, bytes);
  }
  void recv(std::vector<int> from, uint64_t slot, size_t offset,
            size_t bytes) override {
    buffer_->recv(std::move(from), slot, offset, bytes);
  }

 private:
  template <typename Fn>
  bool Wait(milliseconds timeout, Fn wait) {
    waits_->ThrowIfBroken();
    bool is_done = false;
    try {
      is_done = wait(timeout);
    } catch (const ::gloo::IoException&) {
      // gloo throws where the message has been moved and the peer has closed
      // its end after that, if the thread wakes late; the next wait knows.
      is_done = wait(milliseconds(0));
    }
    if (!is_done) waits_->ThrowIfBroken();
    return is_done;
  }

  const std::shared_ptr<Waits> waits_;
  const std::unique_ptr<UnboundBuffer> buffer_;
};

// Another one, whose buffers it makes breakable.
class BreakableTransport final : public ::gloo::transport::Context {
 public:
  BreakableTransport(std::shared_ptr<Waits> waits,
                     std::shared_ptr<::gloo::transport::Context> context)
      : Context(context->rank, context->size),
        waits_(std::move(waits)),
        context_(std::move(context)) {}

  std::unique_ptr<::gloo::transport::Pair>& getPair(int rank) override {
    return context_->getPair(rank);
  }
  std::unique_ptr<::gloo::transport::Pair>& createPair(int rank) override {
    return context_->createPair(rank);
  }
  std::unique_ptr<UnboundBuffer> createUnboundBuffer(void* memory,
                                                     size_t bytes) override {
    return std::make_unique<BreakableBuffer>(
        waits_, context_->createUnboundBuffer(memory, bytes));
  }

 private:
  const std::shared_ptr<Waits> waits_;
  const std::shared_ptr<::gloo::transport::Context> context_;
};

}  // namespace

BreakableContext::BreakableContext(int rank, int size)
    : Context(rank, size), waits_(std::make_shared<Waits>()) {}

BreakableContext::~BreakableContext() = default;

void BreakableContext::Connect(
    ::gloo::rendezvous::Store& store,
    std::shared_ptr<::gloo::transport::Device> device) {
  connectFullMesh(store, device);
  transportContext_ = std::make_shared<BreakableTransport>(
      waits_, std::move(transportContext_));
}

void BreakableContext::Break() { waits_->Break(); }

}  // namespace weft::collectives
