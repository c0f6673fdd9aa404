#include "weft/telemetry/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/telemetry/field_json.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/stderr_line.h"

namespace weft::telemetry {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(30);
constexpr absl::Duration kTerminalPeriod = absl::Milliseconds(100);
constexpr size_t kMaxPoints = 300;
constexpr char kGreen[] = "\x1b[32m";
constexpr char kPlain[] = "\x1b[0m";

Progress::Style Resolve(const Progress::Options& options) {
  if (options.style != Progress::Style::kAuto) return options.style;
  if (options.output == nullptr && StderrFormat() == LogFormat::kJson) {
    return Progress::Style::kJson;
  }
  const bool to_terminal = options.output == nullptr && isatty(STDERR_FILENO);
  return to_terminal ? Progress::Style::kTerminal : Progress::Style::kLines;
}

size_t WidthFor(const Progress::Options& options) {
  if (options.width > 0) return options.width;
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  return 80;
}

}  // namespace

Progress::Progress(Options options)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? *options_.clock : SteadyClock()),
      out_(options_.output != nullptr ? *options_.output : std::cerr),
      style_(Resolve(options_)),
      color_(options_.color.value_or(std::getenv("NO_COLOR") == nullptr)),
      width_(WidthFor(options_)) {}

Progress::~Progress() { Finish(); }

void Progress::Update(int64_t done, int64_t total, std::optional<double> loss) {
  if (style_ == Style::kQuiet) return;
  const Instant now = clock_.Now();
  MutexLock lock(mu_);
  // Another round of the same work begins anew.
  if (!window_.empty() && done < window_.back().done) window_.clear();
  done_ = done;
  total_ = total;
  if (loss.has_value()) loss_ = loss;
  // A point for each tenth of a second is enough; the newest is always exact.
  if (window_.size() >= 2 &&
      now - window_[window_.size() - 2].at < kWindow / kMaxPoints) {
    window_.back() = {now, done};
  } else {
    window_.push_back({now, done});
  }
  while (window_.size() > 2 && now - window_[1].at >= kWindow) {
    window_.pop_front();
  }
  is_shown_ = false;
  const absl::Duration period =
      style_ == Style::kTerminal ? kTerminalPeriod : options_.period;
  if (!shown_at_.has_value() || now - *shown_at_ >= period) Show(now);
}

void Progress::Finish() {
  MutexLock lock(mu_);
  if (!is_shown_) Show(clock_.Now());
  if (line_length_ > 0) out_ << "\n" << std::flush;
  line_length_ = 0;
}

void Progress::Show(Instant now) {
  shown_at_ = now;
  is_shown_ = true;
  if (style_ == Style::kTerminal) {
    ShowOnTerminal(TextLine());
  } else {
    out_ << (style_ == Style::kJson ? JsonLine() : TextLine()) << "\n"
         << std::flush;
  }
}

void Progress::ShowOnTerminal(const std::string& line) {
  // The last column stays free: some terminals wrap when it is filled.
  std::string cut = line.substr(0, width_ - 1);
  const size_t length = cut.size();
  // Spaces wipe what is left of a longer line without an escape sequence.
  if (length < line_length_) cut.append(line_length_ - length, ' ');
  out_ << "\r" << (color_ ? kGreen : "") << cut << (color_ ? kPlain : "")
       << std::flush;
  line_length_ = length;
}

std::string Progress::TextLine() const {
  std::string line = options_.label;
  if (total_ > 0) {
    absl::StrAppendFormat(&line, " %3d%% %d/%d %s",
                          static_cast<int>(100.0 * done_ / total_), done_,
                          total_, options_.unit);
  } else {
    absl::StrAppendFormat(&line, " %d %s", done_, options_.unit);
  }
  if (Rate() > 0) {
    // No exponents.
    absl::StrAppendFormat(&line, "  %s %s/s",
                          Rate() < 1000 ? absl::StrFormat("%.4g", Rate())
                                        : absl::StrFormat("%.0f", Rate()),
                          options_.unit);
  }
  if (Remaining() > absl::ZeroDuration()) {
    absl::StrAppend(&line, "  ETA ", absl::FormatDuration(Remaining()));
  }
  if (loss_.has_value()) absl::StrAppendFormat(&line, "  loss %.4f", *loss_);
  if (exposed_.has_value()) {
    absl::StrAppendFormat(&line, "  communication not hidden %.0f %%",
                          100 * *exposed_);
  }
  return line;
}

std::string Progress::JsonLine() const {
  nlohmann::ordered_json line = {{"progress", options_.label},
                                 {"done", done_},
                                 {"total", total_},
                                 {"unit", options_.unit},
                                 {"rate_per_s", Rate()}};
  if (Remaining() >= absl::ZeroDuration()) {
    line["eta_s"] = absl::ToDoubleSeconds(Remaining());
  }
  if (loss_.has_value()) line["loss"] = ToJson(Field("loss", *loss_).value);
  if (exposed_.has_value()) line["exposed_share"] = *exposed_;
  return DumpLine(line);
}

void Progress::SetExposedShare(double share) {
  MutexLock lock(mu_);
  exposed_ = share;
}

double Progress::Rate() const {
  if (window_.empty()) return 0;
  const Point& first = window_.front();
  const Point& last = window_.back();
  const double seconds = absl::ToDoubleSeconds(last.at - first.at);
  return seconds > 0 ? (last.done - first.done) / seconds : 0;
}

absl::Duration Progress::Remaining() const {
  if (total_ <= 0 || Rate() <= 0) return -absl::Seconds(1);
  return absl::Seconds(std::ceil((total_ - done_) / Rate()));
}

}  // namespace weft::telemetry
