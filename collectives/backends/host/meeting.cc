#include "weft/collectives/backends/host/meeting.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "weft/base/failpoint.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/await_key.h"
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

// What a page of places has: 1 MiB is the most that a value may have.
constexpr int kRanksOfAPage = 512;

// A rank that waits for others looks who has come at half of its time, and when
// this part of it is left, at most kLastLook: later they might have given up.
constexpr int kLastPart = 4;
constexpr absl::Duration kLastLook = absl::Seconds(1);

// How long a rank stays that was given another number of ranks.
constexpr absl::Duration kToBeSeen = absl::Seconds(1);

// How long a rank without memory stays until the others have read that it has
// none: it may be the process that hosts the store, and end by this error.
constexpr absl::Duration kToBeRead = absl::Seconds(5);

// The time to remove keys, also where the deadline has passed.
constexpr absl::Duration kToLeave = absl::Seconds(2);

// Where a rank is, as it says itself.
struct Place {
  int size = 0;  // of the group, as it was told
  std::string directory;
  std::string socket;
  std::string host;
  transport::Destination stream;
  uint64_t probe = 0;  // PeerMemory::OwnProbe
  rendezvous::v1::Process process;

  std::string Serialize() const {
    return absl::StrCat(size, "\n", directory, "\n", socket, "\n", host, "\n",
                        stream.name, "\n", stream.address, "\n",
                        stream.memory_socket, "\n", probe, "\n",
                        process.SerializeAsString());
  }
  static absl::StatusOr<Place> Parse(absl::string_view text) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits('\n', 8));
    Place place;
    if (parts.size() != 9 || !absl::SimpleAtoi(parts[0], &place.size) ||
        !absl::SimpleAtoi(parts[7], &place.probe) ||
        !place.process.ParseFromString(std::string(parts[8]))) {
      return absl::InternalError("a rank's place in the store is damaged");
    }
    place.directory = std::string(parts[1]);
    place.socket = std::string(parts[2]);
    place.host = std::string(parts[3]);
    place.stream.name = std::string(parts[4]);
    place.stream.address = std::string(parts[5]);
    place.stream.memory_socket = std::string(parts[6]);
    return place;
  }
};

// Texts as one text.
std::string Pack(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) {
    absl::StrAppend(&packed, text.size(), "\n", text);
  }
  return packed;
}

absl::StatusOr<std::vector<std::string>> Unpack(absl::string_view packed) {
  std::vector<std::string> texts;
  while (!packed.empty()) {
    const size_t digits = packed.find('\n');
    size_t size = 0;
    if (digits == absl::string_view::npos ||
        !absl::SimpleAtoi(packed.substr(0, digits), &size) ||
        size > packed.size() - digits - 1) {
      return absl::InternalError("a list in the store is damaged");
    }
    texts.emplace_back(packed.substr(digits + 1, size));
    packed.remove_prefix(digits + 1 + size);
  }
  return texts;
}

class Attempt {
 public:
  explicit Attempt(const MeetingOptions& options)
      : options_(options), has_come_(options.size) {}

