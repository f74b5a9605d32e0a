#pragma once

#include "chat-peg-parser.h"

#include <set>
#include <type_traits>
#include <vector>

namespace eagle3::chat {

using part_id = common_peg_parser_id;
using tags    = common_chat_peg_builder;

// The parts that a part's grammar is made of.
inline std::vector<part_id> parts_of(const common_peg_parser_variant & one) {
    return std::visit(
        [](const auto & p) -> std::vector<part_id> {
            using T = std::decay_t<decltype(p)>;
            if constexpr (std::is_same_v<T, common_peg_sequence_parser> ||
                          std::is_same_v<T, common_peg_choice_parser>) {
                return p.children;
            } else if constexpr (std::is_same_v<T, common_peg_repetition_parser> ||
                                 std::is_same_v<T, common_peg_rule_parser> ||
                                 std::is_same_v<T, common_peg_tag_parser> ||
                                 std::is_same_v<T, common_peg_atomic_parser> ||
                                 std::is_same_v<T, common_peg_ac_parser>) {
                return { p.child };
            } else {
                return {}; // look-ahead and parts with a grammar of their own add nothing, and schemas have no tags
            }
        },
        one);
}

inline bool is_tagged(const common_peg_arena & parser, part_id id, const char * tag) {
    const auto * found = std::get_if<common_peg_tag_parser>(&parser.get(id));
    return found && found->tag == tag;
}

// All parts of a part, itself first, each once.
inline std::vector<part_id> all_parts_of(const common_peg_arena & parser, part_id id) {
    std::set<part_id>    seen = { id };
    std::vector<part_id> all  = { id };
    for (size_t i = 0; i < all.size(); ++i) {
        for (const part_id part : parts_of(parser.get(all[i]))) {
            if (seen.insert(part).second) {
                all.push_back(part);
            }
        }
    }
    return all;
}

// The first part with a tag; COMMON_PEG_INVALID_PARSER_ID: there is none.
inline part_id find_tag(const common_peg_arena & parser, part_id id, const char * tag) {
    for (const part_id part : all_parts_of(parser, id)) {
        if (is_tagged(parser, part, tag)) {
            return part;
        }
    }
    return COMMON_PEG_INVALID_PARSER_ID;
}

inline bool has_tag(const common_peg_arena & parser, part_id id, const char * tag) {
    return find_tag(parser, id, tag) != COMMON_PEG_INVALID_PARSER_ID;
}

} // namespace eagle3::chat
