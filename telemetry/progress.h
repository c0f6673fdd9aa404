// Progress: how far a long operation is: one line that is renewed on a
// terminal, a new line every ten seconds elsewhere.
//
//   training  42% 25200/60000 samples  1873 samples/s  ETA 19s  loss 0.3121

#ifndef WEFT_TELEMETRY_PROGRESS_H_
#define WEFT_TELEMETRY_PROGRESS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <ostream>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"

namespace weft::telemetry {

// Thread-safety: thread-safe.
class Progress {
 public:
  enum class Style {
    kAuto,      // kJson with --log=json; else kTerminal if standard error is
                // a terminal, else kLines
    kTerminal,  // one line, renewed at most ten times a second
    kLines,     // one line every `period`
    kJson,      // one JSON object every `period`
    kQuiet,     // nothing
  };
  struct Options {
    std::string label = "training";
    std::string unit = "samples";
    Style style = Style::kAuto;
    absl::Duration period = absl::Seconds(10);
    // Columns of the terminal; 0 asks it. A line is cut rather than wrapped.
    int width = 0;
    std::ostream* output = nullptr;  // null is standard error
    const Clock* clock = nullptr;    // null is SteadyClock()
    // Colour on a terminal; unset: unless NO_COLOR is set.
    std::optional<bool> color;
  };

  explicit Progress(Options options);
  ~Progress();  // ends an open line of the terminal
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of `total` units; a total of 0 is unknown. The rate is that of the
  // last 30 s, counted from the first update, so that a resumed run is not
  // credited with what an earlier one did.
  void Update(int64_t done, int64_t total, std::optional<double> loss = {})
      ABSL_LOCKS_EXCLUDED(mu_);

  // Shown with the following updates: the share of communication for which a
  // step waited, from 0 to 1.
  void SetExposedShare(double share) ABSL_LOCKS_EXCLUDED(mu_);

  // Shows the last update if it was not shown yet, and ends the line.
  void Finish() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Point {
    Instant at;
    int64_t done;
  };

  void Show(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ShowOnTerminal(const std::string& line)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string TextLine() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string JsonLine() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Units per second; 0 while there are too few updates.
  double Rate() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The time until `total` is reached; negative if unknown.
  absl::Duration Remaining() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const Clock& clock_;
  std::ostream& out_;
  const Style style_;
  const bool color_;
  const size_t width_;
  Mutex mu_;
  std::deque<Point> window_ ABSL_GUARDED_BY(mu_);
  int64_t done_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t total_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<double> loss_ ABSL_GUARDED_BY(mu_);
  std::optional<double> exposed_ ABSL_GUARDED_BY(mu_);
  std::optional<Instant> shown_at_ ABSL_GUARDED_BY(mu_);
  bool is_shown_ ABSL_GUARDED_BY(mu_) = true;    // the last update
  size_t line_length_ ABSL_GUARDED_BY(mu_) = 0;  // of the open line
};

}  // namespace weft::telemetry

#endif  // WEFT_TELEMETRY_PROGRESS_H_
