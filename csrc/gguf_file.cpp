#include "gguf_file.h"

#include "error.h"
#include "load_guard.h"
#include "system.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>

namespace eagle3 {

static bool is_lfs_pointer(const std::filesystem::path & path) {
    static const std::string first = "version https://git-lfs.github.com/spec/";
    std::string              found(first.size(), '\0');
    std::ifstream(path, std::ios::binary).read(found.data(), static_cast<std::streamsize>(found.size()));
    return found == first;
}

// What a folder has that a user may have meant.
static std::string models_in(const std::filesystem::path & folder) {
    static constexpr size_t n_shown = 5;
    std::set<std::string>   names;
    std::error_code         ec;
    for (std::filesystem::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
        if (it->path().extension() == ".gguf") {
            names.insert(it->path().filename().u8string());
        }
    }
    std::string list;
    size_t      n = 0;
    for (const auto & name : names) {
        list += n == 0 ? "'" + name + "'" : n < n_shown ? ", '" + name + "'" : n == n_shown ? ", ..." : "";
        ++n;
    }
    return names.empty() ? "has no GGUF files" : "has " + list;
}

static std::string why_missing(const std::filesystem::path & file) {
    std::error_code ec;
    const auto      folder = std::filesystem::absolute(file, ec).parent_path();
    return "the folder '" + folder.u8string() + "' " +
           (std::filesystem::is_directory(folder, ec) ? models_in(folder) : "does not exist");
}

gguf_file::gguf_file(const std::string & path) : path_(path) {
    const std::filesystem::path file = path_of(path);
    std::error_code             ec;
    if (!std::filesystem::exists(file, ec)) {
        throw model_file_error(format("'%s': no such file: %s", path.c_str(), why_missing(file).c_str()));
    }
    if (std::filesystem::is_directory(file, ec)) {
        throw model_file_error(
            format("'%s' is a folder, which %s: give the path of a file", path.c_str(), models_in(file).c_str()));
    }
    if (!std::filesystem::is_regular_file(file, ec)) {
        throw model_file_error(format("'%s': not a regular file", path.c_str()));
    }
    file_size_ = std::filesystem::file_size(file, ec);
    if (ec || file_size_ == 0) {
        throw model_file_error(format("'%s': the file is empty or cannot be read", path.c_str()));
    }

    if (is_lfs_pointer(file)) {
        throw model_file_error(format("'%s': a pointer of Git LFS and not the file itself: `git lfs pull` fetches it, "
                                      "as does a download from the web page",
                                      path.c_str()));
    }
    ggml_context *   meta   = nullptr;
    gguf_init_params params = { /*.no_alloc =*/true, /*.ctx =*/&meta };
    {
        const load_guard guard;
        gguf_.reset(gguf_init_from_file(path.c_str(), params));
        meta_.reset(meta);
        if (!gguf_ || !meta_) {
            // "gguf_init_from_file_ptr: failed to read magic" without the function
            const std::string why = guard.reason().substr(guard.reason().find(": ") + 1);
            throw model_file_error(
                format("'%s': not a readable GGUF file (%zu bytes):%s. It is truncated, damaged or of "
                       "another format: fetch it again, or convert the model to GGUF",
                       path.c_str(), file_size_, why.c_str()));
        }
    }

    for (int64_t i = 0; i < gguf_get_n_tensors(gguf_.get()); ++i) {
        const size_t end =
            data_offset() + gguf_get_tensor_offset(gguf_.get(), i) + gguf_get_tensor_size(gguf_.get(), i);
        if (end > file_size_) {
            throw model_file_error(format("'%s': truncated: tensor '%s' ends at byte %zu, the file has %zu",
                                          path.c_str(), gguf_get_tensor_name(gguf_.get(), i), end, file_size_));
        }
    }
}

static model_file_error wrong_kind(const gguf_file & file, const std::string & key, const char * expected,
                                   gguf_type found) {
    return model_file_error(format("'%s': key '%s': expected %s, found %s", file.path().c_str(), key.c_str(), expected,
                                   gguf_type_name(found)));
}

gguf_type gguf_file::type(const std::string & key) const {
    const int64_t id = find(key);
    return id < 0 ? GGUF_TYPE_COUNT : gguf_get_kv_type(gguf_.get(), id);
}

gguf_type gguf_file::item_type(const std::string & key) const {
    return type(key) == GGUF_TYPE_ARRAY ? gguf_get_arr_type(gguf_.get(), find(key)) : GGUF_TYPE_COUNT;
}

// Element i of an integer array or value.
static std::optional<int64_t> int_at(gguf_type type, const void * data, size_t i) {
    switch (type) {
        case GGUF_TYPE_UINT8: return static_cast<const uint8_t *>(data)[i];
        case GGUF_TYPE_INT8: return static_cast<const int8_t *>(data)[i];
        case GGUF_TYPE_UINT16: return static_cast<const uint16_t *>(data)[i];
        case GGUF_TYPE_INT16: return static_cast<const int16_t *>(data)[i];
        case GGUF_TYPE_UINT32: return static_cast<const uint32_t *>(data)[i];
        case GGUF_TYPE_INT32: return static_cast<const int32_t *>(data)[i];
        case GGUF_TYPE_UINT64: return static_cast<int64_t>(static_cast<const uint64_t *>(data)[i]);
        case GGUF_TYPE_INT64: return static_cast<const int64_t *>(data)[i];
        default: return std::nullopt;
    }
}

std::optional<int64_t> gguf_file::get_int(const std::string & key) const {
    const int64_t id = find(key);
    if (id < 0) {
        return std::nullopt;
    }
    const gguf_type type = gguf_get_kv_type(gguf_.get(), id);
    if (type == GGUF_TYPE_ARRAY || type == GGUF_TYPE_STRING) {
        throw wrong_kind(*this, key, "an integer", type);
    }
    const auto value = int_at(type, gguf_get_val_data(gguf_.get(), id), 0);
    if (!value) {
        throw wrong_kind(*this, key, "an integer", type);
    }
    return value;
}

int64_t gguf_file::require_int(const std::string & key) const {
    const auto value = get_int(key);
    if (!value) {
        throw model_file_error(format("'%s': key '%s' is missing", path_.c_str(), key.c_str()));
    }
    return *value;
}

std::optional<double> gguf_file::get_float(const std::string & key) const {
    const int64_t id = find(key);
    if (id < 0) {
        return std::nullopt;
    }
    switch (gguf_get_kv_type(gguf_.get(), id)) {
        case GGUF_TYPE_FLOAT32: return gguf_get_val_f32(gguf_.get(), id);
        case GGUF_TYPE_FLOAT64: return gguf_get_val_f64(gguf_.get(), id);
        default: return static_cast<double>(*get_int(key));
    }
}

std::optional<bool> gguf_file::get_bool(const std::string & key) const {
    const int64_t id = find(key);
    if (id < 0) {
        return std::nullopt;
    }
    if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_BOOL) {
        throw wrong_kind(*this, key, "a bool", gguf_get_kv_type(gguf_.get(), id));
    }
    return gguf_get_val_bool(gguf_.get(), id);
}

