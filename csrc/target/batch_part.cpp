#include "target/batch_part.h"

#include "error.h"

#include <algorithm>

namespace eagle3 {

int32_t count_leaves(const batch_part & part) {
    const auto n = static_cast<int32_t>(part.tokens.size());
    if (part.parents.size() != part.tokens.size()) {
        throw std::invalid_argument(format("%d tokens, but %zu parents", n, part.parents.size()));
    }
    std::vector<bool> is_leaf(n, true);
    for (int32_t i = 1; i < n; ++i) {
        if (part.parents[i] < 0 || part.parents[i] >= i) {
            throw std::invalid_argument(
                format("drafted token %d: expected a parent before it, found %d", i - 1, part.parents[i] - 1));
        }
        is_leaf[part.parents[i]] = false;
    }
    return static_cast<int32_t>(std::count(is_leaf.begin(), is_leaf.end(), true));
}

} // namespace eagle3
