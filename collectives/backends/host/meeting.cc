#include "weft/collectives/backends/host/meeting.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/base/failpoint.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/diagnosis.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/edge/local_socket.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/meeting_keys.h"

namespace weft::collectives {
namespace {

// Values in the store.
constexpr char kMapped[] = "ok";
constexpr char kNone[] = "none ";

// For removing keys, also where no time is left.
constexpr absl::Duration kToLeave = absl::Seconds(2);

// Where a rank is, as it says itself.
struct Place {
  std::string directory;
  std::string socket;
  std::string host;
  transport::Destination stream;
  uint64_t probe = 0;  // PeerMemory::OwnProbe
  rendezvous::v1::Process process;

  std::string Serialize() const {
    return absl::StrCat(directory, "\n", socket, "\n", host, "\n", stream.name,
                        "\n", stream.address, "\n", stream.memory_socket, "\n",
                        probe, "\n", process.SerializeAsString());
  }
  static absl::StatusOr<Place> Parse(absl::string_view text) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits('\n', 7));
    Place place;
    if (parts.size() != 8 || !absl::SimpleAtoi(parts[6], &place.probe) ||
        !place.process.ParseFromString(std::string(parts[7]))) {
      return absl::InternalError("a rank's place in the store is damaged");
    }
    place.directory = std::string(parts[0]);
    place.socket = std::string(parts[1]);
    place.host = std::string(parts[2]);
    place.stream.name = std::string(parts[3]);
    place.stream.address = std::string(parts[4]);
    place.stream.memory_socket = std::string(parts[5]);
    return place;
  }
  bool IsOnHostOf(const Place& other) const {
    return !process.space().empty() &&
           process.space() == other.process.space() &&
           directory == other.directory && host == other.host;
  }
};

class Attempt {
 public:
  explicit Attempt(const MeetingOptions& options) : options_(options) {}

  absl::StatusOr<Meeting> Run();
  // Once Run has returned: of its keys none stays when all ranks have left.
  void Leave();

 private:
  std::string Key(absl::string_view what, int rank) const {
    return absl::StrCat(options_.name, "/", what, "/", rank);
  }
  absl::Duration left() const {
    return std::max(options_.deadline - SteadyClock().Now(),
                    absl::ZeroDuration());
  }
  absl::Status Set(absl::string_view what, const std::string& value) {
    return options_.store->Set(Key(what, options_.rank), value, left())
        .status();
  }
  absl::StatusOr<std::string> Await(absl::string_view what, int rank) {
    return AwaitUntil(what, rank, options_.deadline);
  }
  absl::StatusOr<std::string> AwaitUntil(absl::string_view what, int rank,
                                         Instant deadline) {
    WEFT_ASSIGN_OR_RETURN(
        rendezvous::StoreEntry entry,
        options_.store->Wait(
            Key(what, rank), 0,
            std::max(deadline - SteadyClock().Now(), absl::ZeroDuration())));
    return std::move(entry.value);
  }

  absl::Status Arrive();
  absl::Status FindPlaces();
  // As the ranks' places say, before any has mapped anything.
  std::vector<std::vector<int>> PossibleHosts() const;
  std::vector<int> RanksHere() const { return RanksOnHostOf(options_.rank); }
  std::vector<int> RanksOnHostOf(int rank) const;
  absl::StatusOr<memory::Segment> Create(size_t ranks);
  absl::StatusOr<memory::Segment> Lead(const std::vector<int>& here);
  std::string AwaitMapped(const std::vector<int>& here);
  absl::StatusOr<memory::Segment> Follow(int leader);
  absl::StatusOr<memory::Segment> Map(uint64_t token);
  // What the leaders of all hosts have decided.
  absl::Status AwaitAgreements(Meeting* meeting);
  static absl::Status ReadAgreement(absl::string_view text,
                                    const std::vector<int>& possible,
                                    Meeting* meeting);

  const MeetingOptions& options_;
  std::unique_ptr<net::LocalSocket> socket_;
  std::shared_ptr<const void> counted_;
  std::vector<Place> places_;
  bool has_arrived_ = false;
  bool has_found_all_ = false;
};

