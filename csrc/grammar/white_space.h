#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace eagle3 {

// How a text sets white space, where JSON leaves it open: as it did at the last such place, else as JSON is usually
// printed. What it says are guesses, for drafts.
class white_space {
  public:
    struct guess {
        std::string text; // what is still missing
        float       p;    // how likely that is right
    };

    // Reads the next byte of the text.
    void read(char c);

    // The white space that is expected next, before this character; 0: which one comes is not known. None: so is the
    // white space.
    std::optional<guess> before(char next) const;

    // Are all brackets closed?
    bool is_outside() const { return containers_.empty(); }

    static bool is_space(uint32_t c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

  private:
    // Where white space may be: after a bracket that opens, after a comma or a colon, before a bracket that closes; and
    // where there usually is none.
    enum class place { elsewhere, opening, comma, colon, closing, none };

    // Brackets that are open, and the white space after each.
    struct container {
        char                       bracket;
        std::optional<std::string> begin = {};
    };

    // The same place in other containers of this kind and depth.
    using habit = std::tuple<place, char, size_t>;

    place                      place_before(char next) const;
    habit                      habit_of(place at) const;
    std::string                indent(size_t depth) const;
    std::optional<std::string> usual(place at) const;

    std::vector<container>       containers_;
    std::map<habit, std::string> habits_;
    std::string                  after_colon_ = " ";
    std::string                  after_comma_ = " "; // in one line
    std::optional<std::string>   after_square_;      // brackets
    std::string                  outside_;           // before the last value that is in no other
    bool                         is_framed_ = false; // that comes after another text, as a call's arguments do
    std::string                  pending_;           // white space that was read last
    char                         last_       = 0;    // character before that
    bool                         in_string_  = false;
    bool                         is_escaped_ = false;
};

} // namespace eagle3
