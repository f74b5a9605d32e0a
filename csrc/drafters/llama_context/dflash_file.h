#pragma once

#include "gguf_file.h"

#include <cstdint>
#include <string>
#include <vector>

namespace eagle3 {

// How a block's rows give its tokens.
enum class block_kind {
    dflash,  // each row has logits
    dspark,  // each row has logits that depend on the best token of the row before (Markov head), maybe with confidence
    dflash2, // each row has some candidates, and scores for each after each candidate of the row before (selector)
};

// The facts of the header of a block drafter (general.architecture dflash), with the checks that llama.cpp lacks.
struct dflash_hparams {
    std::string          path;
    block_kind           kind = block_kind::dflash;
    std::vector<int32_t> boundaries;              // of the target
    int32_t              n_embd              = 0; // of the drafter and of its target
    int32_t              n_layer             = 0;
    int32_t              n_vocab             = 0; // of the target
    int32_t              n_vocab_dft         = 0; // 0: the target's
    int32_t              block_size          = 0; // rows of a block, at most
    int32_t              mask_token          = 0;
    int32_t              sliding_window      = 0; // 0: none
    int32_t              selector_top_k      = 0; // of dflash2
    bool                 is_causal           = false;
    bool                 sample_from_anchor  = false; // the first row drafts too; else it is only seen
    bool                 has_confidence      = false; // of dspark
    float                logit_scale         = 0.0f;  // is not in llama.cpp's graph; 0: none
    float                final_logit_softcap = 0.0f;  // is not in llama.cpp's graph; 0: none

    int32_t n_embd_feat() const { return n_embd * static_cast<int32_t>(boundaries.size()); }

    int32_t n_draft_max() const { return block_size - (sample_from_anchor ? 0 : 1); }

    // "dflash", "dspark" or "dflash2"
    const char * kind_name() const;
};

// Throws model_file_error with the key or tensor, what was expected and what was found.
dflash_hparams read_dflash(const gguf_file & file);

} // namespace eagle3
