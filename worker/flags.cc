// Flags: see the header.

#include "weft/worker/flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/base/status_macros.h"
#include "weft/base/version.h"
#include "weft/telemetry/field.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/stderr_line.h"
#include "weft/worker/exit_code.h"

namespace weft::worker {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

absl::Status Wanted(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("wanted ", what));
}

template <typename Integer>
Flags::Setter IntegerSetter(Integer* target, const char* wanted) {
  return [target, wanted](const std::string& text) {
    if (absl::SimpleAtoi(text, target)) return absl::OkStatus();
    const size_t sign = text.rfind('-', 0) == 0 ? 1 : 0;
    const bool is_number =
        text.size() > sign &&
        text.find_first_not_of("0123456789", sign) == std::string::npos;
    if (!is_number) return Wanted(wanted);
    using Limits = std::numeric_limits<Integer>;
    return Wanted(
        absl::StrCat("an integer from ", Limits::min(), " to ", Limits::max()));
  };
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestName(const std::string& name,
                        const std::vector<std::string>& known) {
  std::string nearest;
  // Two changes leave little of a shorter name.
  size_t best =
      (name.size() < 4 ? 1 : std::max<size_t>(2, name.size() / 3)) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = EditDistance(name, candidate);
    if (distance >= best) continue;
    best = distance;
    nearest = candidate;
  }
  return nearest;
}

Flags::Flags(std::string program, std::string about)
    : program_(std::move(program)), about_(std::move(about)) {
  Add("config", &config_path_, "a file of lines `name = value`",
      {"WEFT_CONFIG"});
}

void Flags::Add(std::string name, std::string* target, std::string help,
                std::vector<std::string> environment) {
  AddWith(
      std::move(name),
      [target](const std::string& text) {
        *target = text;
        return absl::OkStatus();
      },
      *target, std::move(help), std::move(environment));
}

void Flags::Add(std::string name, int* target, std::string help,
                std::vector<std::string> environment) {
  AddWith(std::move(name), IntegerSetter(target, "an integer"),
          absl::StrCat(*target), std::move(help), std::move(environment));
}

void Flags::Add(std::string name, int64_t* target, std::string help,
                std::vector<std::string> environment) {
  AddWith(std::move(name), IntegerSetter(target, "an integer"),
          absl::StrCat(*target), std::move(help), std::move(environment));
}

void Flags::Add(std::string name, uint64_t* target, std::string help,
                std::vector<std::string> environment) {
  AddWith(std::move(name), IntegerSetter(target, "an integer from 0 on"),
          absl::StrCat(*target), std::move(help), std::move(environment));
}

void Flags::Add(std::string name, double* target, std::string help,
                std::vector<std::string> environment) {
  AddWith(
      std::move(name),
      [target](const std::string& text) {
        return absl::SimpleAtod(text, target) ? absl::OkStatus()
                                              : Wanted("a number");
      },
      absl::StrCat(*target), std::move(help), std::move(environment));
}

void Flags::Add(std::string name, absl::Duration* target, std::string help,
                std::vector<std::string> environment) {
  AddWith(
      std::move(name),
      [target](const std::string& text) {
        double seconds = 0;
        absl::Duration read;
        if (absl::SimpleAtod(text, &seconds)) {
          if (std::isnan(seconds)) return Wanted("a duration, found no number");
          read = absl::Seconds(seconds);  // "30", as torchrun has it
        } else if (!absl::ParseDuration(text, &read)) {
          return Wanted("a duration such as 30s or 5m");
        }
        if (read < absl::ZeroDuration()) return Wanted("no negative duration");
        *target = read;
        return absl::OkStatus();
      },
      absl::FormatDuration(*target), std::move(help), std::move(environment));
}

void Flags::Add(std::string name, bool* target, std::string help,
                std::vector<std::string> environment) {
  Flag flag;
  flag.name = std::move(name);
  flag.help = std::move(help);
  flag.default_text = *target ? "true" : "";
  flag.environment = std::move(environment);
  flag.is_switch = true;
  flag.set = [target](const std::string& text) {
    return absl::SimpleAtob(text, target) ? absl::OkStatus()
                                          : Wanted("true or false");
  };
  AddFlag(std::move(flag));
}