std::optional<std::string> gguf_file::get_str(const std::string & key) const {
    const int64_t id = find(key);
    if (id < 0) {
        return std::nullopt;
    }
    if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_STRING) {
        throw wrong_kind(*this, key, "a string", gguf_get_kv_type(gguf_.get(), id));
    }
    return gguf_get_val_str(gguf_.get(), id);
}

std::optional<std::vector<int32_t>> gguf_file::get_int_array(const std::string & key) const {
    const int64_t id = find(key);
    if (id < 0) {
        return std::nullopt;
    }
    if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(gguf_.get(), id) == GGUF_TYPE_STRING) {
        throw wrong_kind(*this, key, "an array of integers", gguf_get_kv_type(gguf_.get(), id));
    }
    std::vector<int32_t> values(gguf_get_arr_n(gguf_.get(), id));
    for (size_t i = 0; i < values.size(); ++i) {
        const auto value = int_at(gguf_get_arr_type(gguf_.get(), id), gguf_get_arr_data(gguf_.get(), id), i);
        if (!value || *value < std::numeric_limits<int32_t>::min() || *value > std::numeric_limits<int32_t>::max()) {
            throw wrong_kind(*this, key, "an array of 32-bit integers", gguf_get_arr_type(gguf_.get(), id));
        }
        values[i] = static_cast<int32_t>(*value);
    }
    return values;
}

