#include "frame.h"

#include "chat-peg-parser.h"
#include "json-schema-to-grammar.h"

namespace eagle3::chat {

namespace {

const std::string BEGIN = "<tool_call>";
const std::string END   = "</tool_call>";

common_peg_parser thought(common_chat_peg_builder & p, const common_chat_params & params) {
    const std::string & end = params.thinking_end_tags.front();
    return p.optional(p.literal(params.thinking_start_tag) + p.reasoning(p.until(end)) + p.literal(end));
}

} // namespace

void frame_calls(common_chat_params & params, const std::string & begun, bool is_forced,
                 common_reasoning_format reasoning_format, const std::vector<common_chat_tool> & tools) {
    const bool  thinks = reasoning_format != COMMON_REASONING_FORMAT_NONE && !params.thinking_start_tag.empty() &&
                         !params.thinking_end_tags.empty();
    std::string head   = params.generation_prompt;
    if (head.size() >= begun.size() && head.compare(head.size() - begun.size(), begun.size(), begun) == 0) {
        head.resize(head.size() - begun.size());
    }
    const auto parser   = build_chat_peg_parser([&](common_chat_peg_builder & p) {
        const auto call  = p.standard_json_tools(BEGIN, END, common_chat_tools_to_json_oaicompat(tools), false, true);
        const auto calls = p.trigger_rule("tool-calls", p.one_or_more(call + p.space()));
        const auto begin = p.prefix(head, thinks ? params.thinking_start_tag : "");
        return begin + (thinks ? thought(p, params) : p.eps()) + p.optional(p.content(p.until(BEGIN))) +
               (is_forced ? calls : p.optional(calls)) + p.end();
    });
    params.format       = COMMON_CHAT_FORMAT_PEG_NATIVE;
    params.parser       = parser.save();
    params.grammar_lazy = !is_forced;
    params.grammar      = build_grammar(
        [&](const common_grammar_builder & builder) { parser.build_grammar(builder, params.grammar_lazy); });
    params.grammar_triggers = { { COMMON_GRAMMAR_TRIGGER_TYPE_WORD, BEGIN } };
    params.preserved_tokens.insert(params.preserved_tokens.end(), { BEGIN, END });
}

} // namespace eagle3::chat
