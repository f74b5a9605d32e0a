#include "kernels/timing.h"

#include "devices.h"
#include "error.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

namespace eagle3::kernels {

namespace {

using timer = std::chrono::steady_clock;

constexpr size_t  N_BYTES        = 8 << 20; // bytes of weights in a run
constexpr size_t  N_SAMPLES      = 8;       // samples of weights that runs take in turns
constexpr int     N_RUNS         = 5;
constexpr size_t  N_SIZES_MIN    = 2;  // numbers of rows that are timed however long that takes
constexpr int64_t N_EXPERTS_USED = 4;  // experts that a token uses
constexpr int64_t N_EXPERTS_READ = 16; // experts that a run reads, about

// Some weights, cut to the size that a run has time for. Each has two descriptions, since kernels are registered by the
// address of a description.
struct sample {
    std::vector<ggml_tensor> ours, ggml;
    double                   n_mib = 0.0;
};

ggml_tensor cut(const ggml_tensor & weight, size_t n_bytes, int64_t n_channels) {
    ggml_tensor part = weight;
    if (weight.ne[2] == 1 && ggml_nbytes(&weight) > n_bytes) {
        part.ne[1] = std::max<int64_t>(n_bytes / weight.nb[1] / n_channels, 1) * n_channels;
        part.nb[2] = part.nb[3] = part.ne[1] * part.nb[1];
    }
    return part;
}

// The bytes that a run reads of a weight.
size_t bytes_read(const ggml_tensor & weight) {
    return weight.nb[2] * std::min(weight.ne[2], N_EXPERTS_READ);
}

std::vector<sample> take_samples(const matrices & weights) {
    std::vector<sample> samples(1);
    size_t              n_bytes = 0;
    for (const ggml_tensor * weight : weights) {
        if (n_bytes >= N_BYTES) {
            if (samples.size() == N_SAMPLES) {
                break;
            }
            samples.emplace_back();
            n_bytes = 0;
        }
        constexpr int64_t n_channels = 64; // a multiple of every kernel's, and of ggml's
        samples.back().ours.push_back(cut(*weight, N_BYTES, n_channels));
        n_bytes += bytes_read(samples.back().ours.back());
        samples.back().n_mib = n_bytes / 1048576.0;
    }
    if (samples.size() > 1 && n_bytes < N_BYTES / 2) { // the last sample is too small
        samples.pop_back();
    }
    for (sample & s : samples) {
        s.ggml = s.ours;
    }
    return samples;
}

// Gives each token different experts at random.
void fill_ids(ggml_tensor * ids, int64_t n_experts) {
    std::minstd_rand     random(1);
    std::vector<int32_t> all(n_experts);
    std::iota(all.begin(), all.end(), 0);
    for (int64_t token = 0; token < ids->ne[1]; ++token) {
        std::shuffle(all.begin(), all.end(), random);
        std::copy_n(all.begin(), ids->ne[0], static_cast<int32_t *>(ids->data) + token * ids->ne[0]);
    }
}

// Returns the microseconds that the products of all these weights with n_rows rows take.
double run(ggml_backend_t backend, std::vector<ggml_tensor> & weights, int64_t n_rows) {
    const size_t      n_nodes = 4 * weights.size() + 1;
    const context_ptr ctx(
        ggml_init({ ggml_tensor_overhead() * n_nodes + ggml_graph_overhead_custom(n_nodes, false), nullptr, true }));
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), n_nodes, false);

