// Implements llama.cpp's json-schema.h and json-schema-to-grammar.h for its chat code. llama.cpp's own files refuse a
// request for one unusual schema, and write grammars that allow invalid JSON. This reads any schema, and leaves the
// rules of schemas open for the one converter, chat/schema/converter.py.

#include "json-schema.h"

#include "common.h"
#include "json-schema-to-grammar.h"
#include "open_schemas.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <unordered_map>

namespace eagle3::chat {

namespace {

using schema   = common_chat_schema;
using type_set = schema::type_set;

// Nodes of a document: references may ask for a part of it many times.
constexpr size_t MAX_NODES = 100 * 1000;
constexpr size_t MAX_OPEN  = 2000; // references that lead to each other, which are followed by recursion

thread_local open_schemas * collector = nullptr;

// Where a node comes from, and which values it may have.
struct origin {
    virtual ~origin() = default;

    std::shared_ptr<const std::string> document;
    std::string                        pointer;
    type_set                           types = type_set::all();
};

template <typename T>
struct node : T, origin {};

// A node of which parsers need only the types: they look into objects, arrays and alternatives only.
using leaf = node<common_chat_schema_any>;

const origin & origin_of(const schema & s) {
    const auto * o = dynamic_cast<const origin *>(&s);
    if (!o) {
        throw std::runtime_error("a schema that was not read from JSON");
    }
    return *o;
}

std::string escaped(std::string name) {
    string_replace_all(name, "~", "~0");
    string_replace_all(name, "/", "~1");
    return name;
}

std::string unescaped(std::string name) {
    string_replace_all(name, "~1", "/");
    string_replace_all(name, "~0", "~");
    return name;
}

const common_json * member(const common_json & value, const std::string & key) {
    return value.is_object() && value.contains(key) ? &value.at(key) : nullptr;
}

class reader {
  public:
    explicit reader(const common_json & root) :
        root_(root), document_(std::make_shared<const std::string>(root.dump())) {}

    common_chat_schema_ptr read() const { return read(root_, "", true); }

  private:
    static type_set types_named(const std::string & name) {
        static const std::map<std::string, type_set> types = {
            { "null", { schema::TYPE_NULL } },       { "boolean", { schema::TYPE_BOOLEAN } },
            { "integer", { schema::TYPE_INTEGER } }, { "number", { schema::TYPE_NUMBER, schema::TYPE_INTEGER } },
            { "string", { schema::TYPE_STRING } },   { "array", { schema::TYPE_ARRAY } },
            { "object", { schema::TYPE_OBJECT } },
        };
        const auto it = types.find(name);
        return it == types.end() ? type_set::all() : it->second;
    }

    static type_set type_of(const common_json & value) {
        const bool is_integer = value.is_number_integer();
        return types_named(value.is_null()      ? "null"
                           : value.is_boolean() ? "boolean"
                           : is_integer         ? "integer"
                           : value.is_number()  ? "number"
                           : value.is_string()  ? "string"
                           : value.is_array()   ? "array"
                                                : "object");
    }

    // Null if it is not in the document.
    const common_json * resolve(const common_json & ref, std::string & pointer) const {
        const std::string text = ref.is_string() ? ref.get<std::string>() : "";
        if (text != "#" && text.compare(0, 2, "#/") != 0) {
            return nullptr;
        }
        const common_json * target = &root_;
        for (const std::string & part : string_split(text, "/")) {
            if (part == "#") {
                continue;
            }
            const common_json * next = member(*target, unescaped(part));
            if (!next && target->is_array()) {
                const bool is_number =
                    !part.empty() && part.size() < 9 && part.find_first_not_of("0123456789") == part.npos;
                const size_t i = is_number ? std::stoul(part) : target->size();
                next           = i < target->size() ? &target->at(i) : nullptr;
            }
            if (!next) {
                return nullptr;
            }
            target = next;
        }
        pointer = text.substr(1);
        return target;
    }

    type_set types_of(const common_json & s) const {
        const auto [it, is_new] = types_.emplace(&s, type_set::all()); // a schema that refers to itself may be anything
        if (is_new && s.is_object() && n_open_types_ < MAX_OPEN) {
            ++n_open_types_;
            const type_set types = find_types(s);
            --n_open_types_;
            return types_.at(&s) = types;
        }
        return it->second;
    }

