#include "offload/convert/torch_reader.h"

namespace spillway {

Result<TorchFile> read_torch(const ByteSource& source) {
  return invalid_argument(source.name() + ": .bin files are not read yet");
}

}  // namespace spillway