  absl::StatusOr<Meeting> Run();
  // To be called once Run has returned. When all ranks have left, none of its
  // keys stays.
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
    return AwaitKey(Key(what, rank), options_.deadline);
  }
  absl::StatusOr<std::string> AwaitKey(const std::string& key,
                                       Instant deadline) {
    return collectives::AwaitKey(*options_.store, key, deadline,
                                 options_.check_wait);
  }

  absl::Status CheckWait() const {
    return options_.check_wait == nullptr ? absl::OkStatus()
                                          : options_.check_wait();
  }

  std::string KeyOfAll(absl::string_view what) const {
    return absl::StrCat(options_.name, "/", what);
  }
  int pages() const {
    return (options_.size + kRanksOfAPage - 1) / kRanksOfAPage;
  }

  absl::Status Arrive();
  // Rank 0 from each rank, the others from rank 0.
  absl::Status FindPlaces();
  absl::StatusOr<std::vector<std::string>> CollectPlaces();
  absl::StatusOr<std::vector<std::string>> ReadPlaces();
  // Waits for the key, and says who is missing if it does not come.
  absl::StatusOr<std::string> AwaitFromAll(const std::string& key);
  void LookWhoHasCome();
  // Checks that `rank`, which is at `place`, was given the same number of ranks
  // as this one.
  absl::Status CheckSize(const Place& place, int rank) const;
  // Finds the hosts by what the ranks' places say, before any rank has mapped
  // anything: the ranks of each host in rising order, hosts by their lowest
  // rank.
  void FindPossibleHosts();
  const std::vector<int>& RanksHere() const {
    return possible_hosts_[host_of_[options_.rank]];
  }
  absl::StatusOr<memory::Segment> Create(size_t ranks);
  absl::StatusOr<memory::Segment> Lead(const std::vector<int>& here);
  absl::StatusOr<std::string> AwaitMapped(const std::vector<int>& here);
  absl::StatusOr<memory::Segment> Follow(int leader);
  absl::StatusOr<memory::Segment> Map(uint64_t token);
  // What the leaders of all hosts have decided; of a host of one rank "".
  absl::StatusOr<std::vector<std::string>> AwaitAgreements();
  absl::Status ReadAgreements(const std::vector<std::string>& agreements,
                              Meeting* meeting) const;
  static absl::Status ReadAgreement(absl::string_view text,
                                    const std::vector<int>& possible,
                                    Meeting* meeting);

  const MeetingOptions& options_;
  std::unique_ptr<net::LocalSocket> socket_;
  transport::MemoryBudget::Reservation counted_;
  std::vector<bool> has_come_;  // by rank, as far as this one knows
  std::vector<Place> places_;
  std::vector<std::vector<int>> possible_hosts_;
  std::vector<int> host_of_;  // by rank: its place in possible_hosts_
  bool has_arrived_ = false;
  bool has_found_all_ = false;
};

absl::Status Attempt::Arrive() {
  Place place;
  place.size = options_.size;
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

void Attempt::LookWhoHasCome() {
  for (int r = 0; r < options_.size; ++r) {
    if (has_come_[r]) continue;
    has_come_[r] = options_.store->Get(Key("place", r), left()).ok();
  }
}

absl::StatusOr<std::string> Attempt::AwaitFromAll(const std::string& key) {
  const Instant half = options_.deadline - left() / 2;
  const Instant last =
      options_.deadline - std::min(left() / kLastPart, kLastLook);
  for (const Instant until : {half, last}) {
    absl::StatusOr<std::string> value = AwaitKey(key, until);
    if (value.ok()) return value;
    if (!absl::IsDeadlineExceeded(value.status())) break;
    LookWhoHasCome();
  }
  absl::StatusOr<std::string> value = AwaitKey(key, options_.deadline);
  if (value.ok()) return value;
  WEFT_RETURN_IF_ERROR(CheckWait());
  if (!absl::IsDeadlineExceeded(value.status())) {
    // It was not found out which rank is missing.
    return Reworded(
        value.status(),
        absl::StrCat("group ", options_.name, ": rank ", options_.rank,
                     " waited for the others: ", value.status().message()));
  }
  std::vector<int> missing;
  for (int r = 0; r < options_.size; ++r) {
    if (!has_come_[r]) missing.push_back(r);
  }
  const std::string who =
      missing.empty()
          ? absl::StrCat("all ", options_.size,
                         " ranks came, but rank 0 did not list them")
          : absl::StrCat(RankList(missing), " of ", options_.size,
                         " did not come");
  return Reworded(value.status(),
                  absl::StrCat("group ", options_.name, ": ", who, ": ",
                               value.status().message()));
}

absl::Status Attempt::CheckSize(const Place& place, int rank) const {
  if (place.size == options_.size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("group ", options_.name, ": rank ", options_.rank,
                   " was given ", options_.size, " ranks, rank ", rank, " ",
                   place.size, ": give the same number on each"));
}

absl::StatusOr<std::vector<std::string>> Attempt::CollectPlaces() {
  std::vector<std::string> places;
  absl::Status sizes;
  for (int r = 0; r < options_.size; ++r) {
    absl::StatusOr<std::string> text = AwaitFromAll(Key("place", r));
    // What the others were given says more than that a rank is missing.
    if (!text.ok()) return sizes.ok() ? text.status() : sizes;
    WEFT_ASSIGN_OR_RETURN(const Place place, Place::Parse(*text));
    if (sizes.ok()) sizes = CheckSize(place, r);
    has_come_[r] = true;
    places.push_back(*std::move(text));
  }
  WEFT_RETURN_IF_ERROR(sizes);
  for (int page = 0; page < pages(); ++page) {
    const auto begin = places.begin() + page * kRanksOfAPage;
    const auto end =
        places.begin() + std::min((page + 1) * kRanksOfAPage, options_.size);
    WEFT_RETURN_IF_ERROR(
        options_.store->Set(Key("places", page), Pack({begin, end}), left())
            .status());
  }
  return places;
}

absl::StatusOr<std::vector<std::string>> Attempt::ReadPlaces() {
  WEFT_ASSIGN_OR_RETURN(const std::string first, AwaitFromAll(Key("place", 0)));
  WEFT_ASSIGN_OR_RETURN(const Place place, Place::Parse(first));
  has_come_[0] = true;
  WEFT_RETURN_IF_ERROR(CheckSize(place, 0));
  std::vector<std::string> places;
  for (int page = 0; page < pages(); ++page) {
    WEFT_ASSIGN_OR_RETURN(const std::string packed,
                          AwaitFromAll(Key("places", page)));
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> some, Unpack(packed));
    std::move(some.begin(), some.end(), std::back_inserter(places));
  }
  return places;
}

