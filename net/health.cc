#include "weft/net/health.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "weft/base/failpoint.h"
#include "weft/proto/health.pb.h"

namespace weft::net {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

Slices Encode(Health::Status status) {
  HealthCheckResponse response;
  switch (status) {
    case Health::Status::kServing:
      response.set_status(HealthCheckResponse::SERVING);
      break;
    case Health::Status::kNotServing:
      response.set_status(HealthCheckResponse::NOT_SERVING);
      break;
    case Health::Status::kServiceUnknown:
      response.set_status(HealthCheckResponse::SERVICE_UNKNOWN);
      break;
  }
  return {Bytes::Own(response.SerializeAsString())};
}

std::optional<std::string> ServiceIn(const Slices& message) {
  HealthCheckRequest request;
  const Bytes whole = Flatten(message);
  if (!request.ParseFromArray(whole.data(), static_cast<int>(whole.size())))
    return std::nullopt;
  return request.service();
}

}  // namespace

// One Watch. It writes the latest status, if that differs from what it wrote
// last.
class Health::Watcher final
    : public StreamObserver,
      public std::enable_shared_from_this<Health::Watcher> {
 public:
  Watcher(Health& health, std::unique_ptr<Stream> stream)
      : health_(health), stream_(std::move(stream)) {}

  void OnMessage(Slices message) override {
    std::optional<std::string> service = ServiceIn(message);
    if (!service.has_value())
      return End(absl::InvalidArgumentError("not a HealthCheckRequest"));
    {
      MutexLock lock(mu_);
      if (service_.has_value()) return;  // one request a call
      service_ = *std::move(service);
    }
    health_.AddWatcher(weak_from_this());
    Update();
  }

  void Update() {
    {
      MutexLock lock(mu_);
      if (!service_.has_value()) return;
      // Under the lock: of two updates the last sees what there is now.
      const Status status = health_.StatusOf(*service_);
      WEFT_FAILPOINT("net/health").IgnoreError();
      wanted_ = status;
    }
    WriteIfNew();
  }

  void OnWritten() override {
    {
      MutexLock lock(mu_);
      writing_ = false;
    }
    WriteIfNew();
  }

  // The caller has asked all that it will ask; the answers go on.
  void OnHalfClosed(Stream&) override {}

  // The call releases its observer next, and so the stream.
  void OnClosed(absl::Status) override {}

  void End(absl::Status status) { stream_->Close(std::move(status)); }

 private:
  void WriteIfNew() {
    Status status;
    {
      MutexLock lock(mu_);
      if (writing_ || !wanted_.has_value() || wanted_ == written_) return;
      writing_ = true;
      written_ = wanted_;
      status = *wanted_;
    }
    stream_->Write(Encode(status));
  }

  Health& health_;
  const std::unique_ptr<Stream> stream_;
  Mutex mu_;
  std::optional<std::string> service_ ABSL_GUARDED_BY(mu_);
  std::optional<Status> wanted_ ABSL_GUARDED_BY(mu_);
  std::optional<Status> written_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
};

Health::~Health() = default;

Endpoint::UnaryHandler Health::CheckHandler() {
  return [this](IncomingCall call) {
    const std::optional<std::string> service = ServiceIn(call.request());
    if (!service.has_value())
      return call.Reply(absl::InvalidArgumentError("not a HealthCheckRequest"));
    const Status status = StatusOf(*service);
    if (status == Status::kServiceUnknown) {
      return call.Reply(absl::NotFoundError(absl::StrCat(
          "no service ", absl::CHexEscape(service->substr(0, 256)))));
    }
    call.Reply(Encode(status));
  };
}

Endpoint::StreamAcceptor Health::WatchAcceptor() {
  return [this](std::unique_ptr<Stream> stream) {
    return std::make_shared<Watcher>(*this, std::move(stream));
  };
}

void Health::SetServices(std::set<std::string> services) {
  MutexLock lock(mu_);
  services_ = std::move(services);
}

void Health::SetServing(bool serving) {
  {
    MutexLock lock(mu_);
    serving_ = serving;
  }
  ForEachWatcher([](Watcher& watcher) { watcher.Update(); });
}

void Health::Stop() {
  SetServing(false);
  ForEachWatcher([](Watcher& watcher) { watcher.End(absl::OkStatus()); });
}

Health::Status Health::StatusOf(const std::string& service) {
  MutexLock lock(mu_);
  if (!service.empty() && services_.count(service) == 0)
    return Status::kServiceUnknown;
  return serving_ ? Status::kServing : Status::kNotServing;
}

void Health::AddWatcher(std::weak_ptr<Watcher> watcher) {
  MutexLock lock(mu_);
  std::vector<std::weak_ptr<Watcher>> alive;
  for (std::weak_ptr<Watcher>& known : watchers_) {
    if (!known.expired()) alive.push_back(std::move(known));
  }
  alive.push_back(std::move(watcher));
  watchers_ = std::move(alive);
}

void Health::ForEachWatcher(absl::FunctionRef<void(Watcher&)> fn) {
  std::vector<std::weak_ptr<Watcher>> watchers;
  {
    MutexLock lock(mu_);
    watchers = watchers_;
  }
  for (const std::weak_ptr<Watcher>& known : watchers) {
    if (const auto watcher = known.lock()) fn(*watcher);
  }
}

}  // namespace weft::net
