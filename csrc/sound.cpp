#include "sound.h"

#include "error.h"

#define MINIAUDIO_IMPLEMENTATION
#define MA_API static // libmtmd has these symbols too
#define MA_NO_DEVICE_IO
#define MA_NO_THREADING
#define MA_NO_RESOURCE_MANAGER
#define MA_NO_NODE_GRAPH
#define MA_NO_ENGINE
#define MA_NO_GENERATION
#define MA_NO_ENCODING
#include "miniaudio.h"

#include <memory>

namespace eagle3 {

std::vector<float> decode_sound(const void * data, size_t n_bytes, uint32_t sample_rate, size_t n_max) {
    const ma_decoder_config config = ma_decoder_config_init(ma_format_f32, 1, sample_rate);
    ma_decoder              decoder;
    if (ma_decoder_init_memory(data, n_bytes, &config, &decoder) != MA_SUCCESS) {
        throw std::invalid_argument("cannot be decoded: it is damaged");
    }
    const std::unique_ptr<ma_decoder, ma_result (*)(ma_decoder *)> owner(&decoder, ma_decoder_uninit);

    std::vector<float> samples;
    std::vector<float> piece(1 << 16);
    for (;;) {
        ma_uint64       n_read = 0;
        const ma_result result = ma_decoder_read_pcm_frames(&decoder, piece.data(), piece.size(), &n_read);
        samples.insert(samples.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(n_read));
        if (samples.size() > n_max) {
            throw std::invalid_argument(format("has more than %zu seconds", n_max / sample_rate));
        }
        if (result != MA_SUCCESS || n_read < piece.size()) {
            break;
        }
    }
    if (samples.size() < 2) {
        throw std::invalid_argument("has no samples");
    }
    return samples;
}

} // namespace eagle3
