#include "target/arch_table.h"

#include <cstring>
#include <map>

namespace eagle3 {

bool arch_graph::publishes(int32_t boundary, int32_t n_layer) const {
    if (boundary < n_layer) {
        return layer_inp;
    }
    return (boundary == n_layer && layer_inp_last) || (nextn >= 0 && boundary == n_layer + nextn);
}

arch_graph find_arch_graph(const std::string & arch) {
    // the graphs with res->t_layer_inp and res->t_h_nextn in llama.cpp's src/models whose rows are the residual stream.
    // deepseek4 and qwen4exp publish something else: they carry several streams
    // clang-format off
    static const std::map<std::string, arch_graph> table = {
        //                    layer_inp, last, nextn
        { "llama",          { true, false, -1 } },
        { "bailingmoe3",    { true, false, 1 } },
        { "gemma4",         { true, false, 1 } },
        { "gpt-oss",        { true, false, 0 } },
        { "hunyuan_vl",     { true, false, -1 } },
        { "hunyuan-dense",  { true, false, -1 } },
        { "lfm2",           { true, false, -1 } },
        { "lfm2moe",        { true, false, -1 } },
        { "mimo2",          { true, true, -1 } },
        { "minimax-01",     { true, false, -1 } },
        { "minimax-m2",     { true, false, -1 } },
        { "muse-glimmer",   { true, false, -1 } },
        { "nanbeige",       { true, false, -1 } },
        { "nemotron_h",     { true, true, 1, "nemotron_h_block_out" } },
        { "nemotron_h_moe", { true, true, 1, "nemotron_h_block_out" } },
        { "qwen3",          { true, false, -1 } },
        { "qwen3moe",       { true, false, -1 } },
        { "qwen35",         { true, false, 1 } },
        { "qwen35moe",      { true, false, 1 } },
        { "qwen3next",      { true, false, 1 } },
        // a norm without a name of its own stands before the first layer
        { "bloom",          { false, false, -1, "l_out", false } },
        { "rwkv6",          { false, false, -1, "l_out", false } },
        { "rwkv7",          { false, false, -1, "l_out", false } },
        { "arwkv7",         { false, false, -1, "l_out", false } },
    };
    // clang-format on
    const auto it = table.find(arch);
    return it == table.end() ? arch_graph() : it->second;
}

bool is_embd_name(const char * name) {
    static const char * const names[] = {
        "embd",      "inp_embd", "inp_scaled",        "inp_embd_scaled",    "inp_norm",
        "embd_norm", "inpL",     "model.input_embed", "model.embed_tokens", "embedding_output",
    };
    for (const char * n : names) {
        if (n[0] == name[0] && strcmp(n, name) == 0) {
            return true;
        }
    }
    return false;
}

} // namespace eagle3
