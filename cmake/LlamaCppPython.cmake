# Compiles llama-cpp-python in less time, to the same code: no libllama-common, which nothing of it uses and which is a
# third of the work, and headers of libllama and libmtmd are read once. llama-cpp-python's build includes this file:
#
#     CMAKE_ARGS="-DCMAKE_PROJECT_llama_cpp_INCLUDE=$PWD/cmake/LlamaCppPython.cmake" pip install .

set(LLAMA_BUILD_COMMON OFF) # its CMakeLists.txt sets the cache entry of this name, which the variable hides

function(eagle3_precompile_headers)
    set(_llama ${CMAKE_CURRENT_SOURCE_DIR}/vendor/llama.cpp)
    if(TARGET llama)
        target_precompile_headers(llama PRIVATE ${_llama}/src/models/models.h <regex>)
    endif()
    if(TARGET mtmd)
        set_target_properties(mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
        file(GLOB _models ${_llama}/tools/mtmd/models/*.cpp)
        set_source_files_properties(${_models} TARGET_DIRECTORY mtmd PROPERTIES UNITY_GROUP models)
        target_precompile_headers(mtmd PRIVATE ${_llama}/tools/mtmd/models/models.h)
    endif()
endfunction()
cmake_language(DEFER CALL eagle3_precompile_headers)