void Flags::AddWith(std::string name, Setter set, std::string default_text,
                    std::string help, std::vector<std::string> environment) {
  Flag flag;
  flag.name = std::move(name);
  flag.help = std::move(help);
  flag.default_text = std::move(default_text);
  flag.environment = std::move(environment);
  flag.set = std::move(set);
  AddFlag(std::move(flag));
}

void Flags::AddRepeated(std::string name, Setter set, std::string help) {
  Flag flag;
  flag.name = std::move(name);
  flag.help = std::move(help);
  flag.set = std::move(set);
  flag.is_repeated = true;
  AddFlag(std::move(flag));
}

void Flags::AddFlag(Flag flag) {
  if (!flag.environment.empty()) {
    absl::StrAppend(&flag.help, " [", absl::StrJoin(flag.environment, ", "),
                    "]");
  }
  flags_.push_back(std::move(flag));
}

void Flags::AllowPositional(std::string name, bool anywhere) {
  positional_name_ = std::move(name);
  positional_anywhere_ = anywhere;
}

Flags::Flag* Flags::Find(const std::string& name) {
  const auto found =
      std::find_if(flags_.begin(), flags_.end(),
                   [&](const Flag& flag) { return flag.name == name; });
  return found == flags_.end() ? nullptr : &*found;
}

std::string Flags::Origin(const std::string& name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return flag.origin;
  }
  return "";
}

absl::Status Flags::Unknown(const std::string& name,
                            const std::string& where) const {
  std::vector<std::string> known;
  for (const Flag& flag : flags_) known.push_back(flag.name);
  const std::string nearest = NearestName(name, known);
  return absl::InvalidArgumentError(absl::StrCat(
      program_, ": ", where, " names no flag: \"", name, "\"",
      nearest.empty() ? "; see --help"
                      : absl::StrCat("; did you mean --", nearest, "?")));
}

// Reads the command line into Flag::given, by CLI11.
class CommandLine {
 public:
  CommandLine(const std::string& program, const std::string& about)
      : app_(about, program) {
    app_.set_version_flag("--version", absl::StrCat("weft ", kVersion));
    app_.allow_extras();
  }

  void Expect(const std::string& name, const std::string& help,
              const std::string& default_text, bool is_switch) {
    CLI::Option* option =
        is_switch
            ? app_.add_flag(absl::StrCat("--", name, ",!--no-", name), help)
            : app_.add_option("--" + name, help);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    if (!default_text.empty()) option->default_str(default_text);
    if (!is_switch) option->type_name(" ");
  }
  void ExpectWords(const std::string& name, bool anywhere) {
    app_.prefix_command(!anywhere);
    app_.footer(absl::StrCat("After the flags: ", name));
  }

  // --help and --version end the program.
  absl::Status Parse(std::vector<std::string> arguments) {
    std::reverse(arguments.begin(), arguments.end());
    try {
      app_.parse(arguments);
    } catch (const CLI::Success& shown) {
      const int code = app_.exit(shown);
      std::cout.flush();
      if (!std::cout || std::fflush(stdout) != 0) {
        return WithExitCode(
            absl::ResourceExhaustedError(
                "the help cannot be written to standard output"),
            ExitCode::kResource);
      }
      std::exit(code);
    } catch (const CLI::ArgumentMismatch& error) {
      const std::string what = error.what();  // "--rank: 1 required ..."
      return absl::InvalidArgumentError(
          absl::StrCat(what.substr(0, what.find(':')), ": wanted a value"));
    } catch (const CLI::ParseError& error) {
      return absl::InvalidArgumentError(error.what());
    }
    return absl::OkStatus();
  }
  std::vector<std::string> ResultsOf(const std::string& name) {
    return app_.get_option("--" + name)->results();
  }
  std::vector<std::string> Rest() { return app_.remaining(); }
  std::string Help() { return app_.help(); }

 private:
  CLI::App app_;
};

void Flags::Describe(CommandLine& line) const {
  for (const Flag& flag : flags_) {
    line.Expect(flag.name, flag.help, flag.default_text, flag.is_switch);
  }
  if (!positional_name_.empty()) {
    line.ExpectWords(positional_name_, positional_anywhere_);
  }
}

