#include "calls.h"

#include "arguments.h"
#include "big_stack.h"
#include "json-schema-to-grammar.h"
#include "names.h"
#include "nesting.h"
#include "parts.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace eagle3::chat {

namespace {

thread_local const call_wishes * wishes = nullptr;

const char * const WHITE_SPACE = "[ \\t\\n]{0,4}"; // that may be left between a thought and a call
constexpr int      HEAD_MAX    = 64;               // characters of an id or the like
constexpr int      INDEX_MAX   = 9;                // digits of an index: some models write them without an end

class shaper {
  public:
    shaper(common_peg_arena & parser, common_peg_parser_builder & builder) : parser_(parser), builder_(builder) {}

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

    // Removes the content of a part from what its grammar allows, but for the text with which the answer begins. White
    // space that is left after it is no part of the message: it could not be taken back when a call follows.
    void leave_no_content(part_id id, const std::string & begun) {
        if (!seen_.insert(id).second || !has(id, tags::CONTENT)) {
            return;
        }
        if (is_tagged(parser_, id, tags::CONTENT)) {
            auto &                       tagged = std::get<common_peg_tag_parser>(parser_.get(id));
            const common_peg_gbnf_parser held{ tagged.child, begun.empty() ? WHITE_SPACE : literal(begun) };
            if (begun.empty()) {
                parser_.get(id) = held;
            } else {
                const std::string tag = tagged.tag;
                const part_id     was = builder_.eps().id();
                parser_.get(was)      = held;
                parser_.get(id)       = common_peg_tag_parser{ was, tag };
            }
            return;
        }
        if (auto * choice = std::get_if<common_peg_choice_parser>(&parser_.get(id))) {
            choice->children = begun.empty() ? without_content(choice->children) : with_both(choice->children);
        }
        const bool   has_more    = has(id, tags::TOOL_NAME) || has(id, tags::REASONING);
        const auto * repetition  = std::get_if<common_peg_repetition_parser>(&parser_.get(id));
        const bool   is_optional = begun.empty() && repetition && repetition->min_count == 0 && !has_more;
        bool         is_before   = true; // the call, or not in a sequence
        for (const part_id part : parts_of(parser_.get(id))) {
            leave_no_content(part, is_before ? begun : "");
            is_before = is_before && !(is_sequence(id) && has(part, tags::TOOL_NAME));
        }
        if (is_optional) {
            const part_id was = builder_.eps().id();
            parser_.get(was)  = parser_.get(id);
            parser_.get(id)   = common_peg_gbnf_parser{ was, WHITE_SPACE };
        }
    }

    // Makes a call necessary where a parser leaves it to the model.
    void require_call(part_id id) {
        if (!has(id, tags::TOOL_NAME) || is_tagged(parser_, id, tags::TOOL)) {
            return;
        }
        if (auto * repetition = std::get_if<common_peg_repetition_parser>(&parser_.get(id))) {
            repetition->min_count = std::max(repetition->min_count, 1);
        } else if (auto * choice = std::get_if<common_peg_choice_parser>(&parser_.get(id))) {
            auto & all = choice->children;
            all.erase(std::remove_if(all.begin(), all.end(), [&](part_id one) { return !has(one, tags::TOOL_NAME); }),
                      all.end());
        }
        for (const part_id part : parts_of(parser_.get(id))) {
            if (has(part, tags::TOOL_NAME)) {
                require_call(part);
                if (is_sequence(id)) {
                    return; // there may be more
                }
            } else if (is_sequence(id) && is_any_text(part)) {
                const part_id was = builder_.eps().id();
                parser_.get(was)  = parser_.get(part);
                parser_.get(part) = common_peg_gbnf_parser{ was, WHITE_SPACE };
            }
        }
    }

    // White space may come before the tag that ends a call, as the grammar has it: llama.cpp's parser looks for the tag
    // at once, and leaves the arguments open where there is none.
    void close_after_space() {
        for (part_id id = 0, n = static_cast<part_id>(parser_.size()); id < n; ++id) {
            const auto * tag  = std::get_if<common_peg_tag_parser>(&parser_.get(id));
            const auto * peek = tag ? std::get_if<common_peg_and_parser>(&parser_.get(tag->child)) : nullptr;
            if (tag && tag->tag == tags::TOOL_CLOSE && peek && is_word(peek->child)) {
                const part_id at    = tag->child;
                const part_id end   = peek->child;
                const part_id space = builder_.eps().id();
                const part_id both  = builder_.eps().id();
                parser_.get(space)  = common_peg_space_parser{};
                parser_.get(both)   = common_peg_sequence_parser{ { space, end } };
                parser_.get(at)     = common_peg_and_parser{ both };
            }
        }
    }

