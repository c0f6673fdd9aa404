// LimitLibraryLogs: gRPC and protobuf write to standard error by themselves,
// and peers make them do it.

#ifndef WEFT_NET_LOOP_LIBRARY_LOGS_H_
#define WEFT_NET_LOOP_LIBRARY_LOGS_H_

namespace weft::net {

// From now on, for the whole process: at most 60 lines of gRPC's in a minute,
// without control characters (all of them where GRPC_VERBOSITY is set: somebody
// looks for a fault; as JSON with --log=json, else as gRPC writes them), and of
// protobuf's only those on what ends the process. Thread-safety: call it before
// messages are read; again, it does nothing.
void LimitLibraryLogs();

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_LIBRARY_LOGS_H_
