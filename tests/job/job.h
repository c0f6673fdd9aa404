// Job: the real programs as processes, on a data set that the test writes.
//
//   Job job;
//   auto servers = job.StartServers();
//   auto trainers = job.StartTrainers({"--epochs=2"});
//   EXPECT_THAT(trainers[0]->Wait(kLong), IsOkAndHolds(0));
//   EXPECT_GT(ResultOf(*trainers[0]).test_accuracy, 0.9);

#ifndef WEFT_TESTS_JOB_JOB_H_
#define WEFT_TESTS_JOB_JOB_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {

// Longer than anything takes that does what it should, on a busy machine.
inline constexpr absl::Duration kLong = absl::Seconds(100);

// For a training that is to outlast whatever a test does to it: no number of
// epochs is both enough for that on any machine and soon over. The test ends it
// by Stop, and compares the last whole epoch with an undisturbed training of as
// many.
inline constexpr char kForLong[] = "--epochs=100000";
// A stop saves in the middle of an epoch, more than once where the trainers are
// told at different times: that pushes no whole epoch out.
inline constexpr char kKeepSome[] = "--keep=9";

using Flags = std::vector<std::string>;
using Processes = std::vector<std::unique_ptr<Process>>;

// The result line of a trainer.
struct TrainerResult {
  double test_accuracy = -1;
  double samples_per_s = -1;
  std::string checkpoint;
  bool is_interrupted = false;
};

// A job of `servers` parameter servers and `trainers` trainers, with a folder
// for its sockets, its data and its checkpoints. What is set here counts for
// those that are started afterwards.
class Job {
 public:
  // The data has 256 images to train on, 100 to test, 8x8, 10 classes.
  static constexpr int64_t kTrainImages = 256;
  static constexpr int64_t kBatch = 16;  // of each trainer

  Job();

  int servers = 2;
  int trainers = 2;
  std::string name = "job";
  std::string coordinator;  // a socket in the folder
  std::string data;         // in the folder
  Flags flags;              // of every worker

  std::string Path(const std::string& file) const { return dir_.Path(file); }

  // A program that cannot be started fails the test and ends it.
  std::unique_ptr<Process> StartServer(int rank, const Flags& more = {}) const;
  std::unique_ptr<Process> StartTrainer(int rank, const Flags& more = {}) const;
  Processes StartServers(const Flags& more = {}) const;
  Processes StartTrainers(const Flags& more = {}) const;

  // The command line of a worker, for those who start it otherwise.
  Flags ServerCommand(int rank, const Flags& more = {}) const;
  Flags TrainerCommand(int rank, const Flags& more = {}) const;

  // Runs all of them to their end, which must be exit code 0 for each.
  TrainerResult Train(const Flags& trainer_flags) const;

 private:
  Flags Command(const std::string& program, int rank) const;

  TempDir dir_;
};

// Starts `argv`; a program that cannot be started ends the test program.
std::unique_ptr<Process> StartProcess(Flags argv);

// The process of worker `rank` of `role` (ps, trainer, coordinator) that `run`,
// a `weft run`, has started; -1: it is not there.
pid_t FindWorker(const Process& run, const std::string& role, int rank);

// Kills that worker, and waits until `run` has another in its place.
void KillWorker(const Process& run, const std::string& role, int rank);

// Waits until `trainer` of the elastic job `run`, such as "trainer1", takes
// part again, or resumes, after it has ended for the `times`-th time.
void AwaitBack(const Process& run, const std::string& trainer, int times = 1);

// The path of bin/weft, bin/trainer and so on.
std::string Program(const std::string& name);

// The result of a trainer that has ended. A result that is not one JSON object
// with these names fails the test.
TrainerResult ResultOf(const Process& trainer);

// A port of 127.0.0.1 that was free a moment ago: for addresses that several
// must know.
int FreePort();

// The bytes of the file `path`.
std::string ReadBytes(const std::string& path);
void WriteBytes(const std::string& path, const std::string& bytes);

// Committed checkpoints in `directory`, oldest first.
std::vector<std::string> Checkpoints(const std::string& directory);

// The step of a checkpoint, which its name or path tells.
int64_t StepOf(const std::string& checkpoint);

// The newest checkpoint in `directory` that is the end of an epoch.
struct Epochs {
  int count = 0;             // 0: there is none
  std::string checkpoint;    // its path
  std::string flag() const;  // --epochs=count
};
Epochs WholeEpochs(const std::string& directory, int64_t steps_of_epoch);

// Waits until `directory` has the end of an epoch that began after this call.
// If none comes the test fails with the output of `job`.
void AwaitWholeEpoch(const Process& job, const std::string& directory,
                     int64_t steps_of_epoch);

// Asks `job` to stop, a process that trains or `weft run`: it must end by that.
void Stop(Process& job);

}  // namespace weft::testing

#endif  // WEFT_TESTS_JOB_JOB_H_
