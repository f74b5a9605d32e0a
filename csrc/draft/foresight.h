#pragma once

#include "draft/runner.h"
#include "gumbel.h"

#include <functional>
#include <vector>

namespace eagle3 {

// What the target will draw depends on noise that is known, so candidates are ordered by what they will come to with
// it: log q / temperature + noise, those that the sequence's samplers would cut behind the others. p becomes the
// softmax of these scores: how likely each is the one, as the head's logits are not quite the target's.
//
// candidates: the most probable ones; to_target gives the target's token for the id of one. n_ahead: drafted tokens
// before them. The n_top best of them stay, in the new order.
void order_by_noise(const gumbel_noise & noise, uint32_t n_ahead, const std::function<llama_token(int32_t)> & to_target,
                    std::vector<draft_candidate> & candidates, int32_t n_top);

} // namespace eagle3