    type_set find_types(const common_json & s) const {
        type_set types = type_set::all();
        if (const auto * type = member(s, "type"); type && type->is_string()) {
            types = types_named(type->get<std::string>());
        } else if (type && type->is_array() && !type->empty()) {
            type_set any;
            for (const common_json & one : *type) {
                any |= one.is_string() ? types_named(one.get<std::string>()) : type_set::all();
            }
            types = any;
        }
        type_set values;
        if (const auto * value = member(s, "const")) {
            values = type_of(*value);
        } else if (const auto * list = member(s, "enum"); list && list->is_array()) {
            for (const common_json & one : *list) {
                values |= type_of(one);
            }
        }
        narrow(types, values);
        std::string pointer;
        if (const auto * ref = member(s, "$ref")) {
            if (const auto * target = resolve(*ref, pointer)) {
                narrow(types, types_of(*target));
            }
        }
        for (const char * key : { "anyOf", "oneOf" }) {
            type_set any;
            for (const common_json * one : list_of(s, key)) {
                any |= types_of(*one);
            }
            narrow(types, any);
        }
        for (const common_json * one : list_of(s, "allOf")) {
            narrow(types, types_of(*one));
        }
        return types == type_set::all() ? implied(s) : types;
    }

    static void narrow(type_set & types, const type_set & others) {
        type_set both = types;
        both &= others;
        if (!both.empty()) {
            types = both;
        }
    }

    static type_set implied(const common_json & s) {
        const auto has = [&](std::initializer_list<const char *> keys) {
            return std::any_of(keys.begin(), keys.end(), [&](const char * key) { return s.contains(key); });
        };
        return has({ "properties", "additionalProperties", "required" })               ? types_named("object")
               : has({ "items", "prefixItems", "minItems", "maxItems" })               ? types_named("array")
               : has({ "pattern", "format", "minLength", "maxLength" })                ? types_named("string")
               : has({ "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum" }) ? types_named("number")
                                                                                       : type_set::all();
    }

    static std::vector<const common_json *> list_of(const common_json & s, const std::string & key) {
        std::vector<const common_json *> found;
        if (const auto * list = member(s, key); list && list->is_array()) {
            for (const common_json & one : *list) {
                found.push_back(&one);
            }
        }
        return found;
    }

    common_chat_schema_ptr read(const common_json & s, const std::string & pointer, bool is_root = false) const {
        const type_set types = types_of(s);
        const bool     inner =
            s.is_object() && (is_root || !s.contains("$ref")) && ++n_nodes_ <= MAX_NODES; // follows no reference
        if (inner && types.is_only(schema::TYPE_OBJECT)) {
            auto         res = std::make_unique<node<common_chat_schema_object>>();
            object_parts parts{ *res, {}, {}, true };
            add_properties(s, pointer, true, parts);
            for (const void * part : parts.seen) {
                open_.erase(part);
            }
            if (parts.is_whole || is_root) {
                return finished(std::move(res), pointer, types);
            }
            return finished(std::make_unique<leaf>(), pointer, types);
        }
        if (const auto * items = member(s, "items");
            inner && items && !items->is_array() && !s.contains("prefixItems") && types.is_only(schema::TYPE_ARRAY)) {
            auto res   = std::make_unique<node<common_chat_schema_array>>();
            res->items = read(*items, pointer + "/items");
            return finished(std::move(res), pointer, types);
        }
        for (const std::string key : { "anyOf", "oneOf" }) {
            const auto alternatives = list_of(s, key);
            if (inner && !alternatives.empty() && !s.contains("properties")) {
                auto res = std::make_unique<node<common_chat_schema_any_of>>();
                for (size_t i = 0; i < alternatives.size(); ++i) {
                    res->children.push_back(read(*alternatives[i], pointer + "/" + key + "/" + std::to_string(i)));
                }
                return finished(std::move(res), pointer, types);
            }
        }
        return finished(std::make_unique<leaf>(), pointer, types);
    }

    template <typename T>
    common_chat_schema_ptr finished(std::unique_ptr<T> res, const std::string & pointer, const type_set & types) const {
        res->document = document_;
        res->pointer  = pointer;
        res->types    = types;
        return res;
    }

    // An object whose properties are read from several schemas.
    struct object_parts {
        common_chat_schema_object &             to;
        std::unordered_map<std::string, size_t> index; // of its properties, by name
        std::set<const void *>                  seen;
        bool                                    is_whole; // no part of it is an object around it
    };

    // Adds the properties of all parts of an object; those of alternatives are optional.
    void add_properties(const common_json & s, const std::string & pointer, bool is_sure, object_parts & parts) const {
        if (!parts.seen.insert(&s).second) {
            return;
        }
        if (open_.size() >= MAX_OPEN || !open_.insert(&s).second) { // a circle through properties
            parts.seen.erase(&s);
            parts.is_whole = false;
            return;
        }
        const auto * properties = member(s, "properties");
        if (properties && properties->is_object()) {
            for (const auto & [name, property] : properties->items()) {
                if (parts.index.emplace(name, parts.to.properties.size()).second) {
                    parts.to.properties.push_back({ name, nullptr, false });
                    auto read_property = read(property, pointer + "/properties/" + escaped(name));
                    parts.to.properties[parts.index.at(name)].schema = std::move(read_property);
                }
            }
        }
        std::string target_pointer;
        if (const auto * ref = member(s, "$ref")) {
            if (const auto * target = resolve(*ref, target_pointer)) {
                add_properties(*target, target_pointer, is_sure, parts);
            }
        }
        for (const std::string key : { "allOf", "anyOf", "oneOf" }) {
            size_t i = 0;
            for (const common_json * one : list_of(s, key)) {
                add_properties(*one, pointer + "/" + key + "/" + std::to_string(i++), is_sure && key == "allOf", parts);
            }
        }
        for (const common_json * name : list_of(s, "required")) {
            const auto it =
                is_sure && name->is_string() ? parts.index.find(name->get<std::string>()) : parts.index.end();
            if (it != parts.index.end()) {
                parts.to.properties[it->second].required = true;
            }
        }
    }

