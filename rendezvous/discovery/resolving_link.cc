// ResolvingLink: see the header.

#include "weft/rendezvous/discovery/resolving_link.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"

namespace weft::rendezvous {
namespace {

using Find = std::function<Future<std::string>()>;
using Connect = std::function<absl::StatusOr<std::unique_ptr<CoordinatorLink>>(
    const std::string&)>;

bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsNotFound(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

// State shared by the link and the callbacks of its calls.
class Finding : public std::enable_shared_from_this<Finding> {
 public:
  Finding(std::string where, Driver& driver, Find find, Connect connect)
      : where_(std::move(where)),
        driver_(driver),
        find_(std::move(find)),
        connect_(std::move(connect)) {}

  const std::string& where() const { return where_; }

  Future<std::string> Call(absl::string_view method, std::string request,
                           absl::Duration timeout) {
    std::shared_ptr<CoordinatorLink> link;
    absl::Status why;
    bool look = false;
    {
      MutexLock lock(mu_);
      link = link_;
      why = why_not_;
      // A coordinator that was found once is looked for until it is back.
      look = is_in_doubt_ && !is_looking_ &&
             (link_ != nullptr || MayPass(why_not_));
      if (look) is_looking_ = true;
    }
    if (look) Look();
    if (link == nullptr) return MakeReady<std::string>(std::move(why), driver_);
    Future<std::string> reply = link->Call(method, std::move(request), timeout);
    reply.OnReady([weak = weak_from_this(),
                   link](const absl::StatusOr<std::string>& answer) {
      const auto self = weak.lock();
      // No call is held for as long as its time-out.
      const bool is_silent = absl::IsUnavailable(answer.status()) ||
                             absl::IsDeadlineExceeded(answer.status());
      if (self == nullptr || !is_silent) return;
      MutexLock lock(self->mu_);
      // It may be starting again where it was, or elsewhere.
      if (self->link_ == link) self->is_in_doubt_ = true;
    });
    return reply;
  }

 private:
  void Look() {
    find_().OnReady(
        [weak = weak_from_this()](const absl::StatusOr<std::string>& found) {
          if (const auto self = weak.lock()) self->OnFound(found);
        });
  }

  void OnFound(const absl::StatusOr<std::string>& found) {
    std::shared_ptr<CoordinatorLink> old;  // ends outside of the lock
    MutexLock lock(mu_);
    is_looking_ = false;
    if (!found.ok()) {
      why_not_ =
          absl::Status(MayPass(found.status()) ? absl::StatusCode::kUnavailable
                                               : found.status().code(),
                       absl::StrCat(where_, ": ", found.status().message()));
      return;
    }
    is_in_doubt_ = false;
    if (link_ != nullptr && *found == link_->address()) return;
    auto link = connect_(*found);
    if (link.ok()) {
      old = std::exchange(link_, *std::move(link));
    } else {
      is_in_doubt_ = true;
      why_not_ = link.status();
    }
  }

  const std::string where_;
  Driver& driver_;
  const Find find_;
  const Connect connect_;
  Mutex mu_;
  std::shared_ptr<CoordinatorLink> link_ ABSL_GUARDED_BY(mu_);
  bool is_in_doubt_ ABSL_GUARDED_BY(mu_) = true;
  bool is_looking_ ABSL_GUARDED_BY(mu_) = false;
  // While there is no link.
  absl::Status why_not_ ABSL_GUARDED_BY(mu_) =
      absl::UnavailableError("the coordinator has yet to be found");
};

class ResolvingLink final : public CoordinatorLink {
 public:
  explicit ResolvingLink(std::shared_ptr<Finding> finding)
      : finding_(std::move(finding)) {}

  Future<std::string> Call(absl::string_view method, std::string request,
                           absl::Duration timeout) override {
    return finding_->Call(method, std::move(request), timeout);
  }
  const std::string& address() const override { return finding_->where(); }

 private:
  const std::shared_ptr<Finding> finding_;
};

}  // namespace

std::unique_ptr<CoordinatorLink> MakeResolvingLink(std::string where,
                                                   Driver& driver, Find find,
                                                   Connect connect) {
  return std::make_unique<ResolvingLink>(std::make_shared<Finding>(
      std::move(where), driver, std::move(find), std::move(connect)));
}

}  // namespace weft::rendezvous
