#pragma once

#include <cstdint>
#include <string>

namespace eagle3 {

// What we know of the graphs of llama.cpp, by architecture, beyond the general rule
struct arch_graph {
    // layer inputs are published for boundaries 0 .. n_layer - 1. Where they are not, asking for one aborts the process
    bool         layer_inp      = false;
    // so is boundary n_layer
    bool         layer_inp_last = false;
    // the boundary that llama_get_embeddings_nextn delivers, relative to n_layer: 0 before the final norm, 1 after it,
    // 2 all residual streams of the last layer beside each other, which only a block reads; -1 none
    int32_t      nextn          = -1;
    // whether llama.cpp builds a graph of the block for multi-token prediction, which reads that. Many loaders keep
    // such a block that no graph runs
    bool         block          = false;
    // name of the tensors that leave a layer
    const char * layer_out      = "l_out";
    // name that they get when the next layer takes them in, null if they keep theirs
    const char * layer_in       = nullptr;
    // name that they get when a layer adds an image's rows of its own to what it hands on (deepstack), null if none
    // does
    const char * deepstack_out  = nullptr;
    // name that the last of them gets, null if it keeps its own
    const char * last_out       = nullptr;
    // whether the tensors that enter layer 0 and leave the final norm have names
    bool         embd_named     = true;
    bool         norm_named     = true;
    // whether what goes from layer to layer is one row of width n_embd per token. Others can only be published
    bool         one_stream     = true;

    // can llama.cpp itself copy this boundary out?
    bool publishes(int32_t boundary, int32_t n_layer) const;
    // can it be read from the graph?
    bool readable(int32_t boundary, int32_t n_layer) const;
};

arch_graph find_arch_graph(const std::string & arch);

// Why no head can be used with an architecture, for a message; null if one can
const char * why_no_target(const std::string & arch);

// the same for drafters that read nothing of it but tokens
const char * why_no_text(const std::string & arch);

// is this the name of a tensor that may enter layer 0? A graph can have several: the last one does
bool is_embd_name(const char * name);

} // namespace eagle3
