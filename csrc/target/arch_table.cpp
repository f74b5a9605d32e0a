#include "target/arch_table.h"

#include <cstring>
#include <map>

namespace eagle3 {

namespace {

// An entry of the table: its methods say what is special.
struct entry : arch_graph {
    entry & publishes_inputs(bool last = false) {
        layer_inp      = true;
        layer_inp_last = last;
        return *this;
    }

    entry & publishes_nextn(int32_t boundary) {
        nextn = boundary;
        return *this;
    }

    // Its block for multi-token prediction reads this boundary, relative to n_layer.
    entry & has_block(int32_t boundary) {
        block = true;
        return publishes_nextn(boundary);
    }

    entry & layer_names(const char * out, const char * in = nullptr, const char * last = nullptr) {
        layer_out = out;
        layer_in  = in;
        last_out  = last;
        return *this;
    }

    entry & deepstack_name(const char * out) {
        deepstack_out = out;
        return *this;
    }

    entry & unnamed_embd() {
        embd_named = false;
        return *this;
    }

    entry & unnamed_norm() {
        norm_named = false;
        return *this;
    }

    entry & several_streams() {
        one_stream = false;
        return *this;
    }
};

} // namespace

bool arch_graph::publishes(int32_t boundary, int32_t n_layer) const {
    if (boundary < n_layer) {
        return layer_inp;
    }
    return (boundary == n_layer && layer_inp_last) || (nextn >= 0 && boundary == n_layer + nextn);
}

bool arch_graph::readable(int32_t boundary, int32_t n_layer) const {
    return one_stream && (boundary > 0 || embd_named) && (boundary <= n_layer || norm_named);
}

arch_graph find_arch_graph(const std::string & arch) {
    // the graphs with res->t_layer_inp and res->t_h_nextn in llama.cpp's src/models whose rows have the width n_embd,
    // and those whose tensors have other names
    static const std::map<std::string, arch_graph> table = {
        { "arwkv7", entry().unnamed_embd() }, // a norm stands before the first layer
        { "bailingmoe3", entry().publishes_inputs().has_block(1) },
        { "bloom", entry().unnamed_embd() },
        { "cohere2moe", entry().has_block(1) },
        { "deepseek2", entry().has_block(1) },
        { "deepseek32", entry().has_block(1) },
        // publishes the mean of its streams, and all of them for the block
        { "deepseek4", entry().publishes_inputs(true).has_block(2).several_streams() },
        { "gemma3n", entry().several_streams() },
        { "gemma4", entry().publishes_inputs().publishes_nextn(1) },
        { "glm-dsa", entry().has_block(1) },
        { "glm4moe", entry().has_block(1) },
        { "glm5-next", entry().several_streams() },
        { "gpt-oss", entry().publishes_inputs().publishes_nextn(0) },
        { "granite", entry().layer_names("l_out", "deepstack_in") },
        { "granite_swa", entry().layer_names("l_out", "deepstack_in") },
        { "hunyuan-dense", entry().publishes_inputs() },
        { "hunyuan_vl", entry().publishes_inputs() },
        { "hy_v3", entry().has_block(1) },
        { "hy_v4", entry().several_streams() },
        { "lfm2", entry().publishes_inputs() },
        { "lfm2moe", entry().publishes_inputs() },
        { "llama", entry().publishes_inputs() },
        { "mimo2", entry().publishes_inputs(true).has_block(0) },
        { "minimax-01", entry().publishes_inputs() },
        { "minimax-m2", entry().publishes_inputs() },
        { "muse-glimmer", entry().publishes_inputs() },
        { "nanbeige", entry().publishes_inputs() },
        { "nemotron_h", entry().publishes_inputs(true).publishes_nextn(1).layer_names("nemotron_h_block_out") },
        { "nemotron_h_moe", entry().publishes_inputs(true).has_block(1).layer_names("nemotron_h_block_out") },
        { "plamo2", entry().layer_names("ffn_residual") },
        { "plamo3", entry().unnamed_norm() },
        { "qwen3", entry().publishes_inputs() },
        { "qwen35", entry().publishes_inputs().has_block(1) },
        { "qwen35moe", entry().publishes_inputs().has_block(1) },
        { "qwen3moe", entry().publishes_inputs() },
        { "qwen3next", entry().publishes_inputs().has_block(1) },
        { "qwen3vl", entry().deepstack_name("deepstack_out") },
        { "qwen3vlmoe", entry().deepstack_name("deepstack_out") },
        { "qwen4exp", entry().several_streams() },
        { "rwkv6", entry().unnamed_embd() },
        { "rwkv7", entry().unnamed_embd() },
        { "step35", entry().has_block(0).layer_names("l_out", "attn_norm_in", "h_nextn") },
    };
    const auto it = table.find(arch);
    return it == table.end() ? arch_graph() : it->second;
}

static const char * const streams =
    "its layers hand on several streams, none of which is the hidden state that a head reads";

const char * why_no_text(const std::string & arch) {
    const char * why = why_no_target(arch);
    return why == streams ? nullptr : why;
}

const char * why_no_target(const std::string & arch) {
    static const char * const encoder   = "it only encodes";
    static const char * const embedding = "it is an embedding model";
    static const char * const diffusion = "it is a diffusion model, which fills in masks and has no next token";
    static const char * const draft     = "it is itself a draft";
    static const char * const audio     = "it makes audio, not text";

    static const std::map<std::string, const char *> table = {
        { "bert", encoder },
        { "chameleon",
          "llama.cpp masks its image tokens in the first row of a batch only: several rows give other logits" },
        { "clip", "it is an image encoder" },
        { "dflash", draft },
        { "dream", diffusion },
        { "eagle3", draft },
        { "eagle3-ext", draft },
        { "eurobert", encoder },
        { "gemma-embedding", embedding },
        { "gemma3n", streams },
        { "gemma4-assistant", draft },
        { "glm5-next", streams },
        { "gptj", "llama.cpp has its name but cannot run it" },
        { "hy_v4", streams },
        { "jina-bert-v2", encoder },
        { "jina-bert-v3", encoder },
        { "llada", diffusion },
        { "llada-moe", diffusion },
        { "llama-embed", embedding },
        { "modern-bert", encoder },
        { "neo-bert", encoder },
        { "nomic-bert", encoder },
        { "nomic-bert-moe", encoder },
        { "pockettts", audio },
        { "qwen3tts", audio },
        { "qwen4exp", streams },
        { "rnd1", diffusion },
        { "t5", "it needs an encoder's output, which llama-cpp-python does not compute" },
        { "t5encoder", encoder },
        { "wavtokenizer-dec", audio },
    };
    const auto it = table.find(arch);
    return it == table.end() ? nullptr : it->second;
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