std::vector<uint32_t> gguf_file::get_uint_array(const std::string & key) const {
    const gguf_type item = item_type(key);
    const int64_t   id   = find(key);
    if (item == GGUF_TYPE_BOOL) {
        const auto * bools = static_cast<const int8_t *>(gguf_get_arr_data(gguf_.get(), id));
        return { bools, bools + gguf_get_arr_n(gguf_.get(), id) };
    }
    if (item != GGUF_TYPE_UINT32 && item != GGUF_TYPE_INT32) {
        throw wrong_kind(*this, key, "an array of 32-bit integers", item == GGUF_TYPE_COUNT ? type(key) : item);
    }
    const auto * data = static_cast<const uint32_t *>(gguf_get_arr_data(gguf_.get(), id));
    return { data, data + gguf_get_arr_n(gguf_.get(), id) };
}

size_t gguf_file::array_length(const std::string & key) const {
    const int64_t id = find(key);
    return id >= 0 && gguf_get_kv_type(gguf_.get(), id) == GGUF_TYPE_ARRAY ? gguf_get_arr_n(gguf_.get(), id) : 0;
}

std::vector<std::string_view> gguf_file::get_str_array(const std::string & key) const {
    const int64_t id = find(key);
    if (id < 0) {
        return {};
    }
    if (item_type(key) != GGUF_TYPE_STRING) {
        throw wrong_kind(*this, key, "an array of strings", type(key));
    }
    std::vector<std::string_view> values(gguf_get_arr_n(gguf_.get(), id));
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = gguf_get_arr_str(gguf_.get(), id, i);
    }
    return values;
}

const ggml_tensor * gguf_file::find_tensor(const std::string & name) const {
    return ggml_get_tensor(meta_.get(), name.c_str());
}

size_t gguf_file::tensor_offset(const std::string & name) const {
    const int64_t id = gguf_find_tensor(gguf_.get(), name.c_str());
    if (id < 0) {
        throw model_file_error(format("'%s': tensor '%s' is missing", path_.c_str(), name.c_str()));
    }
    return data_offset() + gguf_get_tensor_offset(gguf_.get(), id);
}

std::vector<uint8_t> gguf_file::read(const ggml_tensor * tensor) const {
    std::vector<uint8_t> data(ggml_nbytes(tensor));
    std::ifstream        stream(path_of(path_), std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(tensor_offset(tensor->name)));
    if (!stream.read(reinterpret_cast<char *>(data.data()), static_cast<std::streamsize>(data.size()))) {
        throw model_file_error(format("'%s': tensor '%s' cannot be read", path_.c_str(), tensor->name));
    }
    return data;
}

void gguf_file::check_numbers() const {
    for (int64_t id = 0; id < gguf_get_n_kv(gguf_.get()); ++id) {
        const bool is_array = gguf_get_kv_type(gguf_.get(), id) == GGUF_TYPE_ARRAY;
        if ((is_array ? gguf_get_arr_type(gguf_.get(), id) : gguf_get_kv_type(gguf_.get(), id)) != GGUF_TYPE_FLOAT32) {
            continue;
        }
        const auto * values = static_cast<const float *>(is_array ? gguf_get_arr_data(gguf_.get(), id)
                                                                  : gguf_get_val_data(gguf_.get(), id));
        const size_t n      = is_array ? gguf_get_arr_n(gguf_.get(), id) : 1;
        if (std::any_of(values, values + n, [](float x) { return std::isnan(x); })) {
            throw model_file_error(format("'%s': key '%s': expected a number, found NaN: the file is damaged, fetch it "
                                          "again or convert the model anew",
                                          path_.c_str(), gguf_get_key(gguf_.get(), id)));
        }
    }
}

std::vector<const ggml_tensor *> gguf_file::tensors() const {
    std::vector<const ggml_tensor *> result;
    for (ggml_tensor * t = ggml_get_first_tensor(meta_.get()); t; t = ggml_get_next_tensor(meta_.get(), t)) {
        result.push_back(t);
    }
    return result;
}

} // namespace eagle3
