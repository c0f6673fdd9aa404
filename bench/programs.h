// Programs: benchmarks and rivals as processes, and the figures that they
// print.
//
// A program prints a figure as a line "name<TAB>value".

#ifndef WEFT_BENCH_PROGRAMS_H_
#define WEFT_BENCH_PROGRAMS_H_

#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::bench {

using Figures = std::map<std::string, double>;

// What `command` of the shell prints; nothing if it fails. Its standard error
// is dropped.
Figures RunProgram(const std::string& command);

// What the client prints. `server` is a command whose first line of output is
// its address; it is killed once the client has ended. `client` makes the
// command of the client from that address. Nothing if one of them fails.
Figures RunServerAndClient(
    const std::string& server,
    const std::function<std::string(const std::string& address)>& client);

// A program that is asked and answers, one line each.
//
// Thread-safety: one thread at a time.
class Dialogue {
 public:
  // Starts `command`, the program's path and its arguments; what it writes to
  // standard error is dropped.
  explicit Dialogue(const std::vector<std::string>& command);
  // Closes its input, and waits until it ends.
  ~Dialogue();
  Dialogue(const Dialogue&) = delete;
  Dialogue& operator=(const Dialogue&) = delete;

  // Its next line, without the line's end; nothing if it has ended.
  std::optional<std::string> Read();
  // Read() once it has got `line`.
  std::optional<std::string> Ask(const std::string& line);

 private:
  int pid_ = -1;
  FILE* socket_ = nullptr;  // owned
};

std::optional<double> Find(const Figures& figures, const std::string& name);

// 0 of no values.
double Median(std::vector<double> values);

// The median of a figure over rounds; nothing if a round lacks it.
std::optional<double> Median(const std::vector<Figures>& rounds,
                             const std::string& name);

// A directory of this process under /tmp, removed with all that is in it.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }
  // A path in it that no earlier call has returned.
  std::string NewPath();

 private:
  std::string path_;
  int paths_ = 0;
};

}  // namespace weft::bench

#endif  // WEFT_BENCH_PROGRAMS_H_
