// StopSignal: SIGTERM and SIGINT as a wish that a program ends in good order.

#ifndef WEFT_LAUNCH_STOP_SIGNAL_H_
#define WEFT_LAUNCH_STOP_SIGNAL_H_

namespace weft::launch {

// From here on SIGTERM and SIGINT set AskedToStop(). A SIGINT that comes after
// either ends the process at once, as it would without this.
void AwaitStopSignals();

bool AskedToStop();
// The first signal that came; 0 if none.
int StopSignal();

// For the words of who was asked.
inline constexpr char kEndsAtOnce[] = "Ctrl-C again ends it at once";

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_STOP_SIGNAL_H_
