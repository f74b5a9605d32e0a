# Sources and link targets of the llama.cpp inside llama-cpp-python: libllama itself is not compiled.
#
# Headers, and the chat code for _chat, come from the pinned source distribution, which pip fetches (its index, cache and
# proxy settings apply), or from -DLLAMA_CPP_SOURCE_DIR=<folder vendor/llama.cpp of it>.
#
# Libraries: at run time ours must be the ones that llama_cpp has loaded already, which the loader finds by SONAME. So
# we link against empty stand-ins that carry only these names. No RPATH, no second copy, and the same build serves CPU,
# CUDA, Metal and all other builds of llama-cpp-python. On Windows, which knows no symbols without a library, they define
# what llama.cpp's headers declare.

file(STRINGS ${CMAKE_CURRENT_SOURCE_DIR}/vendor/llama_cpp_python_version LLAMA_CPP_PYTHON_VERSION LIMIT_COUNT 1)

set(LLAMA_CPP_SOURCE_DIR "" CACHE PATH "Folder vendor/llama.cpp of llama-cpp-python ${LLAMA_CPP_PYTHON_VERSION}")
set(LLAMA_CPP_SOURCES ${LLAMA_CPP_SOURCE_DIR})

if(NOT LLAMA_CPP_SOURCES)
    execute_process(
        COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/llama_sources.py
                ${LLAMA_CPP_PYTHON_VERSION} ${CMAKE_CURRENT_BINARY_DIR}/llama.cpp
        OUTPUT_VARIABLE LLAMA_CPP_SOURCES
        OUTPUT_STRIP_TRAILING_WHITESPACE
        RESULT_VARIABLE _result)
    if(NOT _result EQUAL 0)
        message(FATAL_ERROR "no sources of llama-cpp-python ${LLAMA_CPP_PYTHON_VERSION}: see the message above")
    endif()
endif()

foreach(_file include/llama.h ggml/include/ggml.h ggml/include/gguf.h common/chat.h vendor/nlohmann/json.hpp
        vendor/miniaudio/miniaudio.h LICENSE licenses/LICENSE-jsonhpp)
    if(NOT EXISTS "${LLAMA_CPP_SOURCES}/${_file}")
        message(FATAL_ERROR "${LLAMA_CPP_SOURCES} has no ${_file}")
    endif()
endforeach()
message(STATUS "llama.cpp sources: ${LLAMA_CPP_SOURCES}")

add_library(llama_cpp INTERFACE)
target_include_directories(llama_cpp SYSTEM INTERFACE ${LLAMA_CPP_SOURCES}/include ${LLAMA_CPP_SOURCES}/ggml/include)
target_include_directories(llama_cpp INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/vendor)
target_compile_definitions(llama_cpp INTERFACE
    LLAMA_SHARED GGML_SHARED GGML_BACKEND_SHARED LLAMA_CPP_PYTHON_VERSION="${LLAMA_CPP_PYTHON_VERSION}")

set(_stubs ${CMAKE_CURRENT_BINARY_DIR}/stubs)
file(WRITE ${_stubs}/nothing.c "typedef int nothing;\n")
if(WIN32)
    execute_process(
        COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/windows_stubs.py
                ${LLAMA_CPP_SOURCES} ${CMAKE_CURRENT_SOURCE_DIR}/vendor ${_stubs}
        COMMAND_ERROR_IS_FATAL ANY)
endif()
foreach(_name llama ggml ggml-base)
    if(WIN32)
        file(GLOB _sources ${_stubs}/${_name}.cpp ${_stubs}/${_name}-c.cpp)
    else()
        set(_sources ${_stubs}/nothing.c)
    endif()
    add_library(stub-${_name} SHARED ${_sources})
    target_include_directories(stub-${_name} SYSTEM PRIVATE
        $<TARGET_PROPERTY:llama_cpp,INTERFACE_INCLUDE_DIRECTORIES>)
    set_target_properties(stub-${_name} PROPERTIES
        OUTPUT_NAME ${_name}
        SOVERSION 0
        INSTALL_NAME_DIR "@rpath"
        BUILD_WITH_INSTALL_NAME_DIR ON
        LIBRARY_OUTPUT_DIRECTORY ${_stubs}
        RUNTIME_OUTPUT_DIRECTORY ${_stubs})
    if(WIN32)
        target_compile_definitions(stub-${_name} PRIVATE LLAMA_SHARED LLAMA_BUILD)
        target_compile_options(stub-${_name} PRIVATE -w) # a function is exported here that was not where it is declared
        set_target_properties(stub-${_name} PROPERTIES PREFIX "") # llama.dll, as llama-cpp-python's wheels have it
    endif()
    target_link_libraries(llama_cpp INTERFACE stub-${_name})
endforeach()

if(APPLE)
    target_link_options(llama_cpp INTERFACE "LINKER:-undefined,dynamic_lookup")
elseif(NOT WIN32)
    # --no-as-needed: the stand-ins define nothing, and would be left out. now: bind all symbols at import, so that a wrong
    # libllama is an ImportError and not an abort in the middle of a call
    target_link_options(llama_cpp INTERFACE "LINKER:--no-as-needed" "LINKER:-z,now")
endif()
