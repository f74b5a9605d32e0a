#include "error.h"
#include "ggml-rpc.h"
#include "module.h"
#include "nogil.h"
#include "py_device.h"
#include "rpc_relay.h"

#include <pybind11/stl.h>

#include <optional>

namespace eagle3::python {

static std::vector<py_device> wrap(const std::vector<ggml_backend_dev_t> & devs) {
    return { devs.begin(), devs.end() };
}

// llama.cpp makes one connection to an endpoint when something first needs it, and closes it when nothing does. This
// holds it.
struct rpc_connection {
    explicit rpc_connection(std::string endpoint_) : endpoint(std::move(endpoint_)), devs(rpc_devices(endpoint)) {
        if (devs.empty()) {
            throw error(format("the ggml-rpc server %s offers no device", endpoint.c_str()));
        }
        open();
    }

    ~rpc_connection() { close(); }

    void open() { backend.reset(ggml_backend_dev_init(devs.front(), nullptr)); }

    void close() {
        backend.reset();
        if (relay && !relay->is_held()) {
            relay.reset();
        }
    }

    std::string                     endpoint;
    std::vector<ggml_backend_dev_t> devs;
    backend_ptr                     backend; // one backend is enough to hold the connection
    std::unique_ptr<rpc_relay>      relay;
};

void register_devices(py::module_ & m) {
    const auto without_gil = py::call_guard<nogil>();

    py::class_<py_device>(m, "Device", "A ggml device that models can run on. It lives as long as the process.")
        .def_property_readonly("name", [](const py_device & self) { return ggml_backend_dev_name(self.dev); })
        .def_property_readonly(
            "description", [](const py_device & self) { return ggml_backend_dev_description(self.dev); },
            "The endpoint of a device on a ggml-rpc server.")
        .def_property_readonly(
            "is_remote", [](const py_device & self) { return is_remote(self.dev); },
            "Whether it is on a ggml-rpc server.")
        .def_property_readonly(
            "address", [](const py_device & self) { return reinterpret_cast<uintptr_t>(self.dev); },
            "The address of the ggml_backend_dev_t.")
        .def_property_readonly("memory",
                               py::cpp_function(
                                   [](const py_device & self) {
                                       size_t free = 0, total = 0;
                                       ggml_backend_dev_memory(self.dev, &free,
                                                               &total); // of a ggml-rpc server, which is asked
                                       return std::make_pair(free, total);
                                   },
                                   without_gil),
                               "Free bytes, and all bytes of its memory.")
        .def_property_readonly(
            "buffer_type",
            [](const py_device & self) -> std::optional<std::pair<std::string, uintptr_t>> {
                ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(self.dev);
                if (!type) {
                    return std::nullopt;
                }
                return std::make_pair(std::string(ggml_backend_buft_name(type)), reinterpret_cast<uintptr_t>(type));
            },
            "The name and address of the device's default ggml_backend_buffer_type_t.")
        .def_property_readonly(
            "extra_buffer_types",
            [](const py_device & self) {
                std::vector<std::string> names;
                for (ggml_backend_buffer_type_t type : extra_buffer_types(self.dev)) {
                    names.emplace_back(ggml_backend_buft_name(type));
                }
                return names;
            },
            "Names of its backend's other buffer types for weights that this machine can use: CPU_REPACK, AMX, ...")
        .def("__repr__",
             [](const py_device & self) { return std::string("<Device ") + ggml_backend_dev_name(self.dev) + ">"; });

    struct hidden_amx {};
    py::class_<hidden_amx>(m, "HiddenAmx",
                           "A context manager: models that are loaded meanwhile do not use AMX's layout of weights.")
        .def(py::init<>())
        .def("__enter__", [](hidden_amx &) { hide_amx(); })
        .def("__exit__", [](hidden_amx &, const py::args &) { show_amx(); });

    m.attr("RPC_PROTO_VERSION") = py::make_tuple(RPC_PROTO_MAJOR_VERSION, RPC_PROTO_MINOR_VERSION);
    m.def("rpc_supported", &rpc_supported, "Whether llama.cpp was built with ggml-rpc.");
    py::class_<rpc_connection>(m, "RpcConnection",
                               R"pbdoc(
            Keeps the connection to a ggml-rpc server open as long as it lives.

            The server's devices are not registered with ggml: only models that are given them use them. llama.cpp ends
            the process if the server cannot be reached, so use `llama_cpp_eagle3.model.rpc`, which checks that first.
        )pbdoc")
        .def(py::init<std::string>(), py::arg("endpoint"), without_gil)
        .def_property_readonly(
            "devices", [](const rpc_connection & self) { return wrap(self.devs); },
            "The devices of the server: the same objects each time.")
        .def("open", &rpc_connection::open, without_gil, "Hold the connection again, after `close`.")
        .def("close", &rpc_connection::close, without_gil,
             "Release the connection. It stays open, and `is_held` True, while other objects hold it.")
        .def(
            "relay",
            [](rpc_connection & self, int fd) { self.relay = std::make_unique<rpc_relay>(fd, self.devs.size()); },
            py::arg("fd"), without_gil,
            "Put a relay between llama.cpp and its server; fd: the socket of their connection (csrc/rpc_relay.h).")
        .def_property_readonly(
            "is_lost", [](const rpc_connection & self) { return self.relay && self.relay->is_lost(); },
            "Whether the connection is lost: the server is gone, or its answer cannot be true.")
        .def_property_readonly(
            "is_held", [](const rpc_connection & self) { return self.relay && self.relay->is_held(); },
            "Whether llama.cpp has its socket open.")
        .def(
            "drop_graphs", [](const rpc_connection & self) { rpc_drop_graphs(self.endpoint); }, without_gil,
            "Have the server forget its cached graphs. Has to be called after anything was freed on a server that is "
            "still used.");
    m.def(
        "local_accelerators", [] { return wrap(local_accelerators()); },
        "Return the GPUs of this machine; integrated ones only if it has no other.");
    m.def(
        "local_devices",
        [] {
            std::vector<py_device> all;
            for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
                all.emplace_back(ggml_backend_dev_get(i));
            }
            return all;
        },
        "Return all devices of ggml on this machine.");
    m.def(
        "local_device",
        [](const std::string & name) -> std::optional<py_device> {
            ggml_backend_dev_t dev = ggml_backend_dev_by_name(name.c_str());
            return dev ? std::optional<py_device>(dev) : std::nullopt;
        },
        py::arg("name"),
        "Return the registered ggml device of that name, such as CPU or CUDA0; None if there is none.");
}

} // namespace eagle3::python
