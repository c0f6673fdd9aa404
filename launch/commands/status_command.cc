// weft status: the members of a job, how far its trainers are, the calls that
// wait, and the pages of a worker.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands/ask_members.h"
#include "weft/launch/commands/commands.h"
#include "weft/launch/commands/question.h"
#include "weft/launch/commands/tables_report.h"
#include "weft/launch/commands/training_report.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/service.h"
#include "weft/ps/waits/wait_board.h"
#include "weft/rendezvous/view.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/rpc/diagnostics/waits_for.h"
#include "weft/telemetry/field.h"
#include "weft/train/training_metrics.h"
#include "weft/worker/flags.h"
#include "weft/worker/telemetry/status.h"

namespace weft::launch {
namespace {

using nlohmann::json;

bool IsEnding(const rendezvous::Member& member) {
  return member.phase != rendezvous::Phase::kActive;
}

bool IsTrainer(const rendezvous::Member& member) {
  return member.role == "trainer";
}

bool IsServer(const rendezvous::Member& member) { return member.role == "ps"; }

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

// Those that `is_wanted`.
template <typename Predicate>
std::vector<const rendezvous::Member*> MembersOf(const rendezvous::View& view,
                                                 Predicate is_wanted) {
  std::vector<const rendezvous::Member*> members;
  for (const rendezvous::Member& member : view.members()) {
    if (is_wanted(member)) members.push_back(&member);
  }
  return members;
}

Waiting AskAll(const Question& question, const rendezvous::View& view,
               const std::string& job) {
  using Calls = std::vector<rpc::PendingCall>;
  Waiting waiting;
  for (const MemberAnswer<Calls>& answer : AskEach<Calls>(
           question, MembersOf(view, [](const auto&) { return true; }), job,
           [](const rpc::Target& target) { return rpc::AskPending(target); })) {
    if (answer.said.ok()) {
      waiting.calls.Add(answer.member->name, *answer.said);
    } else {
      waiting.silent.push_back(answer.member->name);
    }
  }
  return waiting;
}

using Page = MemberAnswer<std::string>;

// The fields of the section in the page of a worker; null if it has none. Of
// several the one that was made last.
json SectionOf(const std::string& page, const std::string& name) {
  // Whatever a peer has sent, what is kept of it is not deep.
  const json whole = json::parse(
      page, [](int depth, json::parse_event_t, json&) { return depth < 8; },
      /*allow_exceptions=*/false);
  json found;
  if (!whole.is_object() || !whole.contains("sections")) return found;
  for (const json& section : whole["sections"]) {
    if (!section.is_object() || !section.contains("name")) continue;
    if (section["name"] != json(name)) continue;
    found = section.value("fields", json::object());
    if (section.contains("error")) found = {{"error", section["error"]}};
  }
  return found;
}

Sections SectionsIn(const std::vector<Page>& pages, const std::string& name) {
  Sections sections;
  sections.name = name;
  for (const Page& page : pages) {
    if (page.said.ok()) {
      sections.fields.emplace_back(page.member->name,
                                   SectionOf(*page.said, name));
    } else {
      sections.silent.push_back(page.member->name);
    }
  }
  return sections;
}

TrainingReport TrainingIn(const std::vector<Page>& pages,
                          const std::string& job) {
  TrainingReport report;
  report.job = job;
  Instant first = Instant::Infinite();
  Instant last;
  for (const Page& page : pages) {
    if (!IsTrainer(*page.member)) continue;
    if (!page.said.ok()) {
      report.silent.emplace_back(page.member->name, page.said.status());
      continue;
    }
    json fields = SectionOf(*page.said, train::kTrainingSection);
    if (!fields.is_object()) continue;  // it trains in a way of its own
    report.trainers.emplace_back(page.member->name, std::move(fields));
    first = std::min(first, page.asked);
    last = std::max(last, page.answered);
  }
  if (!report.trainers.empty()) report.spread = last - first;
  return report;
}

void AskServerWaits(const Question& question, const rendezvous::View& view,
                    const std::string& job, TrainingReport* report) {
  for (const MemberAnswer<ps::WaitAnswer>& answer : AskEach<ps::WaitAnswer>(
           question, MembersOf(view, IsServer), job,
           [](const rpc::Target& target) {
             return rpc::CallAsync(target, &ps::DescribeWaits, std::string());
           })) {
    // One of an older build does not know the question.
    if (absl::IsNotFound(answer.said.status()) ||
        absl::IsUnimplemented(answer.said.status())) {
      continue;
    }
    if (!answer.said.ok()) {
      report->silent_servers.emplace_back(answer.member->name,
                                          answer.said.status());
      continue;
    }
    for (const auto& [table, why, workers, waited_s] : *answer.said) {
      if (!(waited_s >= 0 && waited_s < 1e9)) continue;
      report->servers.push_back(
          {answer.member->name, table, why, workers, absl::Seconds(waited_s)});
    }
  }
}

TablesReport AskTables(const Question& question, const rendezvous::View& view,
                       const std::string& job) {
  const auto servers = MembersOf(view, IsServer);
  TablesReport report;
  for (MemberAnswer<ps::v1::ServerStats>& answer : AskEach<ps::v1::ServerStats>(
           question, servers, job, [](const rpc::Target& target) {
             return rpc::CallAsync(target, &ps::Describe);
           })) {
    if (answer.said.ok()) {
      report.servers.emplace_back(answer.member->name, *std::move(answer.said));
    } else {
      report.silent.emplace_back(answer.member->name, answer.said.status());
    }
  }
  // A server that does not answer this is of an older build, or was just named
  // as silent.
  for (MemberAnswer<ps::v1::ServerLoads>& answer : AskEach<ps::v1::ServerLoads>(
           question, servers, job, [](const rpc::Target& target) {
             return rpc::CallAsync(target, &ps::DescribeLoads);
           })) {
    if (!answer.said.ok()) continue;
    report.loads.emplace_back(answer.member->name, *std::move(answer.said));
  }
  return report;
}

json ToJson(const Sections& sections) {
  json workers = json::object();
  for (const auto& [worker, fields] : sections.fields) workers[worker] = fields;
  return {{"workers", std::move(workers)}, {"no_answer", sections.silent}};
}

void PrintSilent(const std::vector<std::string>& workers) {
  if (workers.empty()) return;
  std::printf("no answer: %s\n", absl::StrJoin(workers, ", ").c_str());
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
  PrintSilent(sections.silent);
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
  PrintSilent(waiting.silent);
}

// What is shown beside the members.
struct Wanted {
  bool calls = false;
  bool references = false;
  bool passes = false;
  bool training = true;
  bool tables = false;

