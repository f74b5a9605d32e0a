#pragma once

#include "policy/acceptance.h"

#include <vector>

namespace eagle3 {

// What is known of a drafter before it drafts, from texts of earlier processes. Times are in tokens of plain decoding,
// since a machine is faster at one time than at another.
struct prior {
    acceptance::weights accepted{};
    float               log_p       = 0.0f; // mean log probability of its best tokens
    float               row         = 0.0f; // time of reading a row of a prompt; 0: not seen
    float               worth       = 0.0f; // tokens that its steps give beyond plain ones
    float               saved       = 0.0f; // what its drafts save in a text; negative: they cost time
    float               for_prompts = 0.0f; // what reading prompts may cost
    std::vector<float>  for_drafts;         // [number of sequences at once]: what drafts may cost
};

} // namespace eagle3
