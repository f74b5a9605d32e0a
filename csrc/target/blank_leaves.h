#pragma once

struct ggml_tensor;

namespace eagle3 {

// An eval callback of ggml_backend_sched (mtmd_context_params.cb_eval). Before a graph is computed, it zeroes the
// memory that the graph reads and nothing writes: leaves of the compute buffer that are not inputs. llama.cpp
// multiplies such memory by 0 and expects zeros (tools/mtmd/models/pixtral.cpp), which is wrong if it happens to hold a
// NaN.
bool blank_leaves(ggml_tensor * node, bool ask, void * user_data);

} // namespace eagle3
