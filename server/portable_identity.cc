#include "server/portable_identity.h"

#include "offload/convert/fingerprint.h"

namespace spillway {

std::string portable_identity(std::string identity, const std::string& path) {
  const Result<std::string> contents = checkpoint_contents(path);
  const Result<std::string> fingerprint = checkpoint_fingerprint(path);
  if (!contents.ok() || !fingerprint.ok()) return identity;
  const size_t at = identity.find(fingerprint.value());
  if (at != std::string::npos) identity.replace(at, fingerprint->size(), contents.value());
  return identity;
}

}  // namespace spillway
