// weft status: the members of a job, the calls that wait, and the pages of a
// worker.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands/commands.h"
#include "weft/launch/commands/question.h"
#include "weft/rendezvous/view.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/client.h"
#include "weft/rpc/diagnostics/waits_for.h"
#include "weft/telemetry/field.h"
#include "weft/worker/flags.h"
#include "weft/worker/status.h"

namespace weft::launch {
namespace {

using nlohmann::json;

// How many workers are asked at a time.
constexpr size_t kAskers = 8;

bool IsEnding(const rendezvous::Member& member) {
  return member.phase != rendezvous::Phase::kActive;
}

json ToJson(const rendezvous::View& view, const std::string& job) {
  json answer = {{"job", job},
                 {"complete", view.IsComplete()},
                 {"missing", view.Missing()},
                 {"members", json::array()},
                 {"departed", json::array()}};
  for (const rendezvous::Member& member : view.members()) {
    answer["members"].push_back({{"name", member.name},
                                 {"key", member.key.ToString()},
                                 {"role", member.role},
                                 {"rank", member.rank},
                                 {"address", member.address},
                                 {"labels", member.labels},
                                 {"suspect", member.suspect},
                                 {"ending", IsEnding(member)}});
  }
  for (const rendezvous::Departed& departed : view.departed()) {
    answer["departed"].push_back({{"name", departed.name},
                                  {"key", departed.key.ToString()},
                                  {"reason", departed.reason}});
  }
  return answer;
}

void PrintText(const rendezvous::View& view, const std::string& job) {
  // The members' words, for a terminal.
  using telemetry::Printable;
  std::printf("job %s: %s\n", job.c_str(), view.Summary().c_str());
  for (const rendezvous::Member& member : view.members()) {
    std::printf("  %-12s %-8s %s%s%s\n", member.name.c_str(),
                member.key.ToString().c_str(),
                Printable(member.address).c_str(),
                member.suspect ? "  (silent)" : "",
                IsEnding(member) ? "  (ending)" : "");
  }
  for (const rendezvous::Departed& departed : view.departed()) {
    std::printf("  %-12s %-8s gone: %s\n", departed.name.c_str(),
                departed.key.ToString().c_str(),
                Printable(departed.reason).c_str());
  }
}

// One section of the status page of each worker, and who did not say.
struct Sections {
  std::string name;
  std::vector<std::pair<std::string, json>> fields;  // by worker
  std::vector<std::string> silent;
};

// The calls that wait, and the workers that did not answer.
struct Waiting {
  rpc::WaitsFor calls;
  std::vector<std::string> silent;
};

absl::StatusOr<std::unique_ptr<rpc::Client>> ConnectTo(
    const Question& question, const rendezvous::Member& member,
    const std::string& job) {
  rpc::ClientOptions options;
  WEFT_ASSIGN_OR_RETURN(options.credentials, CredentialsOf(question));
  options.worker = member.name;
  options.job = job;
  options.connect_timeout = question.timeout;
  return rpc::Client::Connect(member.address, options);
}

absl::StatusOr<std::string> AskPage(const Question& question,
                                    const rendezvous::View& view,
                                    const std::string& job,
                                    const std::string& name, bool as_json) {
  const rendezvous::Member* const member = view.Find(name);
  if (member == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "--page=", name, ": wanted a worker of job ", job, "; there are: ",
        absl::StrJoin(view.members(), ", ",
                      [](std::string* out, const rendezvous::Member& m) {
                        out->append(m.name);
                      })));
  }
  WEFT_ASSIGN_OR_RETURN(const auto client, ConnectTo(question, *member, job));
  return worker::AskStatusPage(client->To(question.timeout), as_json)
      .Wait(question.timeout);
}

absl::StatusOr<std::vector<rpc::PendingCall>> AskWorker(
    const Question& question, const rendezvous::Member& member,
    const std::string& job) {
  WEFT_ASSIGN_OR_RETURN(const auto client, ConnectTo(question, member, job));
  return rpc::AskPending(client->To(question.timeout)).Wait(question.timeout);
}

Waiting AskAll(const Question& question, const rendezvous::View& view,
               const std::string& job) {
  const std::vector<rendezvous::Member>& members = view.members();
  std::vector<absl::StatusOr<std::vector<rpc::PendingCall>>> answers(
      members.size());
  std::atomic<size_t> next{0};
  std::vector<std::thread> askers;
  for (size_t i = 0; i < std::min(kAskers, members.size()); ++i) {
    askers.emplace_back([&] {
      for (size_t at = next++; at < members.size(); at = next++) {
        answers[at] = AskWorker(question, members[at], job);
      }
    });
  }
  for (std::thread& asker : askers) asker.join();
  Waiting waiting;
  for (size_t i = 0; i < members.size(); ++i) {
    if (answers[i].ok()) {
      waiting.calls.Add(members[i].name, *answers[i]);
    } else {
      waiting.silent.push_back(members[i].name);
    }
  }
  return waiting;
}