    std::vector<ggml_tensor *> inputs, ids(weights.size());
    for (size_t i = 0; i < weights.size(); ++i) {
        ggml_tensor & w = weights[i];
        if (w.ne[2] == 1) {
            inputs.push_back(ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, w.ne[0], n_rows));
            ggml_build_forward_expand(graph, ggml_mul_mat(ctx.get(), &w, inputs.back()));
        } else {
            const int64_t n_used = std::min(N_EXPERTS_USED, w.ne[2]);
            inputs.push_back(ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, w.ne[0], 1, n_rows));
            ids[i] = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, n_used, n_rows);
            ggml_build_forward_expand(graph, ggml_mul_mat_id(ctx.get(), &w, inputs.back(), ids[i]));
        }
    }
    const buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), backend));
    if (!buffer) {
        throw error("no memory to time the CPU's kernels in");
    }
    ggml_backend_buffer_clear(buffer.get(), 0); // so that no page is touched first while it is timed
    for (size_t i = 0; i < weights.size(); ++i) {
        auto * x = static_cast<float *>(inputs[i]->data);
        for (int64_t j = 0; j < ggml_nelements(inputs[i]); ++j) {
            x[j] = static_cast<float>(j * 7919 % 2003) / 1001.0f - 1.0f;
        }
        if (ids[i]) {
            fill_ids(ids[i], weights[i].ne[2]);
        }
    }
    const auto start = timer::now();
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
        throw error("ggml could not compute the products that its kernels are timed by");
    }
    return std::chrono::duration<double, std::micro>(timer::now() - start).count();
}

kernel_times time_kernel(ggml_backend_t backend, const std::string & name, const matrices & weights,
                         const std::vector<int64_t> & n_rows, double seconds) {
    std::vector<sample> samples = take_samples(weights);
    matrices            ours;
    for (const sample & s : samples) {
        for (const ggml_tensor & weight : s.ours) {
            ours.push_back(&weight);
        }
    }
    const cpu_kernels registered(ours, { { name, INT64_MAX / 2 } });
    for (sample & s : samples) { // reads mapped weights from the disk before they are timed
        run(backend, s.ggml, 1);
    }
    const auto start   = timer::now();
    const auto elapsed = [&] {
        return std::chrono::duration<double>(timer::now() - start).count();
    };
    kernel_times best;
    size_t       turn = 0;
    for (int i = 0; i < N_RUNS; ++i) {
        for (size_t j = 0; j < n_rows.size(); ++j) {
            const int64_t n        = n_rows[j];
            const bool    is_known = best.count(n) > 0;
            double        expected = 0.0; // microseconds per MiB of both sides
            if (is_known) {
                expected = best[n].first + best[n].second;
            } else if (j > 0 && best.count(n_rows[j - 1])) {
                expected = (best[n_rows[j - 1]].first + best[n_rows[j - 1]].second) * n / n_rows[j - 1];
            }
            const bool is_needed = i == 0 && j < N_SIZES_MIN;
            if (!is_needed && elapsed() + 1e-6 * expected * samples.front().n_mib > seconds) {
                break;
            }
            // each side gets each sample in turn
            sample &     a    = samples[turn++ % samples.size()];
            sample &     b    = samples[turn++ % samples.size()];
            const double ggml = run(backend, a.ggml, n) / a.n_mib;
            const double t    = run(backend, b.ours, n) / b.n_mib;
            best[n]           = is_known ? std::make_pair(std::min(best[n].first, t), std::min(best[n].second, ggml))
                                         : std::make_pair(t, ggml);
        }
        if (samples.size() % 2 == 0) {
            ++turn;
        }
    }
    return best;
}

} // namespace

std::map<std::string, kernel_times> time_kernels(const matrices & weights, const row_limits & limits, int32_t n_threads,
                                                 const std::vector<int64_t> & n_rows, double seconds) {
    std::map<std::string, kernel_times> times;
    const auto                          found = matrices_by_kernel(weights, limits);
    if (found.empty()) {
        return times;
    }
    const backend_ptr backend(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    if (!backend) {
        throw error("ggml offers no CPU to time kernels on");
    }
    auto set_n_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(ggml_backend_get_device(backend.get())), "ggml_backend_set_n_threads"));
    set_n_threads(backend.get(), n_threads);
    for (const auto & [name, own] : found) {
        times.emplace(name, time_kernel(backend.get(), name, own, n_rows, seconds / found.size()));
    }
    return times;
}

} // namespace eagle3::kernels
