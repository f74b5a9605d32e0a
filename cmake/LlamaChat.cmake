# llama.cpp's chat code: templates, grammars and parsers, which libllama does not export. In few and large units and with
# little optimization, since nothing here is hot.

set(_common ${LLAMA_CPP_SOURCES}/common)

function(add_chat_group name)
    list(TRANSFORM ARGN PREPEND ${_common}/)
    list(TRANSFORM ARGN APPEND .cpp)
    target_sources(llama_chat PRIVATE ${ARGN})
    set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${name})
endfunction()

add_library(llama_chat STATIC)
add_chat_group(chat
    chat chat-auto-parser-generator chat-auto-parser-helpers chat-diff-analyzer chat-peg-parser)
add_chat_group(jinja
    jinja/lexer jinja/parser jinja/runtime jinja/value jinja/string jinja/caps)
add_chat_group(json json)
add_chat_group(grammar
    peg-parser trie unicode) # csrc/chat/schema.cpp is in the place of json-schema and json-schema-to-grammar
file(GLOB _parsers RELATIVE ${_common} ${_common}/parsers/*.cpp)
list(TRANSFORM _parsers REPLACE "\\.cpp$" "")
add_chat_group(parsers ${_parsers})

set_target_properties(llama_chat PROPERTIES
    UNITY_BUILD ON
    UNITY_BUILD_MODE GROUP
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
target_include_directories(llama_chat SYSTEM PUBLIC ${_common} ${LLAMA_CPP_SOURCES}/vendor)
target_compile_options(llama_chat
    PRIVATE -w
    PUBLIC -O1 "SHELL:-include ${CMAKE_CURRENT_SOURCE_DIR}/csrc/chat/prelude.h")
target_link_libraries(llama_chat PUBLIC llama_cpp)