// The fields of the section in the page of a worker; null if it has none.
json SectionOf(const std::string& page, const std::string& name) {
  const json sections = json::parse(page, nullptr, /*allow_exceptions=*/false);
  if (!sections.is_object()) return nullptr;
  for (const json& section : sections.value("sections", json::array())) {
    if (section.value("name", "") != name) continue;
    if (section.contains("error")) return {{"error", section["error"]}};
    return section.value("fields", json::object());
  }
  return nullptr;
}

Sections AskSections(const Question& question, const rendezvous::View& view,
                     const std::string& job, const std::string& name) {
  Sections sections;
  sections.name = name;
  for (const rendezvous::Member& member : view.members()) {
    const auto page =
        AskPage(question, view, job, member.name, /*as_json=*/true);
    if (page.ok()) {
      sections.fields.emplace_back(member.name, SectionOf(*page, name));
    } else {
      sections.silent.push_back(member.name);
    }
  }
  return sections;
}

json ToJson(const Sections& sections) {
  json workers = json::object();
  for (const auto& [worker, fields] : sections.fields) workers[worker] = fields;
  return {{"workers", std::move(workers)}, {"no_answer", sections.silent}};
}

void PrintText(const Sections& sections) {
  using telemetry::Printable;
  for (const auto& [worker, fields] : sections.fields) {
    std::printf("%s of %s\n", sections.name.c_str(), worker.c_str());
    for (const auto& [key, value] : fields.items()) {
      const std::string text =
          value.is_string() ? value.get<std::string>() : value.dump();
      std::printf("  %s: %s\n", Printable(key).c_str(),
                  Printable(text).c_str());
    }
  }
  if (sections.silent.empty()) return;
  std::printf("no answer: %s\n", absl::StrJoin(sections.silent, ", ").c_str());
}

json ToJson(const Waiting& waiting) {
  json calls = json::array();
  for (const rpc::WaitsFor::Wait& wait : waiting.calls.Calls()) {
    json call = {{"caller", wait.caller},
                 {"callee", wait.callee},
                 {"id", wait.id},
                 {"function", wait.function},
                 {"phase", rpc::NameOf(wait.phase)},
                 {"age_seconds", absl::ToDoubleSeconds(wait.age)},
                 {"remaining_seconds", absl::ToDoubleSeconds(wait.remaining)}};
    if (wait.for_id != 0) {
      call["within"] = {{"caller", wait.for_caller}, {"id", wait.for_id}};
    }
    calls.push_back(std::move(call));
  }
  return {{"calls", std::move(calls)},
          {"summary", waiting.calls.ToString()},
          {"no_answer", waiting.silent}};
}

void PrintText(const Waiting& waiting) {
  const std::string tree = waiting.calls.Tree();
  for (const absl::string_view line :
       absl::StrSplit(tree, '\n', absl::SkipEmpty())) {
    std::printf("%s\n", telemetry::Printable(line).c_str());
  }
  std::printf("%s\n", telemetry::Printable(waiting.calls.ToString()).c_str());
  if (waiting.silent.empty()) return;
  std::printf("no answer: %s\n", absl::StrJoin(waiting.silent, ", ").c_str());
}

}  // namespace

absl::StatusOr<int> StatusCommand(int argc, char** argv) {
  Question question;
  Meeting meeting;
  bool as_json = false;
  bool calls = false;
  worker::Flags flags("weft status", "Shows who is in a job.");
  meeting.AddTo(flags);
  flags.Add(
      "calls", &calls,
      "also the calls that have not ended, and which worker waits for which");
  bool references = false;
  flags.Add("refs", &references,
            "also the references, by owner and holder, with their age");
  bool passes = false;
  flags.Add("passes", &passes,
            "also which distributed passes are open, and who is waited for");
  std::string page;
  flags.Add("page", &page, "in place of that, what this worker says of itself");
  flags.Add("json", &as_json, "as one JSON object");
  question.AddTo(flags);
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  WEFT_ASSIGN_OR_RETURN(const rendezvous::View view,
                        AskForMembers(question, meeting));
  if (!page.empty()) {
    WEFT_ASSIGN_OR_RETURN(const std::string shown,
                          AskPage(question, view, meeting.job, page, as_json));
    std::printf("%s%s", shown.c_str(), as_json ? "\n" : "");
    return 0;
  }
  Waiting waiting;
  if (calls) waiting = AskAll(question, view, meeting.job);
  std::vector<Sections> all;
  if (references) {
    all.push_back(
        AskSections(question, view, meeting.job, worker::kReferencesSection));
  }
  if (passes) {
    all.push_back(
        AskSections(question, view, meeting.job, worker::kPassesSection));
  }
  if (as_json) {
    json answer = ToJson(view, meeting.job);
    if (calls) answer["waiting"] = ToJson(waiting);
    for (const Sections& sections : all) {
      answer[sections.name] = ToJson(sections);
    }
    std::printf("%s\n", answer.dump().c_str());
  } else {
    PrintText(view, meeting.job);
    if (calls) PrintText(waiting);
    for (const Sections& sections : all) PrintText(sections);
  }
  return 0;
}

}  // namespace weft::launch
