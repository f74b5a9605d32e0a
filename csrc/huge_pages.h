#pragma once

namespace eagle3 {

// Asks for pages of 2 MiB for ggml's large buffers in the CPU's memory that are allocated from now on: repacked
// weights, caches of K/V. A pass reads all of them, and looks for the place of each page. Linux alone; others, and
// systems that give no one such pages, stay as they are.
void use_huge_pages();

} // namespace eagle3
