# llama.cpp's chat code: templates, grammars and parsers, which libllama does not export. In few and large units and with
# little optimization, since nothing here is hot.

set(_common ${LLAMA_CPP_SOURCES}/common)

# Copies a file of llama.cpp with texts replaced: ARGN is what there was and what it becomes, in turn. Neither may have a
# semicolon.
function(changed_file result name)
    file(READ ${LLAMA_CPP_SOURCES}/${name} _text)
    while(ARGN)
        list(POP_FRONT ARGN _was _is)
        string(FIND "${_text}" "${_was}" _at)
        if(_at EQUAL -1)
            message(FATAL_ERROR "${LLAMA_CPP_SOURCES}/${name} does not have the text that is to be replaced: ${_was}")
        endif()
        string(REPLACE "${_was}" "${_is}" _text "${_text}")
    endwhile()
    set(_file ${CMAKE_CURRENT_BINARY_DIR}/changed/${name})
    file(WRITE ${_file}.new "${_text}")
    file(COPY_FILE ${_file}.new ${_file} ONLY_IF_DIFFERENT)
    set(${result} ${_file} PARENT_SCOPE)
endfunction()

# Adds such a copy to a group of sources.
function(add_changed_source group name)
    changed_file(_copy common/${name}.cpp ${ARGN})
    target_sources(llama_chat PRIVATE ${_copy})
    set_source_files_properties(${_copy} PROPERTIES UNITY_GROUP ${group})
endfunction()

function(add_chat_group name)
    list(TRANSFORM ARGN PREPEND ${_common}/)
    list(TRANSFORM ARGN APPEND .cpp)
    target_sources(llama_chat PRIVATE ${ARGN})
    set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${name})
endfunction()

add_library(llama_chat STATIC)
add_chat_group(chat
    chat chat-auto-parser-generator chat-auto-parser-helpers chat-diff-analyzer)
# names come back as the client gave them, and arguments as JSON
add_changed_source(chat chat-peg-parser
    "#include \"chat-peg-parser.h\"" "#include \"chat-peg-parser.h\"\n#include \"${CMAKE_CURRENT_SOURCE_DIR}/csrc/chat/names.h\""
    "arena.visit(parse_result_arg," "eagle3::chat::names_in(arena).visit(parse_result_arg,"
    "for (const auto & node : result.nodes) {\n        visit(arena, node)" "for (const auto & node : result.nodes) {\n        visit(eagle3::chat::names_in(arena), node)"
    "current_tool->name = std::string(trim_trailing_space(node.text))" "current_tool->name = eagle3::chat::given_name(node, std::string(trim_trailing_space(node.text)))"
    "ordered_json(trim(node.text)).dump()" "ordered_json(eagle3::chat::given_name(node, std::string(trim(node.text)))).dump()"
    "\"gemma4-dict-key-name\") {\n        return std::string(node.text)" "\"gemma4-dict-key-name\") {\n        return eagle3::chat::given_name(node, std::string(node.text))"
    "call.name = std::string(name_node.text)" "call.name = eagle3::chat::given_name(name_node, std::string(name_node.text))"
    "std::string(arena.get(name_id).text)" "eagle3::chat::given_name(arena.get(name_id), std::string(arena.get(name_id).text))"
    "ordered_json(arena.get(name_id).text)" "ordered_json(eagle3::chat::given_name(arena.get(name_id), std::string(arena.get(name_id).text)))"
    "args_target() = std::string(text)" "args_target() = eagle3::chat::with_escapes(std::string(text))"
    "value_to_add += normalize_container_value(value_content)" "value_to_add += eagle3::chat::with_escapes(normalize_container_value(value_content))")
add_chat_group(jinja
    jinja/lexer jinja/parser jinja/caps jinja/string)
# a template that goes on without end, or calls itself, would never be loaded or end the process; and copies that are not
# needed make it slow
set(_steps "#include \"${CMAKE_CURRENT_SOURCE_DIR}/csrc/chat/template_steps.h\"\n#include")
add_changed_source(values jinja/runtime
    "#include \"lexer.h\"" "${_steps} \"jinja/lexer.h\"" "#include \"runtime.h\"" "#include \"jinja/runtime.h\""
    "#include \"value.h\"" "#include \"jinja/value.h\"" "#include \"utils.h\"" "#include \"jinja/utils.h\""
    "return execute_impl(ctx)" "return eagle3::chat::template_step(), execute_impl(ctx)"
    "auto builtins = global_builtins()" "auto & builtins = global_builtins()"
    "auto builtins = input->get_builtins()" "auto & builtins = input->get_builtins()"
    "context loop_scope(scope)" "context & loop_scope = scope"
    "left_val->as_string().append(right_val->as_string())" "std::move((left_val.use_count() == 1 && is_val<value_string>(left_val) ? std::move(left_val->val_str) : left_val->as_string()).append(right_val->as_string()))")
