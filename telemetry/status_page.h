// StatusPage: what each part of a rank says of itself, on demand.
//
// Owners register a section; the page knows none of them. It must work while
// the rank is stuck, so each section runs on a thread of its own: one that
// throws shows its error, one that does not answer in time is named as busy,
// and neither keeps the others from the page.

#ifndef WEFT_TELEMETRY_STATUS_PAGE_H_
#define WEFT_TELEMETRY_STATUS_PAGE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/telemetry/field.h"

namespace weft::telemetry {

// Thread-safety: thread-safe. Must outlive its registrations.
class StatusPage {
 public:
  using Section = std::function<Fields()>;

  // Takes the section off the page when it ends, having waited for a call of
  // it that still runs: afterwards nothing of the owner is used. So no lock
  // that the section takes may be held then.
  class Registration {
   public:
    Registration() = default;
    Registration(Registration&&) noexcept = default;
    Registration& operator=(Registration&& other) noexcept;
    ~Registration() { Release(); }
    void Release();

   private:
    friend class StatusPage;
    struct Entry;
    StatusPage* page_ = nullptr;
    std::shared_ptr<Entry> entry_;
  };

  explicit StatusPage(bool enabled = true) : enabled_(enabled) {}
  StatusPage(const StatusPage&) = delete;
  StatusPage& operator=(const StatusPage&) = delete;

  // Names need not be unique; sections appear by name.
  [[nodiscard]] Registration Register(std::string name, Section section)
      ABSL_LOCKS_EXCLUDED(mu_);

  // {"sections": [{"name", "fields": {...}} or {"name", "error"}]}, after at
  // most `timeout`.
  std::string RenderJson(absl::Duration timeout = absl::Seconds(1))
      ABSL_LOCKS_EXCLUDED(mu_);
  std::string RenderText(absl::Duration timeout = absl::Seconds(1))
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Entry = Registration::Entry;
  struct Answer;

  std::vector<Answer> Ask(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  const bool enabled_;
  Mutex mu_;
  std::vector<std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::telemetry

#endif  // WEFT_TELEMETRY_STATUS_PAGE_H_
