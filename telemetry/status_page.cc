#include "weft/telemetry/status_page.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/start_thread.h"
#include "weft/base/steady_deadline.h"
#include "weft/telemetry/field_json.h"

namespace weft::telemetry {

// One section and the call of it that may be running. Its thread holds a
// share, so that it outlives a page that gave up on it.
struct StatusPage::Registration::Entry {
  Entry(std::string name, Section section)
      : name(std::move(name)), section(std::move(section)) {}

  // Starts a call unless one runs already.
  void Start(const std::shared_ptr<Entry>& self) ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(mu);
    if (running || released) return;
    running = true;
    answer = absl::UnknownError("not answered");
    absl::StatusOr<std::thread> thread =
        StartThread("the status page", [self] { self->Call(); });
    if (thread.ok()) return thread->detach();
    running = false;
    answer = thread.status();
  }

  void Call() ABSL_LOCKS_EXCLUDED(mu) {
    absl::StatusOr<Fields> said = CatchToStatus([this] { return section(); });
    MutexLock lock(mu);
    answer = std::move(said);
    running = false;
    changed.NotifyAll();
  }

  // The answer, or kDeadlineExceeded while the section is busy.
  absl::StatusOr<Fields> Await(std::chrono::steady_clock::time_point deadline)
      ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(mu);
    while (running) {
      if (!changed.WaitUntil(mu, deadline) && running) {
        return absl::DeadlineExceededError("busy: it has not answered in time");
      }
    }
    return answer;
  }

  void Release() ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(mu);
    released = true;
    while (running) changed.Wait(mu);
    section = nullptr;
  }

  const std::string name;
  Section section;  // called while `running`, cleared once that has ended
  Mutex mu;
  CondVar changed;
  bool running ABSL_GUARDED_BY(mu) = false;
  bool released ABSL_GUARDED_BY(mu) = false;
  absl::StatusOr<Fields> answer ABSL_GUARDED_BY(mu);
};

struct StatusPage::Answer {
  std::string name;
  absl::StatusOr<Fields> fields;
};

StatusPage::Registration& StatusPage::Registration::operator=(
    Registration&& other) noexcept {
  if (this == &other) return *this;
  Release();
  page_ = other.page_;
  entry_ = std::move(other.entry_);
  return *this;
}

void StatusPage::Registration::Release() {
  if (entry_ == nullptr) return;
  {
    MutexLock lock(page_->mu_);
    auto& entries = page_->entries_;
    entries.erase(std::find(entries.begin(), entries.end(), entry_));
  }
  entry_->Release();
  entry_ = nullptr;
}

StatusPage::Registration StatusPage::Register(std::string name,
                                              Section section) {
  Registration registration;
  if (!enabled_) return registration;
  registration.page_ = this;
  registration.entry_ =
      std::make_shared<Entry>(std::move(name), std::move(section));
  MutexLock lock(mu_);
  const auto after = std::upper_bound(
      entries_.begin(), entries_.end(), registration.entry_,
      [](const auto& a, const auto& b) { return a->name < b->name; });
  entries_.insert(after, registration.entry_);
  return registration;
}

std::vector<StatusPage::Answer> StatusPage::Ask(absl::Duration timeout) {
  const auto deadline = SteadyDeadline(timeout);
  std::vector<std::shared_ptr<Entry>> entries;
  {
    MutexLock lock(mu_);
    entries = entries_;
  }
  for (const auto& entry : entries) entry->Start(entry);
  std::vector<Answer> answers;
  for (const auto& entry : entries) {
    answers.push_back({entry->name, entry->Await(deadline)});
  }
  return answers;
}

std::string StatusPage::RenderJson(absl::Duration timeout) {
  nlohmann::ordered_json page;
  nlohmann::ordered_json& sections = page["sections"];
  sections = nlohmann::ordered_json::array();
  for (const Answer& answer : Ask(timeout)) {
    nlohmann::ordered_json section = {{"name", answer.name}};
    if (answer.fields.ok()) {
      section["fields"] = ToJson(*answer.fields);
    } else {
      section["error"] = answer.fields.status().ToString();
    }
    sections.push_back(std::move(section));
  }
  return DumpLine(page);
}

std::string StatusPage::RenderText(absl::Duration timeout) {
  std::string page;
  for (const Answer& answer : Ask(timeout)) {
    absl::StrAppend(&page, Printable(answer.name), "\n");
    if (!answer.fields.ok()) {
      absl::StrAppend(&page,
                      "  error: ", Printable(answer.fields.status().ToString()),
                      "\n");
      continue;
    }
    for (const Field& field : *answer.fields) {
      absl::StrAppend(&page, "  ", ToText(field), "\n");
    }
  }
  return page;
}

}  // namespace weft::telemetry
