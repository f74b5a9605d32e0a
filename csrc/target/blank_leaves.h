#pragma once

struct ggml_tensor;

namespace eagle3 {

// An eval callback of ggml_backend_sched (mtmd_context_params.cb_eval) that fills memory which a graph reads and
// nothing writes with zeros, before the graph is computed: leaves of the compute buffer that are no inputs. llama.cpp
// takes such memory times 0 for zeros (tools/mtmd/models/pixtral.cpp), which it is not if there happens to be a NaN in
// it.
bool blank_leaves(ggml_tensor * node, bool ask, void * user_data);

} // namespace eagle3
