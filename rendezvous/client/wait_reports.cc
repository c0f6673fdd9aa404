// WaitReports: see the header.

#include "weft/rendezvous/client/wait_reports.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace weft::rendezvous {
namespace {

constexpr absl::Duration kReportAfter = absl::Seconds(2);

}  // namespace

std::string WordOf(absl::string_view name) {
  constexpr size_t kLongest = 200;
  std::string text(name.substr(0, kLongest));
  for (char& c : text) {
    if (!absl::ascii_isgraph(c) || c == '"' || c == '\\') c = '?';
  }
  return absl::StrCat(text, name.size() > kLongest ? "..." : "");
}

WaitReports::WaitReports(const WaitReport& report, std::string what,
                         Instant now)
    : report_(report),
      what_(std::move(what)),
      since_(now),
      due_(report == nullptr ? Instant::Infinite() : now + kReportAfter) {}

void WaitReports::OnTime(Instant now, absl::string_view why) {
  if (now < due_) return;
  while (due_ <= now) due_ = since_ + 2 * (due_ - since_);
  has_reported_ = true;
  report_(absl::StrCat(Head(" still waits after ", now), ": ", why));
}

void WaitReports::End(Instant now, const absl::Status& status) {
  if (!has_reported_) return;
  const std::string code =
      status.ok()
          ? ""
          : absl::StrCat(" (", absl::StatusCodeToString(status.code()), ")");
  report_(absl::StrCat(Head(" no longer waits, after ", now), code));
}

std::string WaitReports::Head(absl::string_view verb, Instant now) const {
  return absl::StrCat(
      what_, verb,
      absl::FormatDuration(absl::Trunc(now - since_, absl::Milliseconds(100))));
}

}  // namespace weft::rendezvous
