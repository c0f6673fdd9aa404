// clumsy: a trainer program around train::Run that misuses it as --misuse says,
// on rank --who alone if that is given.

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/autograd/ops/loss.h"
#include "weft/base/status_macros.h"
#include "weft/tests/outside/train/toy.h"
#include "weft/train/run.h"
#include "weft/train/stop_signal.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"

namespace {

using weft::outside::Toy;
using weft::outside::ToyOptions;
using weft::train::Result;

struct Misuse {
  std::string what;   // empty: none
  int who = -1;       // -1: every rank
  std::string until;  // the file whose coming ends a pause
};

void Say(const std::string& words) {
  std::printf("%s\n", words.c_str());
  std::fflush(stdout);
}

// Waits at most a minute; says once that it was asked to stop.
void Pause(const Misuse& misuse) {
  bool has_said = false;
  for (int i = 0; i < 6000 && !std::filesystem::exists(misuse.until); ++i) {
    if (weft::train::AskedToStop() && !has_said) Say("asked to stop");
    has_said = weft::train::AskedToStop();
    absl::SleepFor(absl::Milliseconds(10));
  }
}

absl::StatusOr<Result> Train(weft::train::Job& job, const Misuse& misuse) {
  const std::string& what = misuse.what;
  if (what == "none of it") return Result{};
  if (what == "throw") throw std::runtime_error("out of luck");
  if (what == "throw a number") throw 7;
  if (what == "fail") return absl::ResourceExhaustedError("out of luck");
  if (what == "stopped by nobody") {
    Result result;
    result.was_stopped = true;
    return result;
  }
  if (what == "not saved") {
    Result result;
    result.saved = absl::ResourceExhaustedError("out of disk");
    return result;
  }
  if (what == "pause before the group") {
    Say("pauses");
    Pause(misuse);
  }
  WEFT_ASSIGN_OR_RETURN(const auto group, job.JoinGroup());
  Toy toy(*group, ToyOptions{});
  WEFT_ASSIGN_OR_RETURN(auto parts, toy.Parts());
  if (what == "pause in the score") {
    parts.score = [&]() -> absl::StatusOr<double> {
      Say("pauses");
      Pause(misuse);
      return 0.5;
    };
  }
  WEFT_ASSIGN_OR_RETURN(const auto training,
                        weft::train::DataParallelTraining::Create(
                            *group, job.telemetry(), parts, job.options()));
  WEFT_RETURN_IF_ERROR(toy.Loop(*training, [&] {
    if (what == "pause in a step" && training->steps() == 1) {
      Say("pauses");
      Pause(misuse);
    }
    if (what == "die" && training->steps() == 2) std::_Exit(9);
    return absl::OkStatus();
  }));
  WEFT_ASSIGN_OR_RETURN(const Result result, training->Finish());
  Say("steps " + std::to_string(training->steps()));
  return result;
}

absl::Status RunOnce(const weft::worker::Options& worker,
                     const weft::train::Options& training,
                     const Misuse& misuse) {
  return weft::train::Run(
      worker, training,
      [&](weft::train::Job& job) { return Train(job, misuse); },
      [&](const Result& result) -> absl::Status {
        if (misuse.what == "fail in print")
          return absl::ResourceExhaustedError("no paper");
        if (misuse.what == "throw in print")
          throw std::runtime_error("no paper");
        Say(result.was_stopped ? "printed: stopped" : "printed: complete");
        return absl::OkStatus();
      });
}

}  // namespace

int main(int argc, char** argv) {
  weft::worker::Options worker;
  weft::train::Options training;
  Misuse misuse;
  weft::worker::Flags flags("clumsy", "Misuses the library.");
  worker.AddTo(flags);
  training.AddTo(flags);
  flags.Add("misuse", &misuse.what, "what to do wrong");
  flags.Add("who", &misuse.who, "which rank does it");
  flags.Add("until", &misuse.until, "the file that ends a pause");
  weft::ExitIfError(flags.Parse(argc, argv));
  if (misuse.who != -1 && misuse.who != worker.rank) misuse.what.clear();
  if (misuse.what == "be a server") {
    worker.role = "ps";
    worker.servers = 1;
  }
  if (misuse.what == "other settings") {
    training.settings.common = {{"--lr", std::to_string(worker.rank)}};
  }
  weft::ExitIfError(worker.Resolve());
  if (misuse.what != "resolve nothing")
    weft::ExitIfError(training.Resolve(worker));
  if (misuse.what == "run twice")
    weft::ExitIfError(RunOnce(worker, training, misuse));
  weft::ExitIfError(RunOnce(worker, training, misuse));
}
