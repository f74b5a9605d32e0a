#include "drafters/eagle3/rope_positions.h"

namespace eagle3 {

int32_t rope_positions::at(int32_t slot, int32_t section) const {
    int32_t pos = slot;
    for (const image & image : images_) {
        if (slot < image.first) {
            break;
        }
        if (slot < image.first + image.n_rows()) {
            return image.pos[section * image.n_rows() + slot - image.first];
        }
        pos -= image.n_rows() - image.n_pos;
    }
    return pos;
}

void rope_positions::add(int32_t first, int32_t n_pos, const std::vector<int32_t> & pos) {
    cut(first);
    images_.push_back({ first, n_pos, pos });
}

void rope_positions::cut(int32_t n) {
    while (!images_.empty() && images_.back().first >= n) {
        images_.pop_back();
    }
}

std::vector<int32_t> rope_positions::save() const {
    std::vector<int32_t> values;
    for (const image & image : images_) {
        values.insert(values.end(), { image.first, image.n_pos, image.n_rows() });
        values.insert(values.end(), image.pos.begin(), image.pos.end());
    }
    return values;
}

bool rope_positions::restore(const std::vector<int32_t> & values) {
    images_.clear();
    for (size_t i = 0; i < values.size();) {
        const size_t n_left = values.size() - i;
        const size_t n_rows = n_left >= 3 && values[i + 2] > 0 ? values[i + 2] : 0;
        if (n_rows == 0 || n_rows > (n_left - 3) / n_sections) {
            images_.clear();
            return false;
        }
        const auto pos = values.begin() + static_cast<std::ptrdiff_t>(i) + 3;
        images_.push_back(
            { values[i], values[i + 1], { pos, pos + static_cast<std::ptrdiff_t>(n_rows * n_sections) } });
        i += 3 + n_rows * n_sections;
    }
    return true;
}

} // namespace eagle3