add_changed_source(values jinja/value
    "#include \"runtime.h\"" "${_steps} \"jinja/runtime.h\"" "#include \"value.h\"" "#include \"jinja/value.h\""
    "mark_used(item, deep)" "eagle3::chat::template_step(), mark_used(item, deep)"
    "mark_used(pair.second, deep)" "eagle3::chat::template_step(), mark_used(pair.second, deep)"
    "value_to_json_internal(oss, arr[i]" "eagle3::chat::template_step(), value_to_json_internal(oss, arr[i]"
    "value_to_json_internal(oss, pair.second" "eagle3::chat::template_step(), value_to_json_internal(oss, pair.second"
    "const auto & item : haystack->as_array()" "const auto & item : (eagle3::chat::take_template_steps(haystack->as_array().size() * 16), haystack->as_array())"
    "haystack->as_string().str().find(needle->as_string().str())" "(eagle3::chat::take_template_steps(haystack->as_string().length() * needle->as_string().length()), haystack->as_string().str().find(needle->as_string().str()))"
    "str.replace(pos," "eagle3::chat::take_template_steps(str.size()), str.replace(pos,"
    "str.erase(0, pos" "eagle3::chat::take_template_steps(str.size()), str.erase(0, pos")
# destructors of JSON take memory, which must not be refused
changed_file(_json vendor/nlohmann/json.hpp
    "#define INCLUDE_NLOHMANN_JSON_HPP_" "#define INCLUDE_NLOHMANN_JSON_HPP_\n${_steps} <cstddef>"
    "std::vector<basic_json> stack" "eagle3::chat::without_limit<std::vector<basic_json>> stack")
add_chat_group(json json)
# csrc/chat/schema.cpp is in the place of json-schema and json-schema-to-grammar
add_chat_group(grammar trie unicode)
# llama.cpp gives rules of different tools one name, and lets a model write before a call that it must make
add_changed_source(grammar peg-parser
    "#include \"peg-parser.h\"" "#include \"peg-parser.h\"\n#include \"${CMAKE_CURRENT_SOURCE_DIR}/csrc/chat/calls.h\""
    "const common_peg_parser & p, bool trigger) {\n    auto clean_name = rule_name(name)"
    "const common_peg_parser & p, bool trigger) {\n    auto clean_name = eagle3::chat::new_rule_name(arena_, rule_name(name))"
    "    if (lazy) {" "    if (eagle3::chat::is_lazy(lazy)) {"
    "arena_.resolve_refs()" "arena_.resolve_refs(), eagle3::chat::apply_wishes(arena_, *this)")
file(GLOB _parsers RELATIVE ${_common} ${_common}/parsers/*.cpp)
list(TRANSFORM _parsers REPLACE "\\.cpp$" "")
list(REMOVE_ITEM _parsers parsers/cohere2moe parsers/functionary-v3-2 parsers/kimi-k3)
add_chat_group(parsers ${_parsers})
# in a thought that is content, a tag that has begun may be another than its end
add_changed_source(parsers parsers/cohere2moe
    "#include \"parsers.h\"" "#include \"parsers/parsers.h\""
    "ACTION_START }) +\n                                             p.optional(p.literal(THINK_END))))" "ACTION_START })) + p.optional(p.atomic(p.content(p.literal(THINK_END)))))")
# a call ends a thought that the model has not ended, as a text does
add_changed_source(parsers parsers/kimi-k3
    "#include \"parsers.h\"" "#include \"parsers/parsers.h\""
    "until_one_of({ THINK_END, RESP_START })" "until_one_of(include_grammar ? std::vector<std::string>{ THINK_END, RESP_START, TOOLS_START } : std::vector<std::string>{ THINK_END, RESP_START })")
# a call after a text or another call begins with >>>, which llama.cpp's parser and grammar do not expect there
add_changed_source(parsers parsers/functionary-v3-2
    "#include \"parsers.h\"" "#include \"parsers/parsers.h\"\n#include \"${CMAKE_CURRENT_SOURCE_DIR}/csrc/chat/calls.h\""
    "tools_only = p.trigger_rule(\"tools\", p.one_or_more(tool_choice))" "next_tool = p.literal(\">>>\") + tool_choice, tools_only = p.trigger_rule(\"tools\", inputs.parallel_tool_calls ? tool_choice + p.zero_or_more(next_tool) : tool_choice), tools_after = p.trigger_rule(\"tools-after\", inputs.parallel_tool_calls ? p.one_or_more(next_tool) : next_tool)"
    "content_until_tool + tools_only" "content_until_tool + tools_after"
    "content_until_tool + tool_choice" "content_until_tool + tools_after"
    "content_only, tool_choice }" "content_only, tools_only }"
    "\">>>(?!all)\" }" "\">>>(?!all)\" }, { COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN, inputs.has_continuation() ? \">>>(?!all)\" : eagle3::chat::first_call() }")

set_target_properties(llama_chat PROPERTIES
    UNITY_BUILD ON
    UNITY_BUILD_MODE GROUP
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
target_include_directories(llama_chat SYSTEM PUBLIC ${CMAKE_CURRENT_BINARY_DIR}/changed/vendor ${_common} ${LLAMA_CPP_SOURCES}/vendor)
target_compile_options(llama_chat
    PRIVATE -w
    PUBLIC -O1 "SHELL:-include ${CMAKE_CURRENT_SOURCE_DIR}/csrc/chat/prelude.h")
target_link_libraries(llama_chat PUBLIC llama_cpp)
