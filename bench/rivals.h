// Rivals: where the programs are that Weft is measured beside.
//
// They are found from wherever a bench program is started: scripts among the
// files that Bazel lays beside it, programs in its own folder. One that needs a
// package which not everybody has is built here, when it is first asked for.

#ifndef WEFT_BENCH_RIVALS_H_
#define WEFT_BENCH_RIVALS_H_

#include <string>

namespace weft::bench {

// The path of the program that runs.
std::string OwnPath();

// The program //bench:`name`, which stands beside this one.
std::string ProgramPath(const std::string& name);

// bench/peers/`name`.
std::string ScriptPath(const std::string& name);

// The program //bench:`name`, built by Bazel if the workspace is at hand. Empty
// if it needs `header` (an absolute path) and that is absent, or it cannot be
// built; then one line on standard error says that `rival` is absent and how to
// get it.
std::string BuildProgram(const std::string& name, const std::string& rival,
                         const std::string& header);

// Whether Debian's Python finds `module`; if not, one line on standard error
// says that `rival` is absent and how to get it.
bool HasPythonModule(const std::string& module, const std::string& rival);

}  // namespace weft::bench

#endif  // WEFT_BENCH_RIVALS_H_
