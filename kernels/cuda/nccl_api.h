// The functions of NCCL, from the library that is found at run time (libnccl.so.2, 2.7 or newer,
// the first with send and receive). The emulation of CUDA has functions of its own
// (tests/support/fake_nccl.cc).
#pragma once

#include <nccl.h>

#include "kernels/base/status.h"

namespace spillway::cuda {

struct NcclApi {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetUniqueId) unique_id;
  decltype(&ncclCommInitAll) init_all;
  decltype(&ncclCommInitRank) init_rank;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
};

// kNotFound: there is no such library, or it is too old. Any thread.
Result<const NcclApi*> nccl_api();

}  // namespace spillway::cuda
