#include "weft/collectives/backends/host/meeting.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "weft/base/failpoint.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/await_key.h"
#include "weft/collectives/diagnosis.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/edge/local_socket.h"
#include "weft/proto/collectives.pb.h"
#include "weft/rendezvous/meeting_keys.h"

namespace weft::collectives {
namespace {

using v1::Agreement;
using v1::Agreements;
using v1::Place;
using v1::Places;

constexpr char kMapped[] = "ok";  // a value in the store

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

// A message that another rank has written.
template <typename Message>
absl::StatusOr<Message> Parse(const std::string& text, absl::string_view what) {
  Message message;
  if (message.ParseFromString(text)) return message;
  return absl::InternalError(absl::StrCat(what, " in the store is damaged"));
}

transport::Destination StreamOf(const Place& place) {
  return {place.stream_name(), place.stream_address(),
          place.stream_memory_socket()};
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
  absl::Status CollectPlaces();
  absl::Status ReadPlaces();
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
  absl::StatusOr<Agreement> AwaitMapped(const std::vector<int>& here);
  absl::StatusOr<memory::Segment> Follow(int leader);
  absl::StatusOr<memory::Segment> Map(uint64_t token);
  // What the leaders of all hosts have decided.
  absl::StatusOr<Agreements> AwaitAgreements();
  absl::Status ReadAgreements(const Agreements& agreements,
                              Meeting* meeting) const;
  static absl::Status ReadAgreement(const Agreement& agreement,
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
  place.set_size(options_.size);
  place.set_directory(options_.directory);
  place.set_host(options_.host);
  place.set_stream_name(options_.stream.name);
  place.set_stream_address(options_.stream.address);
  place.set_stream_memory_socket(options_.stream.memory_socket);
  // Short: a path has at most 107 bytes. Drawn, so that another job of the same
  // name, whose group has the same name, does not take its place.
  std::random_device random;
  place.set_socket(absl::StrCat(options_.directory, "/c",
                                absl::Hex(uint64_t{random()} << 32 | random()),
                                "-", options_.rank));
  place.set_probe(PeerMemory::OwnProbe());
  const auto process = rendezvous::ThisProcess();
  if (process.has_value()) *place.mutable_process() = *process;
  WEFT_ASSIGN_OR_RETURN(socket_, net::LocalSocket::Bind(place.socket()));
  WEFT_ASSIGN_OR_RETURN(
      const rendezvous::Store::Swap swap,
      options_.store->CompareSet(Key("place", options_.rank), 0,
                                 place.SerializeAsString(), left()));
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
  if (place.size() == options_.size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("group ", options_.name, ": rank ", options_.rank,
                   " was given ", options_.size, " ranks, rank ", rank, " ",
                   place.size(), ": give the same number on each"));
}

absl::Status Attempt::CollectPlaces() {
  absl::Status sizes;
  for (int r = 0; r < options_.size; ++r) {
    const absl::StatusOr<std::string> text = AwaitFromAll(Key("place", r));
    // What the others were given says more than that a rank is missing.
    if (!text.ok()) return sizes.ok() ? text.status() : sizes;
    WEFT_ASSIGN_OR_RETURN(Place place, Parse<Place>(*text, "a rank's place"));
    if (sizes.ok()) sizes = CheckSize(place, r);
    has_come_[r] = true;
    places_.push_back(std::move(place));
  }
  WEFT_RETURN_IF_ERROR(sizes);
  for (int page = 0; page < pages(); ++page) {
    Places some;
    const int end = std::min((page + 1) * kRanksOfAPage, options_.size);
    for (int r = page * kRanksOfAPage; r < end; ++r) {
      *some.add_place() = places_[r];
    }
    WEFT_RETURN_IF_ERROR(
        options_.store
            ->Set(Key("places", page), some.SerializeAsString(), left())
            .status());
  }
  return absl::OkStatus();
}

absl::Status Attempt::ReadPlaces() {
  WEFT_ASSIGN_OR_RETURN(const std::string first, AwaitFromAll(Key("place", 0)));
  WEFT_ASSIGN_OR_RETURN(const Place place,
                        Parse<Place>(first, "a rank's place"));
  has_come_[0] = true;
  WEFT_RETURN_IF_ERROR(CheckSize(place, 0));
  for (int page = 0; page < pages(); ++page) {
    WEFT_ASSIGN_OR_RETURN(const std::string text,
                          AwaitFromAll(Key("places", page)));
    WEFT_ASSIGN_OR_RETURN(const Places some,
                          Parse<Places>(text, "the list of ranks"));
    places_.insert(places_.end(), some.place().begin(), some.place().end());
  }
  if (static_cast<int>(places_.size()) == options_.size) {
    return absl::OkStatus();
  }
  return absl::InternalError("the list of ranks in the store is damaged");
}

absl::Status Attempt::FindPlaces() {
  WEFT_RETURN_IF_ERROR(options_.rank == 0 ? CollectPlaces() : ReadPlaces());
  FindPossibleHosts();
  has_found_all_ = true;
  return absl::OkStatus();
}

void Attempt::FindPossibleHosts() {
  std::map<std::tuple<std::string, std::string, std::string>, int> numbers;
  for (int r = 0; r < options_.size; ++r) {
    const Place& place = places_[r];
    const std::string& space = place.process().space();
    const int next = static_cast<int>(possible_hosts_.size());
    // A rank that cannot tell where it is shares memory with nobody.
    const int number =
        space.empty()
            ? next
            : numbers
                  .try_emplace({space, place.directory(), place.host()}, next)
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
    const std::string why(segment.status().message());
    Agreement none;
    none.set_no_segment(why);
    WEFT_RETURN_IF_ERROR(Set("segment", absl::StrCat("none ", why)));
    WEFT_RETURN_IF_ERROR(Set("agreed", none.SerializeAsString()));
    return segment.status();
  }
  std::random_device random;
  const uint64_t token = uint64_t{random()} << 32 | random();
  for (const int r : here) {
    if (r == options_.rank) continue;
    // A rank that does not get it reports that in mapped/.
    net::LocalSocket::Send(places_[r].socket(), token, {segment->fd()})
        .IgnoreError();
  }
  WEFT_RETURN_IF_ERROR(Set("segment", absl::StrCat(token)));
  WEFT_ASSIGN_OR_RETURN(const Agreement agreement, AwaitMapped(here));
  WEFT_RETURN_IF_ERROR(Set("agreed", agreement.SerializeAsString()));
  return segment;
}

absl::StatusOr<Agreement> Attempt::AwaitMapped(const std::vector<int>& here) {
  const Instant deadline = SteadyClock().Now() + left() / 2;
  Agreement agreement;
  agreement.add_mapped(options_.rank);
  for (const int r : here) {
    if (r == options_.rank) continue;
    const absl::StatusOr<std::string> found =
        AwaitKey(Key("mapped", r), deadline);
    WEFT_RETURN_IF_ERROR(CheckWait());
    if (found.ok() && *found == kMapped) {
      agreement.add_mapped(r);
      continue;
    }
    agreement.add_others(
        absl::StrCat("rank ", r, ": ",
                     found.ok() ? *found
                                : absl::StrCat("did not answer in time: ",
                                               found.status().message())));
  }
  return agreement;
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

absl::StatusOr<Agreements> Attempt::AwaitAgreements() {
  const auto not_told = [&](int rank, const absl::Status& why) {
    return Reworded(
        why,
        absl::StrCat("group ", options_.name, ": rank ", rank,
                     absl::IsDeadlineExceeded(why) ? " has not told in time"
                                                   : " was to tell",
                     " which ranks share a host's memory: ", why.message()));
  };
  if (options_.rank != 0) {
    const absl::StatusOr<std::string> text =
        AwaitKey(KeyOfAll("agreed"), options_.deadline);
    if (!text.ok()) return not_told(0, text.status());
    WEFT_ASSIGN_OR_RETURN(Agreements agreements,
                          Parse<Agreements>(*text, "what hosts agreed on"));
    const auto found = static_cast<size_t>(agreements.of_host_size());
    if (found == possible_hosts_.size()) return agreements;
    return absl::InternalError("what hosts agreed on in the store is damaged");
  }
  Agreements agreements;
  for (const std::vector<int>& possible : possible_hosts_) {
    Agreement* const agreement = agreements.add_of_host();
    if (possible.size() == 1) continue;
    const absl::StatusOr<std::string> text = Await("agreed", possible[0]);
    if (!text.ok()) return not_told(possible[0], text.status());
    WEFT_ASSIGN_OR_RETURN(*agreement,
                          Parse<Agreement>(*text, "what a host agreed on"));
  }
  if (options_.size > 1) {
    WEFT_RETURN_IF_ERROR(
        options_.store
            ->Set(KeyOfAll("agreed"), agreements.SerializeAsString(), left())
            .status());
  }
  return agreements;
}

absl::Status Attempt::ReadAgreements(const Agreements& agreements,
                                     Meeting* meeting) const {
  for (size_t h = 0; h < possible_hosts_.size(); ++h) {
    const std::vector<int>& possible = possible_hosts_[h];
    if (possible.size() == 1) {
      meeting->hosts.push_back(possible);
    } else {
      WEFT_RETURN_IF_ERROR(ReadAgreement(
          agreements.of_host(static_cast<int>(h)), possible, meeting));
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

absl::Status Attempt::ReadAgreement(const Agreement& agreement,
                                    const std::vector<int>& possible,
                                    Meeting* meeting) {
  if (!agreement.no_segment().empty()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank ", possible[0],
        " has no shared memory for its host: ", agreement.no_segment()));
  }
  std::vector<int> mapped(agreement.mapped().begin(), agreement.mapped().end());
  const auto is_possible = [&](int rank) {
    return std::count(possible.begin(), possible.end(), rank) > 0;
  };
  if (mapped.empty() ||
      !std::all_of(mapped.begin(), mapped.end(), is_possible)) {
    return absl::InternalError("what a host agreed on in the store is damaged");
  }
  for (const int r : possible) {
    if (std::count(mapped.begin(), mapped.end(), r) == 0) {
      meeting->hosts.push_back({r});
    }
  }
  meeting->hosts.push_back(std::move(mapped));
  for (const std::string& why : agreement.others()) {
    absl::StrAppend(&meeting->not_mapped,
                    meeting->not_mapped.empty() ? "" : "; ", why);
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
  const absl::StatusOr<Agreements> agreements = AwaitAgreements();
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
  for (const Place& place : places_) {
    meeting.streams.push_back(StreamOf(place));
  }
  for (const int r : meeting.ranks) {
    const rendezvous::v1::Process& process = places_[r].process();
    meeting.watches.push_back(rendezvous::ProcessWatch::Of(process));
    meeting.peers.push_back(
        {static_cast<pid_t>(process.pid()), places_[r].probe()});
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
