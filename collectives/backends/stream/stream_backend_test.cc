#include "weft/collectives/backends/stream/stream_backend.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/core/frame.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/local_transport.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

std::string NameOf(int rank) { return absl::StrCat("rank", rank); }

// Each rank has a transport of its own on one LocalNetwork.
class StreamTestWorld final : public TestWorld {
 public:
  StreamTestWorld(int size, DiagnosisOptions diagnosis,
                  LinkCost cost = StreamCost())
      : diagnosis_(std::move(diagnosis)), cost_(cost), streams_(size) {
    for (int r = 0; r < size; ++r) {
      transports_.push_back(*network_.MakeTransport(NameOf(r)));
      ranks_.push_back({NameOf(r), NameOf(r)});
      streams_[r] = std::make_unique<Streams>(*transports_[r]);
    }
  }
  ~StreamTestWorld() override {
    for (auto& streams : streams_) streams.reset();
  }

  absl::StatusOr<std::unique_ptr<Backend>> Connect(int rank) override {
    return StreamBackend::Connect(OptionsOf(rank));
  }
  StreamOptions OptionsOf(int rank) {
    StreamOptions options;
    options.streams = streams_[rank].get();
    options.rank = rank;
    options.ranks = ranks_;
    options.max_unasked_bytes = TestBackend::kMaxUnaskedBytes;
    options.connect_timeout = absl::Seconds(10);
    options.cost = cost_;
    options.diagnosis = diagnosis_;
    return options;
  }
  // Has the effect of a crash of the rank's process.
  void Kill(int rank) { network_.Break(NameOf(rank)); }

 private:
  const DiagnosisOptions diagnosis_;
  const LinkCost cost_;
  transport::LocalNetwork network_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<transport::Destination> ranks_;
  std::vector<std::unique_ptr<Streams>> streams_;
};

TestBackend Stream(std::string name, AllReduceScheme scheme,
                   int64_t segment_bytes = LinkCost().segment_bytes) {
  TestBackend backend;
  backend.name = std::move(name);
  backend.ranks_run_ahead = true;
  LinkCost cost = StreamCost();
  cost.all_reduce = scheme;
  cost.segment_bytes = segment_bytes;
  backend.make_world = [cost](int size, const DiagnosisOptions& diagnosis) {
    return std::make_unique<StreamTestWorld>(size, diagnosis, cost);
  };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(
    Stream, ProcessGroupConformance,
    ::testing::Values(Stream("ring", AllReduceScheme::kRing),
                      Stream("ring_in_segments", AllReduceScheme::kRing, 4096),
                      Stream("halving", AllReduceScheme::kHalving)),
    [](const auto& info) { return info.param.name; });

TEST(StreamBackend, MeasuredCostIsTheSameOnAllRanks) {
  StreamTestWorld world(3, {});
  LinkCost costs[3];
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    StreamOptions options = world.OptionsOf(rank);
    options.measures_cost = true;
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<StreamBackend> backend,
                          StreamBackend::Connect(options));
    costs[rank] = backend->cost();
    const auto group = ProcessGroup::Create(std::move(backend));
    return group->AllReduce(Tensor::Ones({1000}));
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  for (const LinkCost& cost : costs) {
    EXPECT_GT(cost.seconds_per_message, 0);
    EXPECT_LT(cost.seconds_per_message, 1);
    EXPECT_GT(cost.bytes_per_second, 1e6);
    EXPECT_EQ(cost.seconds_per_message, costs[0].seconds_per_message);
    EXPECT_EQ(cost.bytes_per_second, costs[0].bytes_per_second);
  }
}

TEST(StreamBackend, LargeTensorsAreReducedByTheSchemeThatAddsLeast) {
  const auto choice = [](int ranks, int64_t bytes) {
    return ChooseAllReduce(StreamCost(), ranks, bytes);
  };
  EXPECT_EQ(choice(2, 1 << 10), AllReduceScheme::kDoubling);
  EXPECT_EQ(choice(4, 1 << 10), AllReduceScheme::kDoubling);
  EXPECT_EQ(choice(2, 1 << 20), AllReduceScheme::kHalving);
  EXPECT_EQ(choice(4, 1 << 20), AllReduceScheme::kHalving);
  EXPECT_EQ(choice(3, 16 << 20), AllReduceScheme::kRing);
}

TEST(StreamBackend, BrokenStreamNamesTheRankOnAllOthers) {
  StreamTestWorld world(3, {});
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world.Connect(rank));
    const auto group = ProcessGroup::Create(std::move(backend));
    WEFT_RETURN_IF_ERROR(group->Barrier());
    if (rank == 1) {
      world.Kill(1);
      return group->AllReduce(Tensor::Ones({100}));
    }
    return group->AllReduce(Tensor::Ones({100}));
  });
  for (const int r : {0, 2}) {
    EXPECT_THAT(statuses[r],
                StatusIs(absl::StatusCode::kUnavailable, "rank 1 has ended"));
  }
}

TEST(StreamBackend, RankThatDoesNotComeIsNamed) {
  StreamTestWorld world(3, {});
  const auto statuses = testing::RunRanks(3, [&](int rank) {
    if (rank == 1) return absl::OkStatus();
    StreamOptions options = world.OptionsOf(rank);
    options.connect_timeout = absl::Seconds(5);  // enough for those that come
    return StreamBackend::Connect(options).status();
  });
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1 of 3"));
  EXPECT_THAT(statuses[2],
              StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1 of 3"));
}

TEST(StreamBackend, RankThatComesTwiceIsRefused) {
  StreamTestWorld world(1, {});
  const StreamOptions options = world.OptionsOf(0);
  const auto first = StreamBackend::Connect(options);
  WEFT_EXPECT_OK(first.status());
  EXPECT_THAT(StreamBackend::Connect(options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "already"));
}

TEST(StreamBackend, OptionsThatMakeNoSenseAreRefused) {
  StreamTestWorld world(2, {});
  StreamOptions options = world.OptionsOf(0);
  options.rank = 2;
  EXPECT_THAT(StreamBackend::Connect(options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "found 2 of 2"));
  options.streams = nullptr;
  EXPECT_THAT(StreamBackend::Connect(options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "streams"));
}

TEST(Frame, EncodedFrameIsReadInPiecesOfAnySize) {
  Frame frame;
  frame.kind = Frame::kTransfer;
  frame.code = 7;
  frame.sequence = 1;
  frame.tag = 2;
  frame.total = 10;
  frame.offset = 4;
  frame.text = "what was called";
  frame.content = {Bytes::Copy("abc"), Bytes::Copy("def")};
  const std::string whole(Flatten(Encode(frame)).view());
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    const auto found = Decode(
        {Bytes::Copy(whole.substr(0, cut)), Bytes::Copy(whole.substr(cut))});
    WEFT_ASSERT_OK(found.status());
    EXPECT_EQ(found->kind, Frame::kTransfer);
    EXPECT_EQ(found->text, frame.text);
    EXPECT_EQ(found->offset, 4u);
    EXPECT_EQ(Flatten(found->content).view(), "abcdef");
  }
}

TEST(Frame, BytesThatAreNoFrameAreRefused) {
  Frame frame;
  frame.text = "group";
  const std::string whole(Flatten(Encode(frame)).view());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_THAT(Decode({Bytes::Copy(whole.substr(0, bytes))}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  // More content than the message has.
  EXPECT_THAT(Decode({Bytes::Copy(whole), Bytes::Copy("x")}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace weft::collectives
