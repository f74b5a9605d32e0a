#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle3 {

// Decodes a WAV, MP3 or FLAC file to samples of one channel in -1 ... 1, by the decoder that libmtmd has too. libmtmd
// allocates as many samples as the file's header announces, and so a wrong header ends the process; this counts the
// samples that it has read. Throws std::invalid_argument if the file cannot be decoded, or has more than n_max samples.
std::vector<float> decode_sound(const void * data, size_t n_bytes, uint32_t sample_rate, size_t n_max);

} // namespace eagle3
