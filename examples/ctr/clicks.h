// Clicks: what the recommender learns from, W-CTR-v1 or a file of Criteo's
// form. Both are a Dataset of {keys i64 [26], dense f32 [13], label f32 []}.

#ifndef WEFT_EXAMPLES_CTR_CLICKS_H_
#define WEFT_EXAMPLES_CTR_CLICKS_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "weft/input/criteo.h"
#include "weft/weft.h"

namespace example {

struct ClickOptions {
  int64_t rows = 256000;      // to learn; 0: all of the file
  int64_t test_rows = 50000;  // W-CTR's test rows; of a file the last ones
  bool has_factors = false;   // W-CTR: the truth is a factorisation machine
  std::string criteo;         // path; empty: W-CTR-v1
  bool skip_bad_lines = false;

  void AddTo(weft::worker::Flags& flags) {
    flags.Add("rows", &rows, "rows to learn; 0: all of --criteo");
    flags.Add("test-rows", &test_rows, "rows to test on");
    flags.Add("factors", &has_factors,
              "W-CTR-v1 with a factorisation machine as its truth");
    flags.Add("criteo", &criteo,
              "a file of Criteo's form, gzipped or not, in place of W-CTR-v1");
    flags.Add("skip-bad-lines", &skip_bad_lines,
              "leave out lines that are not of that form");
  }

  // With ExitCode kUsage if a value cannot be.
  absl::Status Check() const {
    std::string wrong;
    if (rows < 0 || test_rows < 1) {
      wrong = absl::StrCat("--rows=", rows, ", --test-rows=", test_rows,
                           ": wanted 0 or more, and 1 or more");
    } else if (rows == 0 && criteo.empty()) {
      wrong =
          "--rows=0: W-CTR-v1 has no end; wanted --rows=N, or --criteo=FILE";
    } else {
      return absl::OkStatus();
    }
    return weft::worker::WithExitCode(absl::InvalidArgumentError(wrong),
                                      weft::worker::ExitCode::kUsage);
  }
};

struct Clicks {
  std::unique_ptr<const weft::input::Dataset> data;
  int64_t rows = 0;  // to learn: [0, rows)
  int64_t first_test = 0;
  int64_t test_rows = 0;

  // Rows [begin, end) as one batch.
  absl::StatusOr<weft::input::Example> Batch(int64_t begin, int64_t end) const {
    std::vector<int64_t> indices(end - begin);
    std::iota(indices.begin(), indices.end(), begin);
    return data->GetBatch(indices);
  }

  static absl::StatusOr<Clicks> Open(const ClickOptions& options) {
    namespace input = weft::input;
    WEFT_RETURN_IF_ERROR(options.Check());
    if (!options.criteo.empty()) return OpenFile(options);
    input::WCtrDataset::Options all;
    all.size = input::w_ctr::kFirstTestRow + options.test_rows;
    if (options.has_factors) {
      all.truth = input::w_ctr::Truth::kFactorizationMachine;
    }
    WEFT_ASSIGN_OR_RETURN(auto data, input::WCtrDataset::Create(all));
    return Clicks{std::make_unique<input::WCtrDataset>(std::move(data)),
                  options.rows, input::w_ctr::kFirstTestRow, options.test_rows};
  }

 private:
  static absl::StatusOr<Clicks> OpenFile(const ClickOptions& options) {
    weft::input::CriteoDataset::Options file;
    file.path = options.criteo;
    file.criteo.skip_bad_lines = options.skip_bad_lines;
    WEFT_ASSIGN_OR_RETURN(auto data, weft::input::CriteoDataset::Open(file));
    if (data.skipped() > 0) {
      std::fprintf(stderr, "%ld bad lines were left out, the first: %s\n",
                   static_cast<long>(data.skipped()),
                   data.first_skipped().c_str());
    }
    const int64_t there = data.size() - options.test_rows;
    const int64_t rows = options.rows == 0 ? there : options.rows;
    if (there < 1 || rows > there) {
      return absl::InvalidArgumentError(absl::StrCat(
          options.criteo, " has ", data.size(), " rows; wanted at least ",
          std::max<int64_t>(rows, 1), " to learn (--rows) and ",
          options.test_rows, " to test on (--test-rows)"));
    }
    const int64_t first_test = data.size() - options.test_rows;
    return Clicks{std::make_unique<weft::input::CriteoDataset>(std::move(data)),
                  rows, first_test, options.test_rows};
  }
};

}  // namespace example

#endif  // WEFT_EXAMPLES_CTR_CLICKS_H_
