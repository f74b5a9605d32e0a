#include "arguments.h"

#include "parts.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace eagle3::chat {

namespace {

using document = common_chat_schema_document_ptr;
using ids      = std::vector<part_id>;

class holder {
  public:
    holder(common_peg_arena & parser, common_peg_parser_builder & builder) : parser_(parser), builder_(builder) {}

    void hold(part_id tool, const std::string & name, const document & doc) {
        const auto * object = dynamic_cast<const common_chat_schema_object *>(doc->root.get());
        if (!object) {
            return;
        }
        for (const part_id part : all_parts_of(parser_, tool)) {
            if (is_tagged(parser_, part, tags::TOOL_ARGS)) {
                hold_dict(part, name, doc);
            } else if (is_tagged(parser_, part, tags::TOOL_ARG)) {
                hold_value(part, name, doc, *object);
            } else if (std::holds_alternative<common_peg_repetition_parser>(parser_.get(part))) {
                require_repeated(part, *object);
            } else if (std::holds_alternative<common_peg_sequence_parser>(parser_.get(part))) {
                require_listed(part, *object);
            }
        }
    }

    // The name in a part with a tag.
    std::string name_in(part_id id, const char * tag) const {
        const part_id found = find_tag(parser_, id, tag);
        if (found != COMMON_PEG_INVALID_PARSER_ID) {
            for (const part_id part : all_parts_of(parser_, found)) {
                if (const auto * literal = std::get_if<common_peg_literal_parser>(&parser_.get(part))) {
                    return literal->literal;
                }
            }
        }
        return "";
    }

  private:
    struct arguments {
        ids required; // in the schema's order
        ids optional;
    };

    static const common_chat_schema_property * find(const common_chat_schema_object & object,
                                                    const std::string &               name) {
        const auto it = std::find_if(object.properties.begin(), object.properties.end(),
                                     [&](const common_chat_schema_property & p) { return p.name == name; });
        return it == object.properties.end() ? nullptr : &*it;
    }

    // Whether a part is a choice of arguments, and which.
    bool read_choice(part_id id, const common_chat_schema_object & object, arguments & found) const {
        const auto * choice = std::get_if<common_peg_choice_parser>(&parser_.get(id));
        if (!choice || choice->children.empty()) {
            return false;
        }
        std::map<std::string, part_id> named;
        for (const part_id one : choice->children) {
            if (!has_tag(parser_, one, tags::TOOL_ARG)) {
                return false;
            }
            const std::string name     = name_in(one, tags::TOOL_ARG_NAME);
            const auto *      property = find(object, name);
            if (property && property->required) {
                named.emplace(name, one);
            } else {
                found.optional.push_back(one);
            }
        }
        for (const common_chat_schema_property & property : object.properties) {
            if (const auto it = named.find(property.name); it != named.end()) {
                found.required.push_back(it->second);
            }
        }
        return !found.required.empty();
    }

    ids children_of(part_id id) const {
        const auto * sequence = std::get_if<common_peg_sequence_parser>(&parser_.get(id));
        return sequence ? sequence->children : ids{ id };
    }

    // Any number of the optional ones, each with parts before and after it.
    void add_optional(ids & to, const ids & optional, const ids & before, const ids & after) {
        if (!optional.empty()) {
            ids one = before;
            one.push_back(builder_.choice(optional).id());
            one.insert(one.end(), after.begin(), after.end());
            to.push_back(builder_.zero_or_more(builder_.sequence(one)).id());
        }
    }

    // (argument ...)* becomes: each required one, then optional ones.
    void require_repeated(part_id id, const common_chat_schema_object & object) {
        const auto repetition = std::get<common_peg_repetition_parser>(parser_.get(id));
        ids        after      = children_of(repetition.child);
        arguments  found;
        if (repetition.max_count != -1 || after.empty() || !read_choice(after.front(), object, found)) {
            return;
        }
        after.erase(after.begin());
        ids all;
        for (const part_id one : found.required) {
            all.push_back(one);
            all.insert(all.end(), after.begin(), after.end());
        }
        add_optional(all, found.optional, {}, after);
        parser_.get(id) = common_peg_sequence_parser{ all };
    }