absl::Status Attempt::Arrive() {
  Place place;
  place.directory = options_.directory;
  place.host = options_.host;
  place.stream = options_.stream;
  // Short: a path has at most 107 bytes. Drawn, so that another job of the same
  // name, whose group has the same name, does not take its place.
  std::random_device random;
  place.socket = absl::StrCat(options_.directory, "/c",
                              absl::Hex(uint64_t{random()} << 32 | random()),
                              "-", options_.rank);
  place.probe = PeerMemory::OwnProbe();
  const auto process = rendezvous::ThisProcess();
  if (process.has_value()) place.process = *process;
  WEFT_ASSIGN_OR_RETURN(socket_, net::LocalSocket::Bind(place.socket));
  WEFT_ASSIGN_OR_RETURN(
      const rendezvous::Store::Swap swap,
      options_.store->CompareSet(Key("place", options_.rank), 0,
                                 place.Serialize(), left()));
  has_arrived_ = swap.applied;
  if (swap.applied) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", options_.rank, " of group ", options_.name,
                   " is there already: each rank and each name is used once "
                   "until all ranks have met"));
}

absl::Status Attempt::FindPlaces() {
  std::vector<int> missing;
  absl::Status last;
  for (int r = 0; r < options_.size; ++r) {
    absl::StatusOr<std::string> text = Await("place", r);
    if (!text.ok()) {
      missing.push_back(r);
      last = text.status();
      places_.emplace_back();
      continue;
    }
    WEFT_ASSIGN_OR_RETURN(Place place, Place::Parse(*text));
    places_.push_back(std::move(place));
  }
  has_found_all_ = missing.empty();
  if (missing.empty()) return absl::OkStatus();
  return Reworded(last, absl::StrCat("group ", options_.name, ": ",
                                     RankList(missing), " of ", options_.size,
                                     " did not come: ", last.message()));
}

std::vector<int> Attempt::RanksOnHostOf(int rank) const {
  std::vector<int> there;
  for (int r = 0; r < options_.size; ++r) {
    if (r == rank || places_[r].IsOnHostOf(places_[rank])) there.push_back(r);
  }
  return there;
}

std::vector<std::vector<int>> Attempt::PossibleHosts() const {
  std::vector<std::vector<int>> hosts;
  for (int r = 0; r < options_.size; ++r) {
    std::vector<int> ranks = RanksOnHostOf(r);
    if (ranks[0] == r) hosts.push_back(std::move(ranks));
  }
  return hosts;
}

// One that so many ranks share.
absl::StatusOr<memory::Segment> Attempt::Create(size_t ranks) {
  const int64_t bytes = options_.bytes_for(static_cast<int>(ranks));
  if (options_.memory_budget != nullptr) {
    WEFT_ASSIGN_OR_RETURN(counted_, options_.memory_budget->Reserve(bytes));
  }
  return memory::Segment::Create(bytes, "weft-collectives");
}

absl::StatusOr<memory::Segment> Attempt::Lead(const std::vector<int>& here) {
  absl::StatusOr<memory::Segment> segment = Create(here.size());
  if (here.size() == 1) return segment;
  if (!segment.ok()) {
    const std::string why = absl::StrCat(kNone, segment.status().message());
    WEFT_RETURN_IF_ERROR(Set("segment", why));
    WEFT_RETURN_IF_ERROR(Set("agreed", why));
    return segment.status();
  }
  std::random_device random;
  const uint64_t token = uint64_t{random()} << 32 | random();
  for (const int r : here) {
    if (r == options_.rank) continue;
    // A rank that does not get it reports that in mapped/.
    net::LocalSocket::Send(places_[r].socket, token, {segment->fd()})
        .IgnoreError();
  }
  WEFT_RETURN_IF_ERROR(Set("segment", absl::StrCat(token)));
  WEFT_RETURN_IF_ERROR(Set("agreed", AwaitMapped(here)));
  return segment;
}

// The agreement: the ranks that have mapped it, then a line for each other.
std::string Attempt::AwaitMapped(const std::vector<int>& here) {
  const Instant deadline = SteadyClock().Now() + left() / 2;
  std::string mapped = absl::StrCat(options_.rank);
  std::string others;
  for (const int r : here) {
    if (r == options_.rank) continue;
    const absl::StatusOr<std::string> found = AwaitUntil("mapped", r, deadline);
    if (found.ok() && *found == kMapped) {
      absl::StrAppend(&mapped, ",", r);
      continue;
    }
    absl::StrAppend(&others, "\nrank ", r, ": ",
                    found.ok() ? *found
                               : absl::StrCat("did not answer in time: ",
                                              found.status().message()));
  }
  return mapped + others;
}

absl::StatusOr<memory::Segment> Attempt::Map(uint64_t token) {
  WEFT_RETURN_IF_ERROR(WEFT_FAILPOINT("collectives/map_segment"));
  WEFT_ASSIGN_OR_RETURN(std::vector<net::Descriptor> descriptors,
                        socket_->Take(token));
  return memory::Segment::FromFd(
      descriptors[0].Release(),
      options_.bytes_for(static_cast<int>(RanksHere().size())));
}