    const common_json &                root_;
    std::shared_ptr<const std::string> document_;

    mutable std::map<const void *, type_set> types_; // of schemas that were read
    mutable std::set<const void *>           open_;  // parts of the objects whose properties are being read
    mutable size_t                           n_nodes_      = 0;
    mutable size_t                           n_open_types_ = 0;
};

// The rules of a grammar.
class rules {
  public:
    // Adds a rule, and returns its name: another one if there is a different rule of this name. llama.cpp's parsers
    // refer to their rules by the names that they give, which have letters, digits and hyphens only.
    std::string add(const std::string & name, const std::string & rule) {
        const auto [known, is_new] = names_.try_emplace({ name, rule });
        if (is_new) {
            std::string & key = known->second = name;
            for (size_t & i = n_named_[name]; !rules_.emplace(key, rule).second; ++i) {
                key = name + std::to_string(i);
            }
        }
        return known->second;
    }

    std::string text() const {
        std::string res;
        for (const auto & [name, rule] : rules_) {
            res += name + " ::= " + rule + "\n";
        }
        return res;
    }

  private:
    // the white space that llama.cpp's grammars allow between the parts of JSON
    static constexpr const char * SPACE = "| \" \" | \"\\n\"{1,2} [ \\t]{0,20}";

    std::map<std::string, std::string>                         rules_ = { { "space", SPACE } };
    // names of rules, by the name that was asked for and the text
    std::map<std::pair<std::string, std::string>, std::string> names_ = { { { "space", SPACE }, "space" } };
    std::unordered_map<std::string, size_t>                    n_named_;
};

} // namespace

open_schemas::open_schemas() {
    collector = this;
}

open_schemas::~open_schemas() {
    collector = nullptr;
}

std::string open_schemas::rule_of(const std::string & name, const std::shared_ptr<const std::string> & document,
                                  const std::string & pointer) {
    if (!collector) {
        throw std::runtime_error("a grammar of a schema is built, and nobody completes it");
    }
    auto & found            = collector->found;
    const auto [it, is_new] = collector->index.emplace(std::pair(document.get(), pointer), found.size());
    if (is_new) {
        found.push_back({ "schema-" + std::to_string(found.size()), name, document, pointer });
    }
    return found[it->second].rule;
}

} // namespace eagle3::chat

common_chat_schema::type_set common_chat_schema::value_types() const {
    return eagle3::chat::origin_of(*this).types;
}

// False for a value that may be anything, which is written as JSON.
bool common_chat_schema::may_be_string() const {
    const type_set types = value_types();
    return types != type_set::all() && types.has(TYPE_STRING);
}

const char * common_chat_schema::kind_name(node_kind kind) {
    return kind == KIND_OBJECT ? "object" : kind == KIND_ARRAY ? "array" : kind == KIND_ANY_OF ? "anyOf" : "any";
}

common_chat_schema_document common_chat_schema_from_json(const common_json & schema) {
    common_chat_schema_document doc;
    doc.root = eagle3::chat::reader(schema).read();
    return doc;
}

std::string gbnf_format_literal(const std::string & literal) {
    std::string res = "\"";
    for (const char c : literal) {
        res += c == '\r'               ? "\\r"
               : c == '\n'             ? "\\n"
               : c == '"' || c == '\\' ? std::string("\\") + c
                                       : std::string(1, c);
    }
    return res + "\"";
}

std::string build_grammar(const std::function<void(const common_grammar_builder &)> & cb,
                          const common_grammar_options &) {
    eagle3::chat::rules          rules;
    const common_grammar_builder builder{
        [&](const std::string & name, const std::string & rule) { return rules.add(name, rule); },
        [&](const std::string & name, const common_chat_schema & schema) {
            const auto & from = eagle3::chat::origin_of(schema);
            return eagle3::chat::open_schemas::rule_of(name, from.document, from.pointer);
        },
    };
    cb(builder);
    return rules.text();
}

std::string json_schema_to_grammar(const common_chat_schema_document & schema) {
    return build_grammar([&](const common_grammar_builder & builder) {
        builder.add_rule("root", builder.add_schema("root", *schema.root));
    });
}

std::string json_schema_to_grammar(const common_json & schema, bool) {
    return json_schema_to_grammar(common_chat_schema_from_json(schema));
}
