#include "calls.h"

#include "chat-peg-parser.h"
#include "json-schema-to-grammar.h"

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

namespace eagle3::chat {

namespace {

using id_t = common_peg_parser_id;
using tags = common_chat_peg_builder;

thread_local const call_wishes * wishes = nullptr;

const char * const WHITE_SPACE = "[ \\t\\n]{0,4}"; // that may be left between a thought and a call

// The parts that a part's grammar is made of.
std::vector<id_t> parts_of(const common_peg_parser_variant & one) {
    return std::visit(
        [](const auto & p) -> std::vector<id_t> {
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

class shaper {
  public:
    shaper(common_peg_arena & parser, common_peg_parser_builder & builder, const call_wishes & wish) :
        parser_(parser), builder_(builder), wish_(wish) {}

    // Allows one call where any number was.
    void leave_one_call() {
        for (id_t id = 0; id < parser_.size(); ++id) {
            auto * repetition = std::get_if<common_peg_repetition_parser>(&parser_.get(id));
            if (repetition && repetition->max_count != 1 && has(repetition->child, tags::TOOL_NAME)) {
                repetition->min_count = std::min(repetition->min_count, 1);
                repetition->max_count = 1;
            }
        }
    }

    // Removes the content of a part from what its grammar allows.
    void leave_no_content(id_t id) {
        if (!seen_.insert(id).second || !has(id, tags::CONTENT)) {
            return;
        }
        const bool has_more = has(id, tags::TOOL_NAME) || has(id, tags::REASONING);
        if (auto * tag = std::get_if<common_peg_tag_parser>(&parser_.get(id)); tag && tag->tag == tags::CONTENT) {
            const std::string begun = wish_.begun.empty() ? "" : gbnf_format_literal(wish_.begun) + " ";
            replace(id, begun + WHITE_SPACE);
            return;
        }
        if (const auto * repetition = std::get_if<common_peg_repetition_parser>(&parser_.get(id));
            repetition && repetition->min_count == 0 && !has_more) {
            replace(id, WHITE_SPACE);
            return;
        }
        if (auto * choice = std::get_if<common_peg_choice_parser>(&parser_.get(id))) {
            choice->children = without_content(choice->children);
        }
        for (const id_t part : parts_of(parser_.get(id))) {
            leave_no_content(part);
        }
    }

    // A thought whose end may be missing would take the call after it.
    void end_thoughts() {
        for (id_t id = 0; id < parser_.size(); ++id) {
            const auto * sequence = std::get_if<common_peg_sequence_parser>(&parser_.get(id));
            for (size_t i = 1; sequence && i < sequence->children.size(); ++i) {
                auto * end = std::get_if<common_peg_repetition_parser>(&parser_.get(sequence->children[i]));
                if (end && has_tag_itself(sequence->children[i - 1], tags::REASONING) && is_word(end->child)) {
                    end->min_count = 1;
                }
            }
        }
    }

  private:
    bool is_word(id_t id) const {
        const auto * found = std::get_if<common_peg_literal_parser>(&parser_.get(id));
        return found && found->literal.find_first_not_of(" \n") != std::string::npos;
    }

    bool has_tag_itself(id_t id, const char * tag) const {
        const auto * found = std::get_if<common_peg_tag_parser>(&parser_.get(id));
        return found && found->tag == tag;
    }

    bool has(id_t id, const char * tag) const {
        std::set<id_t>    seen;
        std::vector<id_t> left = { id };
        while (!left.empty()) {
            const id_t one = left.back();
            left.pop_back();
            if (!seen.insert(one).second) {
                continue;
            }
            if (has_tag_itself(one, tag)) {
                return true;
            }
            for (const id_t part : parts_of(parser_.get(one))) {
                left.push_back(part);
            }
        }
        return false;
    }

    // The alternatives that are left if none may be content.
    std::vector<id_t> without_content(const std::vector<id_t> & alternatives) const {
        std::vector<id_t> bare;
        std::vector<id_t> more;
        for (const id_t one : alternatives) {
            const bool has_call = has(one, tags::TOOL_NAME);
            const bool thinks   = has(one, tags::REASONING);
            if (!has(one, tags::CONTENT)) {
                more.push_back(one);
                if (has_call && !thinks) {
                    bare.push_back(one);
                }
            } else if (has_call || thinks) {
                more.push_back(one);
            }
        }
        return !bare.empty() ? bare : !more.empty() ? more : alternatives;
    }

    // The parser of an answer still takes what it took.
    void replace(id_t id, const std::string & grammar) {
        const id_t was   = builder_.eps().id();
        parser_.get(was) = parser_.get(id);
        parser_.get(id)  = common_peg_gbnf_parser{ was, grammar };
    }

    common_peg_arena &          parser_;
    common_peg_parser_builder & builder_;
    const call_wishes &         wish_;
    std::set<id_t>              seen_;
};

bool has_calls(const common_peg_arena & parser) {
    for (id_t id = 0; id < parser.size(); ++id) {
        const auto * rule = std::get_if<common_peg_rule_parser>(&parser.get(id));
        if (rule && rule->trigger) {
            return true;
        }
    }
    return false;
}

} // namespace

call_wishes::call_wishes(bool is_forced, bool is_single, std::string begun) :
    is_forced(is_forced), is_single(is_single), begun(std::move(begun)) {
    wishes = this;
}

call_wishes::~call_wishes() {
    wishes = nullptr;
}

std::string new_rule_name(const common_peg_arena & parser, const std::string & name) {
    std::string key = name;
    for (size_t i = parser.size(); parser.has_rule(key); ++i) {
        key = name + "-" + std::to_string(i);
    }
    return key;
}

void apply_wishes(common_peg_arena & parser, common_peg_parser_builder & builder) {
    if (!wishes || !has_calls(parser)) {
        return; // a parser that llama.cpp analyzes templates with
    }
    shaper shape(parser, builder, *wishes);
    if (wishes->is_single) {
        shape.leave_one_call();
    }
    if (wishes->is_forced) {
        shape.end_thoughts();
        shape.leave_no_content(parser.root());
    }
}

} // namespace eagle3::chat
