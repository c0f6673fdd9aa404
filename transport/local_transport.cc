#include "weft/transport/local_transport.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/transport/event_thread.h"
#include "weft/transport/pipe_end.h"

namespace weft::transport {

// The two ends of a connection.
class LocalNetwork::Pipe {
 public:
  using End = PipeEnd<Pipe>;

  // One side's observer and the thread on which it hears. That of side 1, which
  // was connected to, has no observer before Accept.
  struct Side {
    std::shared_ptr<EventThread> thread;
    std::shared_ptr<ConnectionObserver> observer;
    bool writing = false;
  };

  void SetSide(int side, Side to) {
    MutexLock lock(mu_);
    sides_[side] = std::move(to);
  }

  bool Write(int side, Slices message) {
    MutexLock lock(mu_);
    Side& from = sides_[side];
    const Side& to = sides_[1 - side];
    if (closed_ || from.writing) return false;
    from.writing = true;
    // Posting under the lock keeps the events of a side in order.
    if (to.observer != nullptr) {
      to.thread->Post(
          [observer = to.observer, m = std::move(message)]() mutable {
            observer->OnMessage(std::move(m));
          });
    } else {
      early_.push_back(std::move(message));
    }
    from.thread->Post([self = self_.lock(), side] { self->Written(side); });
    return true;
  }

  // The side that was connected to now listens; it hears what came before.
  void Accept(std::shared_ptr<ConnectionObserver> observer) {
    {
      MutexLock lock(mu_);
      if (closed_) return;
      Side& side = sides_[1];
      side.observer = std::move(observer);
      for (Slices& message : early_) {
        side.thread->Post(
            [observer = side.observer, m = std::move(message)]() mutable {
              observer->OnMessage(std::move(m));
            });
      }
      early_.clear();
      if (!dropped_) return;
    }
    Drop(1);
  }

  void Close(const absl::Status& status) {
    MutexLock lock(mu_);
    if (std::exchange(closed_, true)) return;
    for (Side& side : sides_) {
      if (side.observer == nullptr) continue;
      side.thread->Post([observer = std::move(side.observer), status] {
        observer->OnClosed(status);
      });
      side.observer = nullptr;
    }
  }

  // The end of `side` was destroyed. If its acceptor has not answered yet, a
  // refusal closes the pipe with its own status.
  void Drop(int side) {
    {
      MutexLock lock(mu_);
      if (side == 1 && sides_[1].observer == nullptr && !closed_) {
        dropped_ = true;
        return;
      }
    }
    Close(absl::CancelledError("the connection was destroyed"));
  }

  void set_self(std::weak_ptr<Pipe> self) { self_ = std::move(self); }

 private:
  void Written(int side) {
    std::shared_ptr<ConnectionObserver> observer;
    {
      MutexLock lock(mu_);
      sides_[side].writing = false;
      observer = sides_[side].observer;
    }
    if (observer != nullptr) observer->OnWritten();
  }

  std::weak_ptr<Pipe> self_;
  Mutex mu_;
  Side sides_[2] ABSL_GUARDED_BY(mu_);
  std::vector<Slices> early_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool dropped_ ABSL_GUARDED_BY(mu_) = false;  // by its acceptor
};

// The endpoints of the network by address.
class LocalNetwork::Switch {
 public:
  struct Port {
    std::shared_ptr<EventThread> thread;
    // By the purpose's name; null: registered, and nobody accepts yet.
    std::map<std::string, Transport::Acceptor> acceptors;
  };

  void Add(const std::string& address, std::shared_ptr<EventThread> thread) {
    MutexLock lock(mu_);
    WEFT_CHECK(ports_.emplace(address, Port{std::move(thread), {}}).second)
        << "two transports at " << address;
  }

  void Remove(const std::string& address) {
    MutexLock lock(mu_);
    ports_.erase(address);
  }

  void Register(const std::string& address, const std::string& purpose) {
    MutexLock lock(mu_);
    ports_.at(address).acceptors.emplace(purpose, nullptr);
  }

  void SetAcceptor(const std::string& address, const std::string& purpose,
                   Transport::Acceptor acceptor) {
    MutexLock lock(mu_);
    auto& acceptors = ports_.at(address).acceptors;
    const auto it = acceptors.find(purpose);
    WEFT_CHECK(it != acceptors.end())
        << "register " << purpose << " before its acceptor is set";
    it->second = std::move(acceptor);
  }

  // The acceptor, which is not null, and the thread on which it runs.
  struct Listener {
    std::shared_ptr<EventThread> thread;
    Transport::Acceptor acceptor;
  };
  absl::StatusOr<Listener> Find(const Destination& to, const Purpose& purpose) {
    MutexLock lock(mu_);
    const auto port = ports_.find(to.address);
    if (port != ports_.end()) {
      const auto& acceptors = port->second.acceptors;
      const auto it = acceptors.find(purpose.name);
      if (it != acceptors.end() && it->second != nullptr) {
        return Listener{port->second.thread, it->second};
      }
      // One without any purpose is still being set up.
      if (it == acceptors.end() && !acceptors.empty()) {
        return NotServed(to, purpose, "it is registered for other purposes");
      }
    }
    return absl::UnavailableError(
        absl::StrCat("nobody accepts connections at ", to.address));
  }

