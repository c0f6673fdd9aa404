#include "weft/collectives/backends/host/meeting.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/diagnosis.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/edge/local_socket.h"
#include "weft/proto/coordinator.pb.h"

namespace weft::collectives {
namespace {

// Where a rank is, as it says itself.
struct Place {
  std::string directory;
  std::string socket;
  std::string host;
  transport::Destination stream;
  rendezvous::v1::Process process;

  std::string Serialize() const {
    return absl::StrCat(directory, "\n", socket, "\n", host, "\n", stream.name,
                        "\n", stream.address, "\n", stream.memory_socket, "\n",
                        process.SerializeAsString());
  }
  static absl::StatusOr<Place> Parse(absl::string_view text) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits('\n', 6));
    Place place;
    if (parts.size() != 7 ||
        !place.process.ParseFromString(std::string(parts[6]))) {
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
    WEFT_ASSIGN_OR_RETURN(rendezvous::StoreEntry entry,
                          options_.store->Wait(Key(what, rank), 0, left()));
    return std::move(entry.value);
  }

  absl::Status Arrive();
  absl::Status FindPlaces();
  std::vector<std::vector<int>> Hosts() const;
  std::vector<int> RanksHere() const { return RanksOnHostOf(options_.rank); }
  std::vector<int> RanksOnHostOf(int rank) const;
  absl::StatusOr<memory::Segment> Lead(const std::vector<int>& here,
                                       std::vector<int>* mapped);
  absl::StatusOr<memory::Segment> Follow(int leader);
  absl::Status AwaitAgreement(int leader, std::vector<int>* mapped);

  const MeetingOptions& options_;
  std::unique_ptr<net::LocalSocket> socket_;
  std::vector<Place> places_;
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
  const auto process = rendezvous::ThisProcess();
  if (process.has_value()) place.process = *process;
  WEFT_ASSIGN_OR_RETURN(socket_, net::LocalSocket::Bind(place.socket));
  WEFT_ASSIGN_OR_RETURN(
      const rendezvous::Store::Swap swap,
      options_.store->CompareSet(Key("place", options_.rank), 0,
                                 place.Serialize(), left()));
  if (swap.applied) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", options_.rank, " of group ", options_.name,
                   " is there already: each rank and each name is used once"));
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
  if (missing.empty()) return absl::OkStatus();
  return absl::Status(
      last.code(),
      absl::StrCat("group ", options_.name, ": ", RankList(missing), " of ",
                   options_.size, " did not come: ", last.message()));
}

std::vector<int> Attempt::RanksOnHostOf(int rank) const {
  std::vector<int> there;
  for (int r = 0; r < options_.size; ++r) {
    if (r == rank || places_[r].IsOnHostOf(places_[rank])) there.push_back(r);
  }
  return there;
}

std::vector<std::vector<int>> Attempt::Hosts() const {
  std::vector<std::vector<int>> hosts;
  for (int r = 0; r < options_.size; ++r) {
    std::vector<int> ranks = RanksOnHostOf(r);
    if (ranks[0] == r) hosts.push_back(std::move(ranks));
  }
  return hosts;
}

absl::StatusOr<memory::Segment> Attempt::Lead(const std::vector<int>& here,
                                              std::vector<int>* mapped) {
  absl::StatusOr<memory::Segment> segment = memory::Segment::Create(
      options_.bytes_for(static_cast<int>(here.size())), "weft-collectives");
  if (!segment.ok()) {
    const std::string why = absl::StrCat("none ", segment.status().message());
    WEFT_RETURN_IF_ERROR(Set("segment", why));
    return segment.status();
  }
  std::random_device random;
  const uint64_t token = uint64_t{random()} << 32 | random();
  for (const int r : here) {
    if (r == options_.rank) continue;
    // Whoever does not get it says so, in mapped/.
    net::LocalSocket::Send(places_[r].socket, token, {segment->fd()})
        .IgnoreError();
  }
  WEFT_RETURN_IF_ERROR(Set("segment", absl::StrCat(token)));
  for (const int r : here) {
    if (r == options_.rank) {
      mapped->push_back(r);
      continue;
    }
    const absl::StatusOr<std::string> found = Await("mapped", r);
    if (found.ok() && *found == "ok") mapped->push_back(r);
  }
  WEFT_RETURN_IF_ERROR(Set("agreed", absl::StrJoin(*mapped, ",")));
  return segment;
}

absl::StatusOr<memory::Segment> Attempt::Follow(int leader) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, Await("segment", leader));
  uint64_t token;
  if (!absl::SimpleAtoi(text, &token)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", leader, " has no shared memory: ", text));
  }
  const auto map = [&]() -> absl::StatusOr<memory::Segment> {
    WEFT_ASSIGN_OR_RETURN(std::vector<net::Descriptor> descriptors,
                          socket_->Take(token));
    return memory::Segment::FromFd(
        descriptors[0].Release(),
        options_.bytes_for(static_cast<int>(RanksHere().size())));
  };
  absl::StatusOr<memory::Segment> segment = map();
  WEFT_RETURN_IF_ERROR(
      Set("mapped", segment.ok() ? "ok" : segment.status().ToString()));
  return segment;
}

absl::Status Attempt::AwaitAgreement(int leader, std::vector<int>* mapped) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, Await("agreed", leader));
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int rank;
    if (!absl::SimpleAtoi(part, &rank)) {
      return absl::InternalError("the agreement in the store is damaged");
    }
    mapped->push_back(rank);
  }
  return absl::OkStatus();
}

absl::StatusOr<Meeting> Attempt::Run() {
  WEFT_RETURN_IF_ERROR(Arrive());
  WEFT_RETURN_IF_ERROR(FindPlaces());
  const std::vector<int> here = RanksHere();
  std::vector<int> mapped;
  absl::StatusOr<memory::Segment> segment =
      here[0] == options_.rank ? Lead(here, &mapped) : Follow(here[0]);
  if (here[0] != options_.rank && segment.ok()) {
    WEFT_RETURN_IF_ERROR(AwaitAgreement(here[0], &mapped));
  }
  WEFT_RETURN_IF_ERROR(segment.status());
  Meeting meeting = {std::move(mapped), *std::move(segment), {}, Hosts(), 0, {}};
  for (const Place& place : places_) meeting.streams.push_back(place.stream);
  while (meeting.hosts[meeting.own_host] != here) ++meeting.own_host;
  for (const int r : meeting.ranks) {
    meeting.watches.push_back(rendezvous::ProcessWatch::Of(places_[r].process));
  }
  return meeting;
}

}  // namespace

absl::StatusOr<Meeting> Meet(const MeetingOptions& options) {
  return Attempt(options).Run();
}

}  // namespace weft::collectives
