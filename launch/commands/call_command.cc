// weft call: runs a function of a worker from a shell, and shows what it
// returns.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands/commands.h"
#include "weft/launch/commands/json_value.h"
#include "weft/launch/commands/question.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/codec/signature.h"
#include "weft/rpc/gateway/description.h"
#include "weft/telemetry/field.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"

namespace weft::launch {
namespace {

using nlohmann::json;

constexpr size_t kMaxArguments = size_t{256} << 20;

absl::Status Usage(absl::string_view message) {
  return worker::WithExitCode(
      absl::InvalidArgumentError(absl::StrCat("weft call: ", message)),
      worker::ExitCode::kUsage);
}

// Sets the question's address: WHERE itself, or where the worker of that name
// is.
absl::Status Locate(const std::string& where, const Meeting& meeting,
                    Question* question) {
  question->address = where;
  if (absl::StrContains(where, ':')) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const rendezvous::View view,
                        AskForMembers(*question, meeting));
  const rendezvous::Member* member = view.Find(where);
  for (const rendezvous::Departed& departed : view.departed()) {
    if (member != nullptr || departed.name != where) continue;
    return absl::UnavailableError(
        absl::StrCat("job ", meeting.job, ": ", where, ", in the incarnation ",
                     departed.key.ToString(), ", is gone: ", departed.reason,
                     "; start it again"));
  }
  if (member == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "job ", meeting.job, " has no worker \"", where, "\"; there are: ",
        absl::StrJoin(view.members(), ", ",
                      [](std::string* out, const rendezvous::Member& m) {
                        out->append(m.name);
                      })));
  }
  question->address = member->address;
  question->name = member->name;
  return absl::OkStatus();
}

absl::StatusOr<rpc::v1::DescribeReply> Describe(const Question& question) {
  WEFT_ASSIGN_OR_RETURN(const std::string bytes,
                        Ask(question, "/weft.rpc.v1.Worker/Describe", ""));
  return rpc::ParseDescription(question.address, bytes);
}

void PrintFunctions(const rpc::v1::DescribeReply& worker, bool as_json) {
  json functions = json::array();
  for (const rpc::v1::Function& function : worker.functions()) {
    functions.push_back(
        {{"name", function.name()}, {"signature", function.signature()}});
    if (!as_json) {
      // The worker's words, for a terminal.
      std::printf("%s  %s\n", telemetry::Printable(function.name()).c_str(),
                  telemetry::Printable(function.signature()).c_str());
    }
  }
  if (!as_json) return;
  const json answer = {{"worker", worker.name()},
                       {"job", worker.job()},
                       {"functions", std::move(functions)}};
  std::printf("%s\n", answer.dump().c_str());
}

std::string LastPart(const std::string& name) {
  const size_t at = name.rfind("::");
  return at == std::string::npos ? name : name.substr(at + 2);
}

// By the whole name, or by its last part where one function has it.
absl::StatusOr<rpc::v1::Function> FindFunction(
    const rpc::v1::DescribeReply& worker, const std::string& name) {
  std::vector<std::string> known;
  std::vector<const rpc::v1::Function*> found;
  for (const rpc::v1::Function& function : worker.functions()) {
    if (function.name() == name) return function;
    known.push_back(LastPart(function.name()));
    if (known.back() == name) found.push_back(&function);
  }
  if (found.size() == 1) return *found[0];
  const std::string nearest = worker::NearestName(LastPart(name), known);
  return absl::NotFoundError(absl::StrCat(
      worker.name(),
      found.empty() ? " has no function " : " has several named ", name,
      found.empty() && !nearest.empty()
          ? absl::StrCat("; did you mean ", nearest, "?")
          : absl::StrCat("; `weft call` without a function lists them")));
}

// The arguments themselves, or where they are: "@FILE", or "-" for standard
// input.
absl::StatusOr<std::string> ReadArguments(const std::string& word) {
  if (word != "-" && !absl::StartsWith(word, "@")) return word;
  std::FILE* const file =
      word == "-" ? stdin : std::fopen(word.c_str() + 1, "r");
  if (file == nullptr) {
    return Usage(absl::StrCat("cannot read the arguments in ", word.substr(1),
                              ": ", std::strerror(errno)));
  }
  std::string text;
  char block[16 << 10];
  size_t n = 0;
  while (text.size() <= kMaxArguments &&
         (n = std::fread(block, 1, sizeof(block), file)) > 0) {
    text.append(block, n);
  }
  const bool has_failed = std::ferror(file) != 0;
  if (file != stdin) std::fclose(file);
  if (has_failed)
    return Usage(absl::StrCat("cannot read the arguments: ", word));
  if (text.size() <= kMaxArguments) return text;
  return Usage(absl::StrCat("the arguments in ", word, " have more than ",
                            kMaxArguments, " bytes"));
}

