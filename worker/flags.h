// Flags: a program's settings, from its command line, its environment and a
// file.
//
//   Flags flags("trainer", "Trains a model with parameter servers.");
//   flags.Add("epochs", &epochs, "passes over the data");
//   ExitIfError(flags.Parse(argc, argv));
//
// A flag overrides the environment, which overrides the file (--config=FILE,
// with lines `name = value`), which overrides the default. Names may be written
// with '-' or '_', values as --name=value or --name value, switches as --name
// or --no-name.

#ifndef WEFT_WORKER_FLAGS_H_
#define WEFT_WORKER_FLAGS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace weft::worker {

class CommandLine;

// Thread-safety: one thread at a time.
class Flags {
 public:
  Flags(std::string program, std::string about);

  // `target` holds the default, and after Parse the value; it must live until
  // then. `environment` names variables, of which the first that is set counts.
  void Add(std::string name, std::string* target, std::string help,
           std::vector<std::string> environment = {});
  void Add(std::string name, int* target, std::string help,
           std::vector<std::string> environment = {});
  void Add(std::string name, int64_t* target, std::string help,
           std::vector<std::string> environment = {});
  void Add(std::string name, uint64_t* target, std::string help,
           std::vector<std::string> environment = {});
  void Add(std::string name, double* target, std::string help,
           std::vector<std::string> environment = {});
  void Add(std::string name, absl::Duration* target, std::string help,
           std::vector<std::string> environment = {});
  // A switch: --name, --no-name, --name=true.
  void Add(std::string name, bool* target, std::string help,
           std::vector<std::string> environment = {});

  // A value of a type of the caller's own. `set` returns what is wrong with the
  // text, in words such as "wanted text or json".
  using Setter = std::function<absl::Status(const std::string& text)>;
  void AddWith(std::string name, Setter set, std::string default_text,
               std::string help, std::vector<std::string> environment = {});
  // Given any number of times: `set` runs for each, in order.
  void AddRepeated(std::string name, Setter set, std::string help);

  // Sets the targets. --help and --version print and end the program with 0.
  // kInvalidArgument, with exit code 2: an unknown flag (it names the nearest
  // known one) or a value that cannot be read; with exit code 3: the same in
  // the environment or the file.
  absl::Status Parse(int argc, const char* const* argv);

  // The same, but removes the known flags from the command line and leaves the
  // rest, unknown flags included, to the caller.
  absl::Status ParseKnown(int* argc, char** argv);

  // Allows positional arguments; without it they are an error. `name` is for
  // --help: "PROGRAM ARGS". All words after the first positional one are
  // positional, unless `anywhere`.
  void AllowPositional(std::string name, bool anywhere = false);
  const std::vector<std::string>& positional() const { return positional_; }

  // After parsing, variables of the environment that begin with `prefix` and
  // belong to no flag, nor are among `read_elsewhere`, cause a warning on
  // standard error: they may be misspelt.
  void WarnOfUnknown(std::string prefix,
                     std::vector<std::string> read_elsewhere) {
    prefix_ = std::move(prefix);
    read_elsewhere_ = std::move(read_elsewhere);
  }

  // Where the value of `name` came from: "flag", "environment RANK", "file F"
  // or "default".
  std::string Origin(const std::string& name) const;

  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string help;
    std::string default_text;
    std::vector<std::string> environment;
    Setter set;
    bool is_switch = false;
    bool is_repeated = false;
    std::vector<std::string> given;  // on the command line
    std::string origin = "default";
  };

  void Describe(CommandLine& line) const;
  Flag* Find(const std::string& name);
  void AddFlag(Flag flag);
  // "--a_b=C_D" as "--a-b=C_D"; words that are no flags as they are.
  std::string Normalised(const std::string& argument) const;
  // Null: there is none of this name.
  const Flag* Find(const std::string& name) const;
  absl::Status CheckValues(const std::vector<std::string>& arguments) const;
  absl::Status Read(const std::vector<std::string>& arguments,
                    bool keep_unknown, std::vector<std::string>* unknown);
  absl::Status Settle();
  void WarnOfUnknown() const;
  void SetFormOfErrors(const std::vector<std::string>& arguments) const;
  absl::Status ReadFile(const std::string& path);
  absl::Status Unknown(const std::string& name, const std::string& where) const;

  const std::string program_;
  const std::string about_;
  std::string config_path_;
  std::string prefix_;  // of variables that are ours; empty: none is
  std::vector<std::string> read_elsewhere_;
  std::string positional_name_;
  bool positional_anywhere_ = false;
  std::vector<Flag> flags_;
  std::vector<std::string> positional_;
};

// The name among `known` that `name` was most likely meant to be; empty if
// none is near.
std::string NearestName(const std::string& name,
                        const std::vector<std::string>& known);

}  // namespace weft::worker

#endif  // WEFT_WORKER_FLAGS_H_
