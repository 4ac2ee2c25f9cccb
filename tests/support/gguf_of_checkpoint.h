// The GGUF file that llama.cpp's converter makes of a Hugging Face directory, so that golden
// checkpoints can be read in both forms. Its names and keys are spelled out a second time on
// purpose.
#pragma once

#include <string>

namespace spillway::test {

// `directory` holds a model of a family that GGUF has and whose options it can say (no dynamic
// rotary positions, the usual activation).
void write_gguf_of(const std::string& directory, const std::string& path);

}  // namespace spillway::test
