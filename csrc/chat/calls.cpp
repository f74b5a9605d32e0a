#include "calls.h"

#include "arguments.h"
#include "json-schema-to-grammar.h"
#include "parts.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace eagle3::chat {

namespace {

thread_local const call_wishes * wishes = nullptr;

const char * const WHITE_SPACE = "[ \\t\\n]{0,4}"; // that may be left between a thought and a call

class shaper {
  public:
    shaper(common_peg_arena & parser, common_peg_parser_builder & builder, const call_wishes & wish) :
        parser_(parser), builder_(builder), wish_(wish) {}

    // Allows one call where any number was.
    void leave_one_call() {
        for (part_id id = 0; id < parser_.size(); ++id) {
            auto * repetition = std::get_if<common_peg_repetition_parser>(&parser_.get(id));
            if (repetition && repetition->max_count != 1 && has(repetition->child, tags::TOOL_NAME)) {
                repetition->min_count = std::min(repetition->min_count, 1);
                repetition->max_count = 1;
            }
        }
    }

    // Removes the content of a part from what its grammar allows. What is left of it is no part of the message: white
    // space that was sent as content could not be taken back when a call follows.
    void leave_no_content(part_id id) {
        if (!seen_.insert(id).second || !has(id, tags::CONTENT)) {
            return;
        }
        const bool has_more = has(id, tags::TOOL_NAME) || has(id, tags::REASONING);
        if (is_tagged(parser_, id, tags::CONTENT)) {
            const std::string begun = wish_.begun.empty() ? "" : gbnf_format_literal(wish_.begun) + " ";
            const part_id     text  = std::get<common_peg_tag_parser>(parser_.get(id)).child;
            parser_.get(id)         = common_peg_gbnf_parser{ text, begun + WHITE_SPACE };
            return;
        }
        if (auto * choice = std::get_if<common_peg_choice_parser>(&parser_.get(id))) {
            choice->children = without_content(choice->children);
        }
        const auto * repetition  = std::get_if<common_peg_repetition_parser>(&parser_.get(id));
        const bool   is_optional = repetition && repetition->min_count == 0 && !has_more;
        for (const part_id part : parts_of(parser_.get(id))) {
            leave_no_content(part);
        }
        if (is_optional) {
            const part_id was = builder_.eps().id();
            parser_.get(was)  = parser_.get(id);
            parser_.get(id)   = common_peg_gbnf_parser{ was, WHITE_SPACE };
        }
    }

    // One thought, with its end: another one could follow each, and one without an end would take the call after it.
    void end_thoughts() {
        for (part_id id = 0; id < parser_.size(); ++id) {
            auto * repetition = std::get_if<common_peg_repetition_parser>(&parser_.get(id));
            if (repetition && repetition->max_count != 1 && has(repetition->child, tags::REASONING) &&
                !has(repetition->child, tags::TOOL_NAME)) {
                repetition->max_count = 1;
            }
            const auto * sequence = std::get_if<common_peg_sequence_parser>(&parser_.get(id));
            for (size_t i = 1; sequence && i < sequence->children.size(); ++i) {
                auto * end = std::get_if<common_peg_repetition_parser>(&parser_.get(sequence->children[i]));
                if (end && is_tagged(parser_, sequence->children[i - 1], tags::REASONING) && is_word(end->child)) {
                    end->min_count = 1;
                }
            }
        }
    }

  private:
    bool is_word(part_id id) const {
        const auto * found = std::get_if<common_peg_literal_parser>(&parser_.get(id));
        return found && found->literal.find_first_not_of(" \n") != std::string::npos;
    }

    bool has(part_id id, const char * tag) const { return has_tag(parser_, id, tag); }

    // The alternatives that are left if none may be content.
    std::vector<part_id> without_content(const std::vector<part_id> & alternatives) const {
        std::vector<part_id> bare;
        std::vector<part_id> more;
        for (const part_id one : alternatives) {
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

    common_peg_arena &          parser_;
    common_peg_parser_builder & builder_;
    const call_wishes &         wish_;
    std::set<part_id>           seen_;
};

bool has_calls(const common_peg_arena & parser) {
    for (part_id id = 0; id < parser.size(); ++id) {
        const auto * rule = std::get_if<common_peg_rule_parser>(&parser.get(id));
        if (rule && rule->trigger) {
            return true;
        }
    }
    return false;
}

} // namespace

call_wishes::call_wishes(const std::vector<common_chat_tool> & tools, bool is_forced, bool is_single,
                         std::string begun) :
    tools(tools), is_forced(is_forced), is_single(is_single), begun(std::move(begun)) {
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
    hold_arguments(parser, builder, wishes->tools);
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
