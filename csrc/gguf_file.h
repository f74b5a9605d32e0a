#pragma once

#include "gguf.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace eagle3 {

// The header of a GGUF file: typed keys and tensor infos. Tensors' data is read only when asked for. Whatever is wrong
// with a file, a model_file_error names it.
class gguf_file {
  public:
    explicit gguf_file(const std::string & path);

    const std::string & path() const { return path_; }

    size_t file_size() const { return file_size_; }
    size_t data_offset() const { return gguf_get_data_offset(gguf_.get()); }

    bool has_key(const std::string & key) const { return find(key) >= 0; }

    // The type of a key's value, or of an array's elements; GGUF_TYPE_COUNT if the key is absent.
    gguf_type type(const std::string & key) const;
    gguf_type item_type(const std::string & key) const;

    // The value of a key; none if the key is absent. Throws for a value of another kind.
    std::optional<int64_t>              get_int(const std::string & key) const;
    std::optional<double>               get_float(const std::string & key) const;
    std::optional<bool>                 get_bool(const std::string & key) const;
    std::optional<std::string>          get_str(const std::string & key) const;
    std::optional<std::vector<int32_t>> get_int_array(const std::string & key) const;

    // An array of 32-bit integers, or of bools, read as llama.cpp does, which does not check their sign.
    std::vector<uint32_t> get_uint_array(const std::string & key) const;

    // The number of elements of an array of any type, 0 if the key is absent.
    size_t array_length(const std::string & key) const;

    // An array of strings, which live as long as this object; empty if the key is absent.
    std::vector<std::string_view> get_str_array(const std::string & key) const;

    int64_t require_int(const std::string & key) const;

    // A tensor by its name, without data.
    const ggml_tensor * find_tensor(const std::string & name) const;

    // The offset of a tensor's data from the start of the file, in bytes.
    size_t tensor_offset(const std::string & name) const;

    std::vector<const ggml_tensor *> tensors() const;

    // The data of a tensor of this file.
    std::vector<uint8_t> read(const ggml_tensor * tensor) const;

    // Throws for a key whose number is none (NaN).
    void check_numbers() const;

  private:
    int64_t find(const std::string & key) const { return gguf_find_key(gguf_.get(), key.c_str()); }

    struct gguf_deleter {
        void operator()(gguf_context * ctx) const { gguf_free(ctx); }
    };
    struct ggml_deleter {
        void operator()(ggml_context * ctx) const { ggml_free(ctx); }
    };

    std::string path_;
    size_t      file_size_ = 0;

    std::unique_ptr<gguf_context, gguf_deleter> gguf_;
    std::unique_ptr<ggml_context, ggml_deleter> meta_;
};

} // namespace eagle3
