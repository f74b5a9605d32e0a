# Compiles llama-cpp-python in half the time, to the same code: without libllama-common, which nothing of it uses, and
# with libmtmd's models in one unit, as libllama's are in ten. llama-cpp-python's own build includes this file:
#
#     CMAKE_ARGS="-DCMAKE_PROJECT_llama_cpp_INCLUDE=$PWD/cmake/LlamaCppPython.cmake" pip install .

set(LLAMA_BUILD_COMMON OFF) # it sets the cache entry of this name, which a variable hides

function(eagle3_join_models)
    if(TARGET mtmd)
        get_target_property(_folder mtmd SOURCE_DIR)
        file(GLOB _models ${_folder}/models/*.cpp)
        set_source_files_properties(${_models} TARGET_DIRECTORY mtmd PROPERTIES UNITY_GROUP models)
        set_target_properties(mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    endif()
endfunction()
cmake_language(DEFER CALL eagle3_join_models)