    // Text that a parser passes over on its way to a call is the message's. Gemma 4's leaves out what follows a tag
    // that ends no thought; such a tag at the end of an answer is no text, as llama.cpp's comment there says.
    void keep_passed_text() {
        const auto * all = std::get_if<common_peg_sequence_parser>(&parser_.get(parser_.root()));
        for (const part_id part : all ? all->children : std::vector<part_id>{}) {
            if (!is_any_text(part)) {
                continue;
            }
            const part_id passed = builder_.eps().id();
            parser_.get(passed)  = parser_.get(part);
            const part_id tag    = builder_.literal(LONE_TAG).id();
            const part_id alone  = builder_.sequence({ tag, builder_.space().id(), builder_.end().id() }).id();
            const part_id text   = builder_.eps().id();
            parser_.get(text)    = common_peg_tag_parser{ passed, tags::CONTENT };
            parser_.get(part)    = common_peg_choice_parser{ { alone, text } };
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

    // Calls may follow each other without a comma, unless they are in an array: llama.cpp's parser takes the comma of
    // MiniMax's JSON for one between calls.
    void leave_out_commas() {
        const part_id n = static_cast<part_id>(parser_.size());
        for (part_id id = 0; id < n; ++id) {
            const auto * rule = std::get_if<common_peg_rule_parser>(&parser_.get(id));
            for (const part_id part : rule && rule->trigger ? all_parts_of(parser_, id) : std::vector<part_id>{}) {
                if (literal_of(part).find('[') != std::string::npos) {
                    return;
                }
            }
        }
        for (part_id id = 0; id < n; ++id) {
            const auto * repetition = std::get_if<common_peg_repetition_parser>(&parser_.get(id));
            if (!repetition || !has(repetition->child, tags::TOOL_NAME) || !is_sequence(repetition->child)) {
                continue;
            }
            const auto parts = parts_of(parser_.get(repetition->child));
            for (const part_id part : parts) {
                if (literal_of(part) == ",") { // between white space
                    const part_id was = builder_.eps().id();
                    parser_.get(was)  = parser_.get(part);
                    parser_.get(part) = common_peg_repetition_parser{ was, 0, 1 };
                } else if (literal_of(part) == ", ") {
                    const part_id comma = builder_.optional(builder_.literal(",")).id();
                    const part_id space = builder_.space().id();
                    parser_.get(part)   = common_peg_sequence_parser{ { comma, space } };
                }
            }
        }
    }

    // Bounds what a model may write around names and values: in some formats that is any text, without an end.
    void bound_heads() {
        for (const part_id part : heads()) {
            std::string character;
            int         n_min = 0;
            int         n_max = HEAD_MAX;
            std::string text_of_part; // else characters in that number
            if (const auto * until = std::get_if<common_peg_until_parser>(&parser_.get(part))) {
                for (const std::string & end : until->delimiters) {
                    character += first_of(end);
                }
                const auto other = other_words(part, until->delimiters);
                text_of_part     = other.empty() ? "" : none_of(other, "\\n" + character);
                character        = "[^\\n" + character + "]";
            } else if (const auto * text = std::get_if<common_peg_string_parser>(&parser_.get(part))) {
                character = "[^\\\\\\n" + first_of({ text->delimiter }) + "]";
            } else if (const auto * chars = std::get_if<common_peg_chars_parser>(&parser_.get(part));
                       chars && chars->max_count == -1) {
                character = chars->pattern;
                n_min     = chars->min_count;
                n_max     = character == "[0-9]" ? INDEX_MAX : HEAD_MAX;
            } else {
                continue;
            }
            const part_id was = builder_.eps().id();
            parser_.get(was)  = parser_.get(part);
            if (text_of_part.empty()) {
                text_of_part = "(" + character + "{" + std::to_string(n_min) + "," + std::to_string(n_max) + "})";
            }
            parser_.get(part) = common_peg_gbnf_parser{ was, text_of_part };
        }
    }

    // Calls have their ids where a comma stands beside them: llama.cpp's parser would leave the comma alone.
    void require_ids() {
        for (part_id id = 0; id < parser_.size(); ++id) {
            const auto * sequence = std::get_if<common_peg_sequence_parser>(&parser_.get(id));
            for (size_t i = 0; sequence && i < sequence->children.size(); ++i) {
                auto * part = std::get_if<common_peg_repetition_parser>(&parser_.get(sequence->children[i]));
                if (part && part->max_count == 1 && has(part->child, tags::TOOL_ID) &&
                    is_beside_comma(sequence->children, i)) {
                    part->min_count = 1;
                }
            }
        }
    }

    // Removes fences around JSON from what its grammar allows, and without thoughts white space around it: parsers do
    // not send them, and a text that is sent is to be the one that was sampled.
    void leave_no_fence() {
        const bool thinks = has(parser_.root(), tags::REASONING);
        for (part_id id = 0, n = static_cast<part_id>(parser_.size()); id < n; ++id) {
            const auto * found    = std::get_if<common_peg_literal_parser>(&parser_.get(id));
            const bool   is_fence = found && (found->literal == "```json" || found->literal == "```");
            const bool   is_space = std::holds_alternative<common_peg_space_parser>(parser_.get(id));
            if (is_fence || (is_space && !thinks)) {
                const part_id was      = builder_.eps().id();
                const part_id optional = builder_.eps().id();
                parser_.get(was)       = parser_.get(id);
                parser_.get(optional)  = common_peg_repetition_parser{ was, 0, 1 };
                parser_.get(id)        = common_peg_gbnf_parser{ optional, gbnf_format_literal("") };
            }
        }
    }

  private:
    static std::string literal(const std::string & text) { return gbnf_format_literal(text) + " " + WHITE_SPACE; }

    // The first character of a text, within a class of GBNF.
    static std::string first_of(const std::string & text) {
        if (static_cast<unsigned char>(text[0]) < 0x80) {
            return std::string("\\x") + "0123456789ABCDEF"[text[0] >> 4] + "0123456789ABCDEF"[text[0] & 15];
        }
        size_t n = 1;
        while (n < text.size() && (static_cast<unsigned char>(text[n]) & 0xc0) == 0x80) {
            ++n;
        }
        return text.substr(0, n);
    }

    // The words that mean something else than a call in place of a text: "self" of Muse's " to=self<|message|>", which
    // begins a thought.
    std::set<std::string> other_words(part_id text, const std::vector<std::string> & ends) const {
        std::set<std::string> words;
        for (part_id id = 0; id < parser_.size(); ++id) {
            const auto * sequence = std::get_if<common_peg_sequence_parser>(&parser_.get(id));
            for (size_t i = 1; sequence && i < sequence->children.size(); ++i) {
                if (sequence->children[i] != text) {
                    continue;
                }
                const std::string before = literal_of(sequence->children[i - 1]);
                for (part_id other = 0; !before.empty() && other < parser_.size(); ++other) {
                    const std::string whole = literal_of(other);
                    for (const std::string & end : ends) {
                        const size_t n = before.size() + end.size();
                        if (whole.size() > n && whole.compare(0, before.size(), before) == 0 &&
                            whole.compare(whole.size() - end.size(), end.size(), end) == 0) {
                            words.insert(whole.substr(before.size(), whole.size() - n));
                        }
                    }
                }
            }
        }
        return words;
    }

    // A grammar of texts without some characters that are none of these words. Beyond ASCII, its bytes are no
    // characters.
    static std::string none_of(const std::set<std::string> & words, const std::string & without) {
        std::map<char, std::set<std::string>> rests;
        for (const std::string & word : words) {
            if (!word.empty() && static_cast<unsigned char>(word[0]) < 0x80) {
                rests[word[0]].insert(word.substr(1));
            }
        }
        std::string found  = words.count("") ? "(" : "(\"\" | ";
        std::string firsts = without;
        for (const auto & [first, rest] : rests) {
            const std::string one(1, first);
            firsts += first_of(one);
            found += gbnf_format_literal(one) + " " + none_of(rest, without) + " | ";
        }
        return found + "[^" + firsts + "] [^" + without + "]{0," + std::to_string(HEAD_MAX - 1) + "})";
    }

    std::string literal_of(part_id id) const {
        const auto * found = std::get_if<common_peg_literal_parser>(&parser_.get(id));
        return found ? found->literal : "";
    }

    // All parts of calls that are in no value.
    std::set<part_id> heads() const {
        std::set<part_id> calls;
        std::set<part_id> values;
        for (part_id id = 0; id < parser_.size(); ++id) {
            const bool is_value = is_tagged(parser_, id, tags::TOOL_ARG_VALUE) ||
                                  is_tagged(parser_, id, tags::TOOL_ARG_STRING_VALUE) ||
                                  (is_tagged(parser_, id, tags::TOOL_ARGS) && !has(id, tags::TOOL_ARG));
            if (is_value || is_tagged(parser_, id, tags::TOOL)) {
                const auto all = all_parts_of(parser_, id);
                (is_value ? values : calls).insert(all.begin(), all.end());
            }
        }
        for (const part_id part : values) {
            calls.erase(part);
        }
        return calls;
    }

    bool is_beside_comma(const std::vector<part_id> & parts, size_t i) const {
        const auto is_space = [&](size_t k) {
            return std::holds_alternative<common_peg_space_parser>(parser_.get(parts[k]));
        };
        const auto is_comma = [&](size_t k) {
            const auto * found = std::get_if<common_peg_literal_parser>(&parser_.get(parts[k]));
            return found && found->literal == ",";
        };
        size_t before = i;
        while (before > 0 && is_space(before - 1)) {
            --before;
        }
        size_t after = i + 1;
        while (after < parts.size() && is_space(after)) {
            ++after;
        }
        return (before > 0 && is_comma(before - 1)) || (after < parts.size() && is_comma(after));
    }

    bool is_sequence(part_id id) const { return std::holds_alternative<common_peg_sequence_parser>(parser_.get(id)); }

    // Text that is passed over, and is no part of the message.
    bool is_any_text(part_id id) const {
        const auto * rule = std::get_if<common_peg_rule_parser>(&parser_.get(id));
        return std::holds_alternative<common_peg_until_parser>(parser_.get(rule ? rule->child : id));
    }

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

    // Those in which a call may follow a text; all of them if there are none.
    std::vector<part_id> with_both(const std::vector<part_id> & alternatives) const {
        std::vector<part_id> both;
        for (const part_id one : alternatives) {
            if (has(one, tags::CONTENT) && has(one, tags::TOOL_NAME)) {
                both.push_back(one);
            }
        }
        return both.empty() ? alternatives : both;
    }

    common_peg_arena &          parser_;
    common_peg_parser_builder & builder_;
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

call_wishes::call_wishes(const std::vector<common_chat_tool> & tools, bool is_forced, bool is_single, std::string begun,
                         bool is_bare) :
    tools(tools), is_forced(is_forced), is_single(is_single), begun(std::move(begun)), is_bare(is_bare) {
    wishes = this;
}

call_wishes::~call_wishes() {
    wishes = nullptr;
}

std::optional<std::string> text_before_call(const common_chat_params & params, const std::string & begun) {
    const std::string & prompt = params.generation_prompt;
    if (text_nesting(prompt) > MAX_NESTING) {
        return std::nullopt;
    }
    common_peg_arena parser;
    parser.load(params.parser);
    common_peg_parse_context context(prompt, COMMON_PEG_PARSE_FLAG_LENIENT);
    const auto               result = parser.parse(context);
    if (result.fail()) {
        return std::nullopt;
    }
    const std::string blank = " \t\r\n";
    size_t            start = prompt.size();
    size_t            end   = prompt.size() - std::min(prompt.size(), begun.size());
    context.ast.visit(result, [&](const common_peg_ast_node & node) {
        if (node.tag == tags::CONTENT && node.start < node.end && start == prompt.size()) {
            start = node.start;
            end   = node.end;
        }
    });
    start = std::min(start, end);
    if (prompt.find_first_not_of(blank, end) == std::string::npos) {
        end = prompt.size();
    }
    return prompt.substr(start, end - start);
}

bool is_lazy(bool lazy) {
    return lazy && !(wishes && wishes->is_forced);
}

std::string new_rule_name(const common_peg_arena & parser, const std::string & name) {
    std::string key = name;
    for (size_t i = parser.size(); parser.has_rule(key); ++i) {
        key = name + "-" + std::to_string(i);
    }
    return key;
}

void apply_wishes(common_peg_arena & parser, common_peg_parser_builder & builder) {
    if (wishes && wishes->is_bare && !has_tag(parser, parser.root(), tags::TOOL_NAME)) {
        shaper(parser, builder).leave_no_fence();
    }
    if (!wishes || !has_calls(parser)) {
        return; // a parser that llama.cpp analyzes templates with
    }
    hold_arguments(parser, builder, wishes->tools);
    shaper shape(parser, builder);
    if (wishes->is_single) {
        shape.leave_one_call();
    }
    shape.require_ids();
    shape.leave_out_commas();
    shape.close_after_space();
    if (!wishes->is_forced) {
        shape.keep_passed_text();
    } else {
        shape.bound_heads();
        shape.end_thoughts();
        shape.require_call(parser.root());
        shape.leave_no_content(parser.root(), wishes->begun);
    }
    add_ways_to_write(parser, builder, odd_keys(wishes->tools));
}

std::string first_call() {
    std::string names;
    for (const common_chat_tool & tool : wishes ? wishes->tools : std::vector<common_chat_tool>{}) {
        for (const char c : tool.name) {
            names += std::string(std::strchr(".^$|()*+?[]{}\\/", c) ? "\\" : "") + c;
        }
        names += "|";
    }
    return "^(?:" + names.substr(0, names.size() - std::min<size_t>(names.size(), 1)) + ")\n";
}

} // namespace eagle3::chat
