// A model's identity on every machine that has a copy of its files: what tells whether two
// processes have the same model. Reads a few MiB per file. Any thread.
#pragma once

#include <string>

namespace spillway {

// `identity` of the model at `path`, with the contents of its files in place of the fingerprint,
// which has their times in it. A packed file names what it was made of, and stays as it is.
std::string portable_identity(std::string identity, const std::string& path);

}  // namespace spillway
