// Functions that differ between operating systems. Memory maps are in mapped_file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace eagle3 {

// A path that Python passes as UTF-8: Windows would read a plain string in its code page.
std::filesystem::path path_of(const std::string & utf8);

// Runs run(arg) on a thread with a stack of this size, of which only the touched part takes memory, and waits for its
// end. False if no thread can be started.
bool run_on_stack(size_t n_bytes, void (*run)(void * arg), void * arg);

// The CPU time of the calling thread.
double thread_cpu_seconds();

// A function of a library of ggml's that this process has loaded, by the library's name without prefix and suffix;
// nullptr if there is none.
void * find_loaded(const std::string & library, const char * symbol);

} // namespace eagle3
