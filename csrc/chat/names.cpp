#include "names.h"

#include "common.h"
#include "json.h"
#include "parts.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace eagle3::chat {

namespace {

constexpr char GIVEN[]      = "given:";
constexpr char BLANK[]      = " \t\r\n";
constexpr char ENDS_A_KEY[] = ":}{,";

thread_local const common_peg_ast_arena * nodes_of_names = nullptr;

std::string as_json(const std::string & name) {
    const std::string text = common_json(name).dump();
    return text.substr(1, text.size() - 2);
}

std::string as_attribute(std::string name) {
    string_replace_all(name, "&", "&amp;");
    string_replace_all(name, "\"", "&quot;");
    return name;
}

// A name without the blanks that it begins with, which a format may have there anyway.
std::string without_indent(const std::string & name) {
    return name.substr(std::min(name.find_first_not_of(BLANK), name.size()));
}

void collect_keys(const common_json & schema, std::set<std::string> & keys) {
    if (!schema.is_object() && !schema.is_array()) {
        return;
    }
    for (const auto & item : schema.items()) {
        if (schema.is_object() && item.key() == "properties" && item.value().is_object()) {
            for (const auto & property : item.value().items()) {
                keys.insert(property.key());
            }
        }
        collect_keys(item.value(), keys);
    }
}

} // namespace

void add_ways_to_write(common_peg_arena & parser, common_peg_parser_builder & builder,
                       const std::set<std::string> & keys) {
    std::vector<std::pair<part_id, std::string>> found; // the first literal of each name
    std::set<std::string>                        names;
    for (part_id id = 0; id < parser.size(); ++id) {
        if (is_tagged(parser, id, tags::TOOL_NAME) || is_tagged(parser, id, tags::TOOL_ARG_NAME)) {
            for (const part_id part : all_parts_of(parser, id)) {
                if (const auto * literal = std::get_if<common_peg_literal_parser>(&parser.get(part))) {
                    found.emplace_back(part, literal->literal);
                    names.insert(literal->literal);
                    break;
                }
            }
        }
    }
    std::set<part_id> done;
    for (const auto & [part, name] : found) {
        std::vector<std::string> ways;
        for (const std::string & way : { as_json(name), as_attribute(name), name, without_indent(name) }) {
            const bool is_other = way.empty() || (way != name && names.count(way) > 0);
            if (!is_other && std::find(ways.begin(), ways.end(), way) == ways.end()) {
                ways.push_back(way);
            }
        }
        const bool has_blanks = name.find_first_not_of(BLANK) != 0 || name.find_last_not_of(BLANK) + 1 != name.size();
        if ((ways.size() == 1 && !has_blanks) || !done.insert(part).second) {
            continue;
        }
        std::vector<part_id> all;
        for (const std::string & way : ways) {
            all.push_back(builder.tag(GIVEN + name, builder.literal(way)).id());
        }
        parser.get(part) = common_peg_choice_parser{ all };
    }
    for (part_id id = 0, n = static_cast<part_id>(parser.size()); id < n && !keys.empty(); ++id) {
        const auto * rule = std::get_if<common_peg_rule_parser>(&parser.get(id));
        if (rule && rule->name == "gemma4-dict-key-name") {
            std::vector<part_id> all;
            for (auto key = keys.rbegin(); key != keys.rend(); ++key) { // the longer one of two that begin alike first
                const part_id colon = builder.peek(builder.literal(":")).id();
                all.push_back(builder.sequence({ builder.literal(*key).id(), colon }).id());
                if (const std::string way = without_indent(*key); way != *key) {
                    const part_id given = builder.tag(GIVEN + *key, builder.literal(way)).id();
                    all.push_back(builder.sequence({ given, colon }).id());
                }
            }
            auto & changed = std::get<common_peg_rule_parser>(parser.get(id));
            all.push_back(changed.child);
            const part_id choice                                   = builder.choice(all).id();
            std::get<common_peg_rule_parser>(parser.get(id)).child = choice;
        }
    }
}

std::set<std::string> odd_keys(const std::vector<common_chat_tool> & tools) {
    std::set<std::string> all;
    std::set<std::string> odd;
    for (const common_chat_tool & tool : tools) {
        collect_keys(common_json::parse(tool.parameters), all);
    }
    for (const std::string & key : all) {
        const std::string way = without_indent(key);
        if (key.find_first_of(ENDS_A_KEY) != std::string::npos || (!way.empty() && all.count(way) == 0)) {
            odd.insert(key);
        }
    }
    return odd;
}

const common_peg_ast_arena & names_in(const common_peg_ast_arena & nodes) {
    nodes_of_names = &nodes;
    return nodes;
}

std::string given_name(const common_peg_ast_node & node, std::string text) {
    std::string found = std::move(text);
    nodes_of_names->visit(node.id, [&](const common_peg_ast_node & part) {
        if (!part.is_partial && part.tag.compare(0, sizeof(GIVEN) - 1, GIVEN) == 0) {
            found = part.tag.substr(sizeof(GIVEN) - 1);
        }
    });
    return found;
}

std::string with_escapes(const std::string & json) {
    std::string text;
    bool        is_within  = false;
    bool        is_escaped = false;
    for (const char c : json) {
        if (is_within && static_cast<unsigned char>(c) < 0x20) {
            char code[8];
            std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(c));
            text += c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : code;
        } else {
            text += c;
        }
        is_within  = is_within != (c == '"' && !is_escaped);
        is_escaped = is_within && c == '\\' && !is_escaped;
    }
    return text;
}

} // namespace eagle3::chat
