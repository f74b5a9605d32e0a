#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle3 {

// A WAV, MP3 or FLAC file as samples of one channel in -1 ... 1, by the decoder that libmtmd has, too. libmtmd makes
// room for as many as the file's header has, which ends the process if the header is wrong: this counts the samples
// that it has read. Throws std::invalid_argument if the file cannot be decoded, or gives more than n_max samples.
std::vector<float> decode_sound(const void * data, size_t n_bytes, uint32_t sample_rate, size_t n_max);

} // namespace eagle3
