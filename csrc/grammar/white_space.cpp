#include "grammar/white_space.h"

#include <algorithm>

namespace eagle3 {

namespace {

// How often guesses were right in JSON of a few models; the planner calibrates them.
constexpr float p_habit = 0.95f;
constexpr float p_usual = 0.8f;

constexpr size_t n_space_max = 64;  // bytes of white space that are kept
constexpr size_t n_depth_max = 256; // brackets

bool has_line(const std::string & space) {
    return space.find('\n') != std::string::npos;
}

} // namespace

void white_space::read(char c) {
    if (in_string_) {
        const bool ends = !is_escaped_ && (c == '"' || c == '\n'); // JSON's strings have no raw newline
        is_escaped_     = !is_escaped_ && c == '\\';
        in_string_      = !ends;
        return;
    }
    if (is_space(static_cast<unsigned char>(c))) {
        pending_.append(pending_.size() < n_space_max, c);
        return;
    }
    const place at = place_before(c);
    if (at != place::elsewhere && at != place::none) {
        habits_[habit_of(at)] = pending_;
    }
    if (at == place::opening) {
        containers_.back().begin = pending_;
        if (containers_.back().bracket == '[') {
            after_square_ = pending_;
        }
    } else if (at == place::colon) {
        after_colon_ = pending_;
    } else if (at == place::comma && !has_line(pending_)) {
        after_comma_ = pending_;
    }
    if ((c == '{' || c == '[') && containers_.empty()) {
        outside_   = pending_;
        is_framed_ = last_ != 0;
    }
    pending_.clear();
    last_      = c;
    in_string_ = c == '"';
    if ((c == '{' || c == '[') && containers_.size() < n_depth_max) {
        containers_.push_back({ c });
    } else if ((c == '}' || c == ']') && !containers_.empty()) {
        containers_.pop_back();
    }
}

white_space::place white_space::place_before(char next) const {
    const bool is_inside = !containers_.empty();
    const bool opens     = is_inside && (last_ == '{' || last_ == '[');
    const bool closes    = is_inside && (next == '}' || next == ']');
    if (opens || closes) {
        return opens && closes ? place::none : opens ? place::opening : place::closing;
    }
    if (is_inside && (last_ == ',' || last_ == ':')) {
        return last_ == ',' ? place::comma : place::colon;
    }
    return is_inside && (next == ',' || next == ':') ? place::none : place::elsewhere;
}

white_space::habit white_space::habit_of(place at) const {
    return { at, containers_.back().bracket, containers_.size() };
}

// The indentation inside of the first `depth` containers.
std::string white_space::indent(size_t depth) const {
    const auto & begin = depth == 0 ? std::nullopt : containers_[depth - 1].begin;
    return begin && has_line(*begin) ? begin->substr(begin->rfind('\n') + 1) : "";
}

// What is usual where this text has no habit.
std::optional<std::string> white_space::usual(place at) const {
    const size_t depth = containers_.size();
    switch (at) {
        case place::none: return "";
        case place::colon: return after_colon_;
        case place::comma:
        case place::closing: {
            const std::string & begin = containers_.back().begin.value_or("");
            if (has_line(begin)) {
                return "\n" + indent(at == place::comma ? depth : depth - 1);
            }
            return at == place::comma ? after_comma_ : begin;
        }
        case place::opening: {
            const bool is_square = containers_.back().bracket == '[';
            if (depth == 1 && is_framed_) {
                return "";
            }
            if (depth < 2 || !containers_[depth - 2].begin || (is_square && !after_square_)) {
                return std::nullopt;
            }
            const std::string & around = is_square ? *after_square_ : *containers_[depth - 2].begin;
            if (!has_line(around)) {
                return around;
            }
            const std::string outer = indent(depth - 2), inner = indent(depth - 1);
            return "\n" + inner + inner.substr(std::min(outer.size(), inner.size()));
        }
        default: break;
    }
    if (!containers_.empty()) {
        return std::nullopt;
    }
    return last_ == '}' || last_ == ']' ? outside_ : pending_; // as much around a value; nothing more before it
}

std::optional<white_space::guess> white_space::before(char next) const {
    if (in_string_) {
        return std::nullopt;
    }
    const place                      at    = place_before(next);
    const bool                       has   = at != place::none && at != place::elsewhere;
    const auto                       known = has ? habits_.find(habit_of(at)) : habits_.end();
    const std::optional<std::string> all   = known == habits_.end() ? usual(at) : known->second;
    if (!all || all->compare(0, pending_.size(), pending_) != 0) {
        return std::nullopt;
    }
    return guess{ all->substr(pending_.size()), known == habits_.end() ? p_usual : p_habit };
}

} // namespace eagle3