absl::Status Attempt::FindPlaces() {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> places,
                        options_.rank == 0 ? CollectPlaces() : ReadPlaces());
  for (const std::string& text : places) {
    WEFT_ASSIGN_OR_RETURN(Place place, Place::Parse(text));
    places_.push_back(std::move(place));
  }
  if (static_cast<int>(places_.size()) != options_.size) {
    return absl::InternalError("the list of ranks in the store is damaged");
  }
  FindPossibleHosts();
  has_found_all_ = true;
  return absl::OkStatus();
}

void Attempt::FindPossibleHosts() {
  std::map<std::tuple<std::string, std::string, std::string>, int> numbers;
  for (int r = 0; r < options_.size; ++r) {
    const Place& place = places_[r];
    const std::string& space = place.process.space();
    const int next = static_cast<int>(possible_hosts_.size());
    // A rank that cannot tell where it is shares memory with nobody.
    const int number =
        space.empty()
            ? next
            : numbers.try_emplace({space, place.directory, place.host}, next)
                  .first->second;
    if (number == next) possible_hosts_.emplace_back();
    possible_hosts_[number].push_back(r);
    host_of_.push_back(number);
  }
}

// One that so many ranks share.
absl::StatusOr<memory::Segment> Attempt::Create(size_t ranks) {
  const SegmentLayout layout = options_.layout_for(static_cast<int>(ranks));
  if (options_.memory_budget != nullptr) {
    WEFT_ASSIGN_OR_RETURN(
        counted_, options_.memory_budget->Reserve(layout.initial_bytes()));
  }
  return memory::Segment::CreateInPart(layout.bytes(), layout.initial_bytes(),
                                       "weft-collectives");
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
  WEFT_ASSIGN_OR_RETURN(const std::string agreement, AwaitMapped(here));
  WEFT_RETURN_IF_ERROR(Set("agreed", agreement));
  return segment;
}

