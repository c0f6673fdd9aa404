// AbslRaces: tells ThreadSanitizer of the reports that are about Abseil's own
// library. For every test.

// The library is not built for it: a Status counts its references down in
// there, unseen, so that its deletion looks like a race with its copies.
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:absl::*::Status::Unref\n"
         "race:absl::*::status_internal::Payload\n";
}
