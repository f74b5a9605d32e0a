#pragma once

#include <cstdint>
#include <string>

namespace eagle3 {

// What is special about an architecture's graph in llama.cpp.
struct arch_graph {
    // layer inputs are published for boundaries 0 .. n_layer - 1. If not, asking for one aborts the process
    bool         layer_inp      = false;
    // boundary n_layer is published too
    bool         layer_inp_last = false;
    // the boundary that llama_get_embeddings_nextn delivers, relative to n_layer: 0 before the final norm, 1 after it,
    // 2 all residual streams of the last layer beside each other, which only a block reads; -1 none
    int32_t      nextn          = -1;
    // llama.cpp builds a graph of the block for multi-token prediction, which reads that boundary. Many loaders keep a
    // block that no graph runs
    bool         block          = false;
    // name of the tensors that leave a layer
    const char * layer_out      = "l_out";
    // name that these get when the next layer reads them, null if they keep theirs
    const char * layer_in       = nullptr;
    // name that these get when a layer adds rows of an image (deepstack), null if none does
    const char * deepstack_out  = nullptr;
    // name that the last layer's gets, null if it keeps its own
    const char * last_out       = nullptr;
    // the tensors that enter layer 0 and leave the final norm have names
    bool         embd_named     = true;
    bool         norm_named     = true;
    // one row of width n_embd per token goes from layer to layer. Others cannot be read, only published
    bool         one_stream     = true;

    // Can llama.cpp itself copy this boundary out?
    bool publishes(int32_t boundary, int32_t n_layer) const;
    // Can this boundary be read from the graph?
    bool readable(int32_t boundary, int32_t n_layer) const;
};

arch_graph find_arch_graph(const std::string & arch);

// Why no head can be used with an architecture, for a message; null if one can.
const char * why_no_target(const std::string & arch);

// The same for drafters that read only its tokens.
const char * why_no_text(const std::string & arch);

// May a tensor of this name enter layer 0? A graph can have several such tensors: the last one does.
bool is_embd_name(const char * name);

} // namespace eagle3
