#pragma once

#include "drafters/eagle3/draft_memory.h"
#include "drafters/eagle3/runner.h"

namespace eagle3 {

// Evaluates waiting rows without drafting after them, such as those of a prompt: only their K/V is computed.
class row_writer {
  public:
    // n_batch: most rows of a graph.
    row_writer(draft_memory & memory, draft_runner & runner, int32_t n_batch) :
        memory_(memory), runner_(runner), n_batch_(n_batch) {}

    int32_t n_batch() const { return n_batch_; }

    // Writes all waiting rows of a sequence but the last, whose next token is not known yet.
    void flush(llama_seq_id seq_id);

  private:
    draft_memory & memory_;
    draft_runner & runner_;
    int32_t        n_batch_;
    draft_pass     pass_;
};

} // namespace eagle3
