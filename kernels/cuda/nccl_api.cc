#if __has_include(<nccl.h>)

#include "kernels/cuda/nccl_api.h"

#include <dlfcn.h>

#include <string>

namespace spillway::cuda {
namespace {

constexpr int kVersionLeast = NCCL_VERSION(2, 7, 0);

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

Result<NcclApi> load() {
  // Not closed: NCCL has threads.
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return not_found(std::string("several GPUs need NCCL, and it cannot be loaded: ") +
                     (why == nullptr ? "libnccl.so.2" : why) +
                     "; install libnccl2, or put its folder into LD_LIBRARY_PATH");
  }
  NcclApi api{};
  const bool complete = find(library, "ncclGetVersion", &api.get_version) &&
                        find(library, "ncclGetErrorString", &api.error_string) &&
                        find(library, "ncclGetUniqueId", &api.unique_id) &&
                        find(library, "ncclCommInitAll", &api.init_all) &&
                        find(library, "ncclCommInitRank", &api.init_rank) &&
                        find(library, "ncclCommDestroy", &api.destroy) &&
                        find(library, "ncclCommAbort", &api.abort) &&
                        find(library, "ncclCommGetAsyncError", &api.async_error) &&
                        find(library, "ncclAllGather", &api.all_gather) &&
                        find(library, "ncclBroadcast", &api.broadcast) &&
                        find(library, "ncclSend", &api.send) &&
                        find(library, "ncclRecv", &api.receive);
  int version = 0;
  if (!complete || api.get_version(&version) != ncclSuccess || version < kVersionLeast) {
    return not_found("libnccl.so.2 is too old: 2.7 or newer is needed");
  }
  return api;
}

}  // namespace

Result<const NcclApi*> nccl_api() {
  static const Result<NcclApi> api = load();
  if (!api.ok()) return api.status();
  return &api.value();
}

}  // namespace spillway::cuda

#endif
