#pragma once

#include "llama.h"

#include <map>
#include <memory>
#include <vector>

namespace eagle3 {

// Tells drafters which tokens a grammar allows after a text and after tokens that are not drawn yet. If it is not
// known, all are allowed. Must not live longer than a step of the text.
class grammar_lookahead {
  public:
    // sampler: the grammar's, which has accepted the text; must outlive this. redraws: the grammar is asked about the
    // token that was drawn, and if it refuses that, another one is drawn; false: it is applied before the draw.
    grammar_lookahead(llama_sampler * sampler, bool redraws) : sampler_(sampler), redraws_(redraws) {}

    bool redraws() const { return redraws_; }

    // [i]: whether tokens[i] may come after the path.
    std::vector<bool> allowed(const std::vector<llama_token> & path, const std::vector<llama_token> & tokens);

  private:
    struct free_sampler {
        void operator()(llama_sampler * smpl) const { llama_sampler_free(smpl); }
    };

    llama_sampler * after(const std::vector<llama_token> & path);

    llama_sampler * sampler_;
    bool            redraws_;
    bool            has_failed_ = false; // the grammar is too ambiguous, or does not allow the path

    std::map<std::vector<llama_token>, std::unique_ptr<llama_sampler, free_sampler>> paths_;
};

} // namespace eagle3
