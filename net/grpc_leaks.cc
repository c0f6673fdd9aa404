// GrpcLeaks: tells LeakSanitizer of the leaks that are gRPC's own. For tests
// that link gRPC.

// gRPC 1.51 forgets one slice buffer of each TLS connection (2,880 bytes) and
// a name in its resolver. Its functions have no frame pointers, so that the
// allocator is all that a stack shows.
extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() {
  return "leak:gpr_realloc\nleak:libcares.so\n";
}