  void AddTo(worker::Flags& flags) {
    flags.Add(
        "calls", &calls,
        "also the calls that have not ended, and which worker waits for which");
    flags.Add("refs", &references,
              "also the references, by owner and holder, with their age");
    flags.Add("passes", &passes,
              "also which distributed passes are open, and who is waited for");
    flags.Add("training", &training,
              "also the step and phase of each trainer, and who is behind");
    flags.Add("tables", &tables,
              "also the tables of the parameter servers: partitions, rows, "
              "bytes and versions, which server is behind, what each has to "
              "do, and the hottest partitions");
  }
};

struct Shown {
  Waiting waiting;
  std::vector<Sections> sections;
  TrainingReport training;
  TablesReport tables;
};

Shown Ask(const Question& question, const rendezvous::View& view,
          const std::string& job, const Wanted& wanted) {
  Shown shown;
  if (wanted.calls) shown.waiting = AskAll(question, view, job);
  if (wanted.tables) shown.tables = AskTables(question, view, job);
  const auto is_asked = [&](const rendezvous::Member& member) {
    return wanted.references || wanted.passes ||
           (wanted.training && IsTrainer(member));
  };
  const std::vector<Page> pages = AskEach<std::string>(
      question, MembersOf(view, is_asked), job, [](const rpc::Target& target) {
        return worker::AskStatusPage(target,
                                     /*as_json=*/true);
      });
  if (wanted.references) {
    shown.sections.push_back(SectionsIn(pages, worker::kReferencesSection));
  }
  if (wanted.passes) {
    shown.sections.push_back(SectionsIn(pages, worker::kPassesSection));
  }
  if (wanted.training) {
    shown.training = TrainingIn(pages, job);
    AskServerWaits(question, view, job, &shown.training);
  }
  return shown;
}

void Print(const rendezvous::View& view, const std::string& job,
           const Wanted& wanted, const Shown& shown, bool as_json) {
  if (!as_json) {
    PrintText(view, job);
    std::fputs(ToText(shown.training).c_str(), stdout);
    if (wanted.tables) std::fputs(ToText(shown.tables).c_str(), stdout);
    if (wanted.calls) PrintText(shown.waiting);
    for (const Sections& sections : shown.sections) PrintText(sections);
    return;
  }
  json answer = ToJson(view, job);
  if (wanted.training) {
    answer[train::kTrainingSection] = ToJson(shown.training);
  }
  if (wanted.tables) answer["tables"] = ToJson(shown.tables);
  if (wanted.calls) answer["waiting"] = ToJson(shown.waiting);
  for (const Sections& sections : shown.sections) {
    answer[sections.name] = ToJson(sections);
  }
  std::printf("%s\n", answer
                          .dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                                json::error_handler_t::replace)
                          .c_str());
}

}  // namespace

absl::StatusOr<int> StatusCommand(int argc, char** argv) {
  Question question;
  Meeting meeting;
  Wanted wanted;
  bool as_json = false;
  worker::Flags flags("weft status",
                      "Shows who is in a job, and how far its trainers are.");
  meeting.AddTo(flags);
  wanted.AddTo(flags);
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
  Print(view, meeting.job, wanted, Ask(question, view, meeting.job, wanted),
        as_json);
  return 0;
}

}  // namespace weft::launch
