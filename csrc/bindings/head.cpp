#include "drafters/eagle3/head.h"

#include "drafters/eagle3/device.h"
#include "drafters/eagle3/weights.h"

#include "fs_path.h"
#include "module.h"
#include "nogil.h"

#include <pybind11/stl.h>

namespace eagle3::python {

void register_head(py::module_ & m) {
    py::class_<head_hparams>(m, "Head", "The facts of an EAGLE-3 head's GGUF header. Read-only; made by read_head().")
        .def_property_readonly("path", path_getter(&head_hparams::path))
        .def_readonly("arch", &head_hparams::arch,
                      "The file's general.architecture: eagle3, or eagle3-ext for heads that llama.cpp cannot run.")
        .def_readonly("dialect", &head_hparams::dialect, "The dialect of the file's keys: upstream, fork or extended.")
        .def_readonly("boundaries", &head_hparams::boundaries,
                      "The target's boundaries that a row is made of; empty without fc.")
        .def_readonly("boundaries_why", &head_hparams::boundaries_why,
                      "How the converter found the boundaries; empty = the file does not say.")
        .def_readonly("n_embd", &head_hparams::n_embd)
        .def_readonly("n_embd_tgt", &head_hparams::n_embd_tgt)
        .def_readonly("n_layer", &head_hparams::n_layer)
        .def_readonly("n_ff", &head_hparams::n_ff)
        .def_readonly("n_head", &head_hparams::n_head)
        .def_readonly("n_head_kv", &head_hparams::n_head_kv)
        .def_readonly("n_embd_head", &head_hparams::n_embd_head)
        .def_readonly("n_rot", &head_hparams::n_rot)
        .def_readonly("n_vocab_dft", &head_hparams::n_vocab_dft,
                      "Size of the draft vocabulary; 0 = the target's vocabulary.")
        .def_readonly("n_vocab", &head_hparams::n_vocab,
                      "Size of the target's vocabulary by the head's file; 0 = not known.")
        .def_readonly("norm_before_residual", &head_hparams::norm_before_residual)
        .def_readonly("norm_before_fc", &head_hparams::norm_before_fc)
        .def_readonly("fc_norm", &head_hparams::fc_norm)
        .def_readonly("norm_output", &head_hparams::norm_output)
        .def_readonly("use_aux_hidden_state", &head_hparams::use_aux_hidden_state)
        .def_readonly("has_tok_embd", &head_hparams::has_tok_embd)
        .def_readonly("has_output", &head_hparams::has_output)
        .def_readonly("has_d2t", &head_hparams::has_d2t)
        .def_readonly("sliding_window", &head_hparams::sliding_window)
        .def_readonly("hidden_act", &head_hparams::hidden_act)
        .def_readonly("rms_eps", &head_hparams::rms_eps)
        .def_readonly("logit_scale", &head_hparams::logit_scale)
        .def_readonly("kv_lora_rank", &head_hparams::kv_lora_rank,
                      "Rank of K and V in multi-head latent attention; 0 = the head has ordinary attention.")
        .def_readonly("q_lora_rank", &head_hparams::q_lora_rank,
                      "Rank of Q in multi-head latent attention; 0 = Q is not compressed.")
        .def_readonly("mask_token", &head_hparams::mask_token,
                      "P-EAGLE: the token of rows that the target has not computed; -1 = the head is no P-EAGLE head.")
        .def_readonly("rope_freq_base", &head_hparams::rope_freq_base)
        .def_readonly("rope_scaling", &head_hparams::rope_scaling)
        .def("__repr__", [](const head_hparams & h) {
            return py::str("Head(path={!r}, arch={!r}, boundaries={}, n_embd={}, n_layer={}, n_vocab_dft={})")
                .format(fs_path{ h.path }, h.arch, h.boundaries, h.n_embd, h.n_layer, h.n_vocab_dft);
        });

    m.def(
        "check_head",
        [](const fs_path & path, int32_t n_vocab, int32_t n_embd, int32_t n_layer) {
            const gguf_file     file(path);
            const head_hparams  hparams = read_head(file);
            const target_tables tables(n_vocab, n_embd, n_layer);
            const device        dev(nullptr, 0, nullptr, 1);
            head_weights(file, hparams, tables, dev, GGML_TYPE_F32, 1);
        },
        py::arg("path"), py::arg("n_vocab"), py::arg("n_embd"), py::arg("n_layer"), py::call_guard<nogil>(),
        "Check a head's tensors against a target of these sizes, as loading does. Raises ModelFileError, "
        "IncompatibleDraftError.");
    m.def(
        "read_head", [](const fs_path & path) { return read_head(gguf_file(path)); }, py::arg("path"),
        py::call_guard<nogil>(),
        "Read the header of a GGUF head. Raises ModelFileError with the key, what was expected and what was found.");
}

} // namespace eagle3::python
