// journal: no bytes harm the reader of a coordinator's log, and what it takes
// is what it would write.

#include "absl/strings/str_cat.h"
#include "weft/base/io/record_frames.h"
#include "weft/rendezvous/journal/journal.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

// One of each kind, in a log of their own.
std::vector<rendezvous::v1::LogRecord> Records() {
  std::vector<rendezvous::v1::LogRecord> records(6);
  records[0].mutable_opened()->set_job("job");
  records[0].mutable_opened()->set_term(3);
  (*records[1].mutable_world()->mutable_roles())["ps"] = 2;
  records[2].mutable_joined()->set_name("ps0");
  records[3].mutable_departed()->set_name("ps0");
  records[4].mutable_stored()->mutable_change()->set_key("a/b");
  records[4].mutable_stored()->mutable_change()->set_value("value");
  records[5].mutable_released()->add_arrivals()->set_number(7);
  return records;
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = {rendezvous::FrameRecords(Records())};
  for (const auto& record : Records()) {
    seeds.push_back(record.SerializeAsString());
  }
  return seeds;
}

std::vector<std::string> Words() { return {"\xff\xff\xff\x7f", "\x0a\x02"}; }

// What is taken is what would be written.
void Take(absl::string_view input) {
  absl::string_view rest = input;
  std::vector<rendezvous::v1::LogRecord> records;
  if (!rendezvous::TakeRecords(&rest, &records).ok()) return;
  Hold(rest.size() <= input.size());
  const std::string again = rendezvous::FrameRecords(records);
  absl::string_view written = again;
  std::vector<rendezvous::v1::LogRecord> copy;
  Hold(rendezvous::TakeRecords(&written, &copy).ok() && written.empty());
  Hold(copy.size() == records.size());
}

// Takes the input as a log, and as a record whose length and checksum are
// right.
void Run(absl::string_view input) {
  Take(input);
  std::string framed;
  AppendFrame(input, &framed);
  Take(framed);
  Take(absl::StrCat(framed, input));
}

WEFT_FUZZ_TARGET(journal, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