    // argument (separator argument)* becomes the same.
    void require_listed(part_id id, const common_chat_schema_object & object) {
        const ids parts = children_of(id);
        for (size_t i = 0; i + 1 < parts.size(); ++i) {
            const auto * more = std::get_if<common_peg_repetition_parser>(&parser_.get(parts[i + 1]));
            ids          before;
            arguments    found;
            if (!more || (before = children_of(more->child)).empty() || before.back() != parts[i] ||
                !read_choice(parts[i], object, found)) {
                continue;
            }
            before.pop_back();
            ids all(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i));
            for (const part_id one : found.required) {
                if (one != found.required.front()) {
                    all.insert(all.end(), before.begin(), before.end());
                }
                all.push_back(one);
            }
            add_optional(all, found.optional, before, {});
            all.insert(all.end(), parts.begin() + static_cast<std::ptrdiff_t>(i) + 2, parts.end());
            parser_.get(id) = common_peg_sequence_parser{ all };
            return;
        }
    }

    // Gemma 4 has all arguments in one text, which is no JSON: chat/schema/form.py knows how values are written there.
    void hold_dict(part_id arguments, const std::string & tool, const document & doc) {
        const auto   tag  = std::get<common_peg_tag_parser>(parser_.get(arguments));
        const auto * rule = std::get_if<common_peg_rule_parser>(&parser_.get(tag.child));
        if (rule && rule->name == "gemma4-dict") {
            const common_peg_parser dict(tag.child, builder_);
            const part_id held     = builder_.schema(dict, "gemma4-tool-" + tool + "-schema", doc, *doc->root).id();
            parser_.get(arguments) = common_peg_tag_parser{ held, tag.tag };
        }
    }

    // A value that any text would do for gets its schema.
    void hold_value(part_id argument, const std::string & tool, const document & doc,
                    const common_chat_schema_object & object) {
        const std::string name     = name_in(argument, tags::TOOL_ARG_NAME);
        const auto *      property = find(object, name);
        const part_id     value    = find_tag(parser_, argument, tags::TOOL_ARG_VALUE);
        if (!property || value == COMMON_PEG_INVALID_PARSER_ID) {
            return;
        }
        for (const part_id part : all_parts_of(parser_, value)) {
            if (std::holds_alternative<common_peg_schema_parser>(parser_.get(part))) {
                return;
            }
        }
        const auto        tag = std::get<common_peg_tag_parser>(parser_.get(value));
        common_peg_parser text(tag.child, builder_);
        if (!std::holds_alternative<common_peg_until_parser>(parser_.get(tag.child))) {
            text = builder_.choice({ builder_.json(), text });
        }
        const std::string rule = "tool-" + tool + "-arg-" + name + "-schema";
        const part_id     held = builder_.schema(text, rule, doc, *property->schema).id();
        parser_.get(value)     = common_peg_tag_parser{ held, tag.tag };
    }

    common_peg_arena &          parser_;
    common_peg_parser_builder & builder_;
};

} // namespace

void hold_arguments(common_peg_arena & parser, common_peg_parser_builder & builder,
                    const std::vector<common_chat_tool> & tools) {
    std::map<std::string, std::pair<int, document>> documents; // [name]: how many tools have it, and its schema
    for (const common_chat_tool & tool : tools) {
        auto & [n, doc] = documents[tool.name];
        if (++n == 1) {
            const common_json function = { { "parameters", common_json::parse(tool.parameters) } };
            doc                        = std::make_shared<const common_chat_schema_document>(
                common_chat_schema_from_json(common_chat_tool_parameters(function)));
        }
    }
    holder       hold(parser, builder);
    const size_t n_parts = parser.size();
    for (part_id id = 0; id < n_parts; ++id) {
        if (is_tagged(parser, id, tags::TOOL)) {
            const std::string name = hold.name_in(id, tags::TOOL_NAME);
            if (const auto it = documents.find(name); it != documents.end() && it->second.first == 1) {
                hold.hold(id, name, it->second.second);
            }
        }
    }
}

} // namespace eagle3::chat