absl::StatusOr<memory::Segment> Attempt::Follow(int leader) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, Await("segment", leader));
  uint64_t token;
  if (!absl::SimpleAtoi(text, &token)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", leader, " has no shared memory: ", text));
  }
  absl::StatusOr<memory::Segment> segment = Map(token);
  WEFT_RETURN_IF_ERROR(
      Set("mapped", segment.ok() ? kMapped : segment.status().ToString()));
  return segment;
}

absl::Status Attempt::AwaitAgreements(Meeting* meeting) {
  for (const std::vector<int>& possible : PossibleHosts()) {
    if (possible.size() == 1) {
      meeting->hosts.push_back(possible);
      continue;
    }
    WEFT_ASSIGN_OR_RETURN(const std::string text, Await("agreed", possible[0]));
    WEFT_RETURN_IF_ERROR(ReadAgreement(text, possible, meeting));
  }
  std::sort(meeting->hosts.begin(), meeting->hosts.end());
  for (size_t h = 0; h < meeting->hosts.size(); ++h) {
    const std::vector<int>& ranks = meeting->hosts[h];
    if (std::count(ranks.begin(), ranks.end(), options_.rank) == 0) continue;
    meeting->own_host = static_cast<int>(h);
    meeting->ranks = ranks;
  }
  return absl::OkStatus();
}

absl::Status Attempt::ReadAgreement(absl::string_view text,
                                    const std::vector<int>& possible,
                                    Meeting* meeting) {
  if (absl::StartsWith(text, kNone)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank ", possible[0], " has no shared memory for its host: ",
        absl::StripPrefix(text, kNone)));
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('\n', 1));
  std::vector<int> mapped;
  for (const absl::string_view part : absl::StrSplit(parts.first, ',')) {
    int rank;
    if (!absl::SimpleAtoi(part, &rank) ||
        std::count(possible.begin(), possible.end(), rank) == 0) {
      return absl::InternalError("the agreement in the store is damaged");
    }
    mapped.push_back(rank);
  }
  for (const int r : possible) {
    if (std::count(mapped.begin(), mapped.end(), r) == 0) {
      meeting->hosts.push_back({r});
    }
  }
  meeting->hosts.push_back(std::move(mapped));
  if (!parts.second.empty()) {
    absl::StrAppend(&meeting->not_mapped,
                    meeting->not_mapped.empty() ? "" : "; ",
                    absl::StrReplaceAll(parts.second, {{"\n", "; "}}));
  }
  return absl::OkStatus();
}

absl::StatusOr<Meeting> Attempt::Run() {
  WEFT_RETURN_IF_ERROR(Arrive());
  WEFT_RETURN_IF_ERROR(FindPlaces());
  const std::vector<int> here = RanksHere();
  const bool leads = here[0] == options_.rank;
  absl::StatusOr<memory::Segment> segment =
      leads ? Lead(here) : Follow(here[0]);
  if (leads) WEFT_RETURN_IF_ERROR(segment.status());
  Meeting meeting;
  WEFT_RETURN_IF_ERROR(AwaitAgreements(&meeting));
  if (!leads && meeting.ranks.size() == 1) {
    segment = Create(1);
  }
  meeting.counted = std::move(counted_);
  WEFT_ASSIGN_OR_RETURN(meeting.segment, std::move(segment));
  for (const Place& place : places_) meeting.streams.push_back(place.stream);
  for (const int r : meeting.ranks) {
    meeting.watches.push_back(rendezvous::ProcessWatch::Of(places_[r].process));
    meeting.peers.push_back(
        {static_cast<pid_t>(places_[r].process.pid()), places_[r].probe});
  }
  return meeting;
}

void Attempt::Leave() {
  rendezvous::Store& store = *options_.store;
  if (!has_arrived_) return;
  if (!has_found_all_) {  // others may not come, and count
    store.Delete(Key("place", options_.rank), kToLeave).IgnoreError();
    return;
  }
  std::vector<std::string> keys;
  for (int r = 0; r < options_.size; ++r) {
    keys.push_back(Key("place", r));
    const std::vector<int> there = RanksOnHostOf(r);
    if (there.size() == 1) continue;
    if (there[0] != r) {
      keys.push_back(Key("mapped", r));
    } else {
      keys.push_back(Key("segment", r));
      keys.push_back(Key("agreed", r));
    }
  }
  rendezvous::LeaveMeeting(store, options_.name, options_.size, keys, kToLeave)
      .IgnoreError();
}

}  // namespace

absl::StatusOr<Meeting> Meet(const MeetingOptions& options) {
  Attempt attempt(options);
  absl::StatusOr<Meeting> meeting = attempt.Run();
  attempt.Leave();
  return meeting;
}

}  // namespace weft::collectives
