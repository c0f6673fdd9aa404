// CommunicatorId: names a communicator that is to be made, on all its ranks.

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_COMMUNICATOR_ID_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_COMMUNICATOR_ID_H_

namespace weft::collectives {

// As large as NCCL's.
struct CommunicatorId {
  char bytes[128] = {};
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_COMMUNICATOR_ID_H_
