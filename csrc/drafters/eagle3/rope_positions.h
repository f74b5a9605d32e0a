#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle3 {

// Where the slots of a sequence stand for a head whose rotation has sections (M-RoPE): text counts on in all of them,
// rows of an image have their own positions, and what comes after counts on from where the image ends.
class rope_positions {
  public:
    static constexpr int32_t n_sections = 4;

    // of a slot that is written or drafted
    int32_t at(int32_t slot, int32_t section) const;

    // an image begins at slot `first`: pos has n_sections positions of each of its rows, [n_sections][n_rows]; n_pos is
    // how many positions it takes of what comes after. What was known from there on is removed
    void add(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos);

    // remove images that begin at slot n or later
    void cut(int32_t n);

    // all that is known, as numbers; restore() returns whether these are such
    std::vector<int32_t> save() const;
    bool                 restore(const std::vector<int32_t> & values);

  private:
    struct image {
        int32_t              first;
        int32_t              n_pos;
        std::vector<int32_t> pos;

        int32_t n_rows() const { return static_cast<int32_t>(pos.size()) / n_sections; }
    };

    std::vector<image> images_; // in order
};

} // namespace eagle3
