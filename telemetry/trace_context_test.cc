#include "weft/telemetry/trace_context.h"

#include <cstdint>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::telemetry {
namespace {

using ::weft::testing::StatusIs;

constexpr char kHeader[] =
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContext, EachRoundTrips) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    TraceContext context;
    // With zeros in front, and halves that are 0.
    context.trace_high = i % 3 == 0 ? 0 : random() >> random() % 64;
    context.trace_low = i % 5 == 0 ? 0 : random() >> random() % 64;
    context.span = random() >> random() % 64;
    context.sampled = i % 2 == 0;
    if (!context.is_valid()) continue;
    const auto back = ParseTraceparent(FormatTraceparent(context));
    ASSERT_TRUE(back.ok()) << FormatTraceparent(context);
    EXPECT_EQ(back->trace_high, context.trace_high);
    EXPECT_EQ(back->trace_low, context.trace_low);
    EXPECT_EQ(back->span, context.span);
    EXPECT_EQ(back->sampled, context.sampled);
  }
}

// One byte of the header replaced by any other: only lower-case hexadecimal
// digits in place of digits are read, and then as they stand.
TEST(TraceContext, TakesNoOtherByteAtAnyPlace) {
  const std::string header = kHeader;
  for (size_t at = 0; at < header.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = header;
      changed[at] = static_cast<char>(byte);
      const bool is_digit =
          (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f');
      const bool is_dash = at == 2 || at == 35 || at == 52;
      const auto found = ParseTraceparent(changed);
      const bool wanted = is_dash ? byte == '-' : is_digit;
      ASSERT_EQ(found.ok(), wanted) << changed;
      if (!found.ok()) {
        EXPECT_THAT(found, StatusIs(absl::StatusCode::kInvalidArgument));
        continue;
      }
      if (at < 2 || at > 52) continue;  // Version and other flags.
      EXPECT_EQ(FormatTraceparent(*found), changed);
    }
  }
}

TEST(TraceContext, RefusesEachCutAndAnyAddition) {
  const std::string header = kHeader;
  for (size_t n = 0; n < header.size(); ++n) {
    EXPECT_FALSE(ParseTraceparent(header.substr(0, n)).ok()) << n;
    EXPECT_FALSE(ParseTraceparent(header.substr(n + 1)).ok()) << n;
  }
  EXPECT_FALSE(ParseTraceparent(header + "-").ok());
  EXPECT_FALSE(ParseTraceparent(header + std::string(1, '\0')).ok());
  EXPECT_FALSE(ParseTraceparent(" " + header).ok());
}

// Other flags are not known, and so not passed on.
TEST(TraceContext, ReadsTheSampledFlagAlone) {
  std::string header = kHeader;
  for (const char* const flags : {"00", "02", "fe"}) {
    header.replace(53, 2, flags);
    EXPECT_FALSE(ParseTraceparent(header)->sampled) << flags;
  }
  header.replace(53, 2, "ff");
  EXPECT_TRUE(ParseTraceparent(header)->sampled);
  EXPECT_EQ(FormatTraceparent(*ParseTraceparent(header)), kHeader);
}

// A peer's header may be of any length and any bytes; the complaint is short
// and safe to show.
TEST(TraceContext, ComplainsBrieflyOfALongHeader) {
  const auto status = ParseTraceparent(std::string(1 << 20, '\x1b')).status();
  EXPECT_LT(status.message().size(), 600u);
  EXPECT_EQ(status.message().find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace weft::telemetry