absl::StatusOr<std::string> RequestFor(const rpc::v1::Function& function,
                                       const rpc::Signature& signature,
                                       const std::string& text) {
  const json arguments = ParseJson(text);
  const size_t wanted = signature.parameters.size();
  if (!arguments.is_array() || arguments.size() != wanted) {
    return Usage(absl::StrCat(
        function.name(), " is ", function.signature(),
        ": wanted a JSON array of ", wanted, " arguments, found ",
        arguments.is_discarded()
            ? json::accept(text) ? "JSON of more than 64 levels" : "no JSON"
        : arguments.is_array() ? absl::StrCat("one of ", arguments.size())
                               : arguments.type_name(),
        ": ", text.substr(0, 100)));
  }
  rpc::v1::CallRequest request;
  request.set_function(function.name());
  for (size_t i = 0; i < wanted; ++i) {
    auto value = ValueFromJson(arguments[i], signature.parameters[i]);
    if (!value.ok()) {
      return Usage(absl::StrCat(function.name(), ": argument ", i + 1, ": ",
                                value.status().message()));
    }
    *request.add_arguments() = *std::move(value);
  }
  return request.SerializeAsString();
}

absl::Status CallFunction(const Question& question,
                          const rpc::v1::Function& function,
                          const std::string& arguments) {
  WEFT_ASSIGN_OR_RETURN(const rpc::Signature signature,
                        rpc::ParseSignature(function.signature()));
  WEFT_ASSIGN_OR_RETURN(std::string request,
                        RequestFor(function, signature, arguments));
  WEFT_ASSIGN_OR_RETURN(const std::string bytes,
                        CallWorker(question, std::move(request)));
  rpc::v1::CallReply reply;
  if (!reply.ParseFromString(bytes)) {
    return absl::InternalError(
        absl::StrCat(question.address, ": the answer to ", function.name(),
                     " cannot be read; is it a worker of the same version?"));
  }
  if (reply.has_result()) {
    const json result = JsonFromValue(reply.result(), signature.result);
    std::printf(
        "%s\n",
        result.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> CallCommand(int argc, char** argv) {
  Question question;
  question.timeout = absl::Seconds(60);
  Meeting meeting;
  bool as_json = false;
  worker::Flags flags(
      "weft call",
      "Runs FUNCTION of the worker at ADDRESS and prints its result as JSON; "
      "without FUNCTION lists what can be called.\n"
      "ADDRESS is HOST:PORT, unix:PATH, or the name of a worker of --job. "
      "@FILE stands for arguments in a file, - for standard input.\n\n"
      "  weft call ps0 Scale '[[1, 2, 3], 0.5]'\n");
  flags.AllowPositional("ADDRESS [FUNCTION [JSON-ARGUMENTS]]",
                        /*anywhere=*/true);
  meeting.AddTo(flags);
  flags.Add("json", &as_json, "the list as one JSON object");
  question.AddTo(flags);
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  const std::vector<std::string>& words = flags.positional();
  if (words.empty() || words.size() > 3) {
    return Usage("wanted ADDRESS [FUNCTION [JSON-ARGUMENTS]]");
  }
  std::string arguments = "[]";
  if (words.size() == 3) {  // before anybody is asked
    WEFT_ASSIGN_OR_RETURN(arguments, ReadArguments(words[2]));
  }
  WEFT_RETURN_IF_ERROR(Locate(words[0], meeting, &question));
  WEFT_ASSIGN_OR_RETURN(const rpc::v1::DescribeReply worker,
                        Describe(question));
  if (words.size() == 1) {
    PrintFunctions(worker, as_json);
    return 0;
  }
  WEFT_ASSIGN_OR_RETURN(const rpc::v1::Function function,
                        FindFunction(worker, words[1]));
  WEFT_RETURN_IF_ERROR(CallFunction(question, function, arguments));
  return 0;
}

}  // namespace weft::launch
