#pragma once

#include <string>

namespace eagle3 {

// The facts of the GGUF header of a multimodal projector (mmproj).
struct projector_info {
    std::string vision; // type of its projector for images, empty if it takes none
    std::string audio;  // type of its projector for sounds, empty if it takes none
};

// Throws model_file_error if the file is missing, truncated, not GGUF, no projector, or known to be converted wrongly.
projector_info read_projector_info(const std::string & path);

} // namespace eagle3