std::string Flags::Normalised(const std::string& argument) const {
  if (argument.rfind("--", 0) != 0) return argument;
  const size_t end = std::min(argument.find('='), argument.size());
  return absl::StrReplaceAll(argument.substr(0, end), {{"_", "-"}}) +
         argument.substr(end);
}

const Flags::Flag* Flags::Find(const std::string& name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

// CLI11 would take the next word for the value of `--name=`.
absl::Status Flags::CheckValues(
    const std::vector<std::string>& arguments) const {
  const bool has_command = !positional_name_.empty() && !positional_anywhere_;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") break;
    if (argument.rfind("--", 0) != 0) {
      if (has_command) break;  // it and what follows are another's
      continue;
    }
    const size_t end = std::min(argument.find('='), argument.size());
    const Flag* const flag = Find(argument.substr(2, end - 2));
    if (flag == nullptr) continue;
    if (end + 1 == argument.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag->name, "=: wanted a value"));
    }
    if (end == argument.size() && !flag->is_switch) ++i;  // its value
  }
  return absl::OkStatus();
}

absl::Status Flags::Read(const std::vector<std::string>& arguments,
                         bool keep_unknown, std::vector<std::string>* unknown) {
  CommandLine line(program_, about_);
  Describe(line);
  std::vector<std::string> normalised;
  for (const std::string& argument : arguments) {
    normalised.push_back(keep_unknown ? argument : Normalised(argument));
  }
  absl::Status status = CheckValues(normalised);
  if (status.ok()) status = line.Parse(std::move(normalised));
  if (absl::IsResourceExhausted(status)) return status;  // of the output
  if (!status.ok()) {
    return WithExitCode(absl::InvalidArgumentError(absl::StrCat(
                            program_, ": ", status.message(), "; see --help")),
                        ExitCode::kUsage);
  }
  for (Flag& flag : flags_) flag.given = line.ResultsOf(flag.name);
  bool only_words = false;
  const std::vector<std::string> rest = line.Rest();
  for (size_t i = 0; i < rest.size(); ++i) {
    const std::string& word = rest[i];
    const bool is_flag = !only_words && word.size() > 1 && word[0] == '-';
    if (keep_unknown) {
      unknown->push_back(word);
    } else if (word == "--" && !only_words) {
      only_words = true;
    } else if (is_flag) {
      const std::string name = word.substr(word.find_first_not_of('-'));
      return WithExitCode(Unknown(name.substr(0, name.find('=')),
                                  absl::StrCat("\"", word, "\"")),
                          ExitCode::kUsage);
    } else if (positional_name_.empty()) {
      return WithExitCode(
          absl::InvalidArgumentError(absl::StrCat(
              program_, ": found the word \"", word,
              "\" where flags are wanted; values are written --name=value")),
          ExitCode::kUsage);
    } else if (positional_anywhere_) {
      positional_.push_back(word);
    } else {
      // Another's command: all that follows, as it was written.
      const size_t count = rest.size() - i;
      positional_.assign(arguments.end() - count, arguments.end());
      break;
    }
  }
  return absl::OkStatus();
}

void Flags::WarnOfUnknown() const {
  std::vector<std::string> known = read_elsewhere_;
  for (const Flag& flag : flags_) {
    known.insert(known.end(), flag.environment.begin(), flag.environment.end());
  }
  for (char** entry = environ; !prefix_.empty() && *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    if (name.rfind(prefix_, 0) != 0 ||
        std::find(known.begin(), known.end(), name) != known.end()) {
      continue;
    }
    const std::string nearest = NearestName(name, known);
    const std::string hint =
        nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
    const std::string message =
        absl::StrCat("environment ", telemetry::Printable(name),
                     " sets nothing and is ignored", hint);
    telemetry::WriteStderrLine(telemetry::Level::kWarning,
                               absl::StrCat(program_, ": warning: ", message),
                               message);
  }
}

