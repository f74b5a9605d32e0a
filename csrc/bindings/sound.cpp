#include "sound.h"

#include "module.h"
#include "nogil.h"

#include <pybind11/numpy.h>

namespace eagle3::python {

void register_sound(py::module_ & m) {
    m.def(
        "decode_sound",
        [](const py::bytes & data, uint32_t sample_rate, size_t n_max) {
            const std::string_view file(data);
            std::vector<float>     samples;
            {
                const nogil release;
                samples = decode_sound(file.data(), file.size(), sample_rate, n_max);
            }
            return py::array_t<float>(static_cast<py::ssize_t>(samples.size()), samples.data());
        },
        py::arg("data"), py::arg("sample_rate"), py::arg("n_max"),
        "Decode a WAV, MP3 or FLAC file to samples of one channel, float32 (n,). Raises ValueError if it cannot be "
        "decoded, or has more than n_max samples.");
}

} // namespace eagle3::python