// The agreement: the ranks that have mapped it, then a line for each other.
absl::StatusOr<std::string> Attempt::AwaitMapped(const std::vector<int>& here) {
  const Instant deadline = SteadyClock().Now() + left() / 2;
  std::string mapped = absl::StrCat(options_.rank);
  std::string others;
  for (const int r : here) {
    if (r == options_.rank) continue;
    const absl::StatusOr<std::string> found =
        AwaitKey(Key("mapped", r), deadline);
    WEFT_RETURN_IF_ERROR(CheckWait());
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
  const SegmentLayout layout =
      options_.layout_for(static_cast<int>(RanksHere().size()));
  return memory::Segment::FromFdInPart(descriptors[0].Release(), layout.bytes(),
                                       layout.initial_bytes());
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

absl::StatusOr<std::vector<std::string>> Attempt::AwaitAgreements() {
  const auto not_told = [&](int rank, const absl::Status& why) {
    return Reworded(
        why,
        absl::StrCat("group ", options_.name, ": rank ", rank,
                     absl::IsDeadlineExceeded(why) ? " has not told in time"
                                                   : " was to tell",
                     " which ranks share a host's memory: ", why.message()));
  };
  if (options_.rank != 0) {
    const absl::StatusOr<std::string> packed =
        AwaitKey(KeyOfAll("agreed"), options_.deadline);
    if (!packed.ok()) return not_told(0, packed.status());
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> agreements, Unpack(*packed));
    if (agreements.size() == possible_hosts_.size()) return agreements;
    return absl::InternalError("the agreements in the store are damaged");
  }
  std::vector<std::string> agreements;
  for (const std::vector<int>& possible : possible_hosts_) {
    agreements.emplace_back();
    if (possible.size() == 1) continue;
    absl::StatusOr<std::string> text = Await("agreed", possible[0]);
    if (!text.ok()) return not_told(possible[0], text.status());
    agreements.back() = *std::move(text);
  }
  if (options_.size > 1) {
    WEFT_RETURN_IF_ERROR(
        options_.store->Set(KeyOfAll("agreed"), Pack(agreements), left())
            .status());
  }
  return agreements;
}

absl::Status Attempt::ReadAgreements(const std::vector<std::string>& agreements,
                                     Meeting* meeting) const {
  for (size_t h = 0; h < possible_hosts_.size(); ++h) {
    const std::vector<int>& possible = possible_hosts_[h];
    if (possible.size() == 1) {
      meeting->hosts.push_back(possible);
    } else {
      WEFT_RETURN_IF_ERROR(ReadAgreement(agreements[h], possible, meeting));
    }
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
  const absl::Status found = FindPlaces();
  if (absl::IsInvalidArgument(found)) {
    // The others find why in this rank's place, which goes when this returns.
    absl::SleepFor(std::min(left(), kToBeSeen));
  }
  WEFT_RETURN_IF_ERROR(found);
  const std::vector<int>& here = RanksHere();
  const bool leads = here[0] == options_.rank;
  absl::StatusOr<memory::Segment> segment =
      leads ? Lead(here) : Follow(here[0]);
  // Rank 0 tells the others what failed here before it gives up.
  if (leads && options_.rank != 0) WEFT_RETURN_IF_ERROR(segment.status());
  Meeting meeting;
  const absl::StatusOr<std::vector<std::string>> agreements = AwaitAgreements();
  if (leads && !segment.ok()) {
    rendezvous::AwaitOthersLeft(*options_.store, options_.name, options_.size,
                                std::min(left(), kToBeRead));
    return segment.status();
  }
  WEFT_RETURN_IF_ERROR(agreements.status());
  WEFT_RETURN_IF_ERROR(ReadAgreements(*agreements, &meeting));
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
  std::vector<std::string> keys = {KeyOfAll("agreed")};
  for (int page = 0; page < pages(); ++page) {
    keys.push_back(Key("places", page));
  }
  for (int r = 0; r < options_.size; ++r) {
    keys.push_back(Key("place", r));
    const std::vector<int>& there = possible_hosts_[host_of_[r]];
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