  void Track(const std::string& a, const std::string& b,
             std::weak_ptr<Pipe> pipe) {
    MutexLock lock(mu_);
    pipes_.erase(
        std::remove_if(pipes_.begin(), pipes_.end(),
                       [](const Tracked& t) { return t.pipe.expired(); }),
        pipes_.end());
    pipes_.push_back(Tracked{a, b, std::move(pipe)});
  }

  // Breaks all pipes to or from `address`.
  void Break(const std::string& address) {
    std::vector<std::shared_ptr<Pipe>> found;  // closed without the lock
    {
      MutexLock lock(mu_);
      for (const Tracked& t : pipes_) {
        if (t.a != address && t.b != address) continue;
        if (auto pipe = t.pipe.lock()) found.push_back(std::move(pipe));
      }
    }
    for (const auto& pipe : found) {
      pipe->Close(absl::UnavailableError(
          absl::StrCat("the connection with ", address, " broke")));
    }
  }

 private:
  struct Tracked {
    std::string a;
    std::string b;
    std::weak_ptr<Pipe> pipe;
  };

  Mutex mu_;
  absl::flat_hash_map<std::string, Port> ports_ ABSL_GUARDED_BY(mu_);
  std::vector<Tracked> pipes_ ABSL_GUARDED_BY(mu_);
};

class LocalNetwork::LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<Switch> network, std::string address,
                 std::unique_ptr<EventThread> thread)
      : switch_(std::move(network)),
        address_(std::move(address)),
        thread_(std::move(thread)) {
    switch_->Add(address_, thread_);
  }

  ~LocalTransport() override {
    switch_->Remove(address_);
    switch_->Break(address_);
    // Connections may hold the thread longer, and release it on the thread.
    thread_->Stop();
  }

  Driver& driver() override { return ParkingDriver(); }

  void Register(const Purpose& purpose) override {
    switch_->Register(address_, purpose.name);
  }

  void Accept(const Purpose& purpose, Acceptor acceptor) override {
    const bool ends = acceptor == nullptr;
    switch_->SetAcceptor(address_, purpose.name, std::move(acceptor));
    // A connection that is being accepted is over then, too.
    if (ends) AwaitTimers();
  }

  std::unique_ptr<Connection> Connect(
      const Purpose& purpose, const Destination& to,
      std::shared_ptr<ConnectionObserver> observer) override {
    auto pipe = std::make_shared<Pipe>();
    pipe->set_self(pipe);
    pipe->SetSide(0, {thread_, std::move(observer)});
    auto end = std::make_unique<Pipe::End>(pipe, 0);
    const auto listener = switch_->Find(to, purpose);
    if (!listener.ok()) {
      pipe->Close(listener.status());
      return end;
    }
    switch_->Track(address_, to.address, pipe);
    pipe->SetSide(1, {listener->thread, nullptr});
    listener->thread->Post([pipe, network = switch_, to, purpose] {
      // Its acceptor may be another by now.
      const auto listener = network->Find(to, purpose);
      if (!listener.ok()) return pipe->Close(listener.status());
      auto accepted = listener->acceptor(std::make_unique<Pipe::End>(pipe, 1));
      if (!accepted.ok()) return pipe->Close(accepted.status());
      pipe->Accept(*std::move(accepted));
    });
    return end;
  }

  TimerId RunAt(Instant when, absl::AnyInvocable<void() &&> fn) override {
    return thread_->RunAt(when, std::move(fn));
  }
  bool CancelTimer(TimerId id) override { return thread_->Cancel(id); }
  // The thread runs one thing at a time; a wait on it fails at once.
  void AwaitTimers() override {
    auto [promise, turn] = MakePromise<void>();
    thread_->Post(
        [p = std::move(promise)]() mutable { p.Set(absl::OkStatus()); });
    while (!turn.IsReady() &&
           !absl::IsFailedPrecondition(turn.Wait(absl::Seconds(1)))) {
    }
  }

 private:
  const std::shared_ptr<Switch> switch_;
  const std::string address_;
  const std::shared_ptr<EventThread> thread_;
};

LocalNetwork::LocalNetwork() : switch_(std::make_shared<Switch>()) {}

absl::StatusOr<std::unique_ptr<Transport>> LocalNetwork::MakeTransport(
    std::string address) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<EventThread> thread,
                        EventThread::Create());
  return std::make_unique<LocalTransport>(switch_, std::move(address),
                                          std::move(thread));
}

void LocalNetwork::Break(const std::string& address) {
  switch_->Break(address);
}

}  // namespace weft::transport
