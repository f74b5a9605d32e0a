#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagle3 {

// The positions of a sequence's slots for a head whose rotation has sections (M-RoPE). Text has the same position in
// all sections, rows of an image have their own, and text after an image goes on from where the image ends.
class rope_positions {
  public:
    static constexpr int32_t n_sections = 4;

    // The position of a slot in a section.
    int32_t at(int32_t slot, int32_t section) const;

    // Adds an image that begins at slot `first`. pos: the positions of its rows, [n_sections][n_rows]; n_pos: how far
    // the text after it is moved on. Removes what was known from there on.
    void add(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos);

    // Removes images that begin at slot n or later.
    void cut(int32_t n);

    // All images as numbers. restore() returns false if numbers are no such images.
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