absl::Status Flags::Settle() {
  WarnOfUnknown();
  const auto apply = [&](Flag& flag, const std::string& text,
                         const std::string& origin, ExitCode code) {
    const absl::Status status = flag.set(text);
    flag.origin = origin;
    if (status.ok()) return status;
    const std::string place =
        origin == "flag" ? absl::StrCat("--", flag.name, "=", text)
                         : absl::StrCat(origin, ": ", flag.name, " = ", text);
    return WithExitCode(absl::InvalidArgumentError(absl::StrCat(
                            program_, ": ", place, ": ", status.message())),
                        code);
  };
  for (Flag& flag : flags_) {
    for (const std::string& name : flag.environment) {
      const char* value = std::getenv(name.c_str());
      if (value == nullptr || *value == '\0' || !flag.given.empty()) continue;
      WEFT_RETURN_IF_ERROR(apply(
          flag, value, absl::StrCat("environment ", name), ExitCode::kConfig));
      break;
    }
    if (flag.given.empty()) continue;
    for (const std::string& text : flag.given) {
      // The last of a flag that is given twice counts.
      if (!flag.is_repeated && &text != &flag.given.back()) continue;
      WEFT_RETURN_IF_ERROR(apply(flag, text, "flag", ExitCode::kUsage));
    }
  }
  if (config_path_.empty()) return absl::OkStatus();
  const absl::Status status = ReadFile(config_path_);
  return status.ok() ? status : WithExitCode(status, ExitCode::kConfig);
}

absl::Status Flags::ReadFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat(program_, ": --config: cannot read ", path, ": ",
                     errno != 0 ? std::strerror(errno) : "an error"));
  }
  // No more is read of what is no file of flags, such as /dev/zero.
  std::string content(kMaxConfigBytes + 1, '\0');
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  content.resize(static_cast<size_t>(file.gcount()));
  if (content.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(program_, ": --config: ", path, " has more than ",
                     kMaxConfigBytes, " bytes; wanted lines name = value"));
  }
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(content, '\n')) {
    ++number;
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty() || text[0] == '#') continue;
    const std::string where = absl::StrCat("file ", path, ":", number);
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(program_, ": ", where, ": wanted name = value, found \"",
                       text, "\""));
    }
    const std::string name = absl::StrReplaceAll(
        absl::StripAsciiWhitespace(text.substr(0, equals)), {{"_", "-"}});
    const std::string value(
        absl::StripAsciiWhitespace(text.substr(equals + 1)));
    Flag* flag = Find(name);
    if (flag == nullptr) return Unknown(name, where);
    if (flag->origin != "default") continue;
    const absl::Status status = flag->set(value);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(program_, ": ", where,
                                                     ": ", name, " = ", value,
                                                     ": ", status.message()));
    }
    flag->origin = where;
  }
  return absl::OkStatus();
}

// Errors of the command line itself are of that form too.
void Flags::SetFormOfErrors(const std::vector<std::string>& arguments) const {
  const bool has_log =
      std::any_of(flags_.begin(), flags_.end(),
                  [](const Flag& f) { return f.name == "log"; });
  if (!has_log) return;
  const char* const environment = std::getenv("WEFT_LOG");
  std::string format = environment != nullptr ? environment : "";
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view word = arguments[i];
    if (absl::ConsumePrefix(&word, "--log=")) format = std::string(word);
    if (arguments[i] == "--log" && i + 1 < arguments.size()) {
      format = arguments[i + 1];
    }
  }
  if (format == "json") telemetry::SetStderrFormat(telemetry::LogFormat::kJson);
}

absl::Status Flags::Parse(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  SetFormOfErrors(arguments);
  WEFT_RETURN_IF_ERROR(Read(arguments, false, nullptr));
  return Settle();
}

absl::Status Flags::ParseKnown(int* argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + *argc);
  SetFormOfErrors(arguments);
  std::vector<std::string> unknown;
  WEFT_RETURN_IF_ERROR(Read(arguments, true, &unknown));
  // The rest are some of the same words in the same order.
  int kept = 1;
  size_t next = 0;
  for (int i = 1; i < *argc && next < unknown.size(); ++i) {
    if (unknown[next] != argv[i]) continue;
    argv[kept++] = argv[i];
    ++next;
  }
  argv[kept] = nullptr;
  *argc = kept;
  return Settle();
}

std::string Flags::Help() const {
  CommandLine line(program_, about_);
  Describe(line);
  return line.Help();
}

}  // namespace weft::worker
