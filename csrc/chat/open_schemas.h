#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace eagle3::chat {

// A schema that a grammar refers to by a rule that is still missing: chat/schema/converter.py writes these rules.
struct open_schema {
    std::string                        rule;
    std::string                        name;     // that llama.cpp's parser gave it: of a tool, or of a tool's parameter
    std::shared_ptr<const std::string> document; // JSON
    std::string                        pointer;  // to the schema in it, a JSON pointer
};

// While it lives, collects the open schemas of the grammars that this thread builds.
class open_schemas {
  public:
    open_schemas();
    ~open_schemas();

    open_schemas(const open_schemas &)             = delete;
    open_schemas & operator=(const open_schemas &) = delete;

    // The name of the rule for a schema, the same one for the same schema.
    static std::string rule_of(const std::string & name, const std::shared_ptr<const std::string> & document,
                               const std::string & pointer);

    std::vector<open_schema> found;

  private:
    std::map<std::pair<const std::string *, std::string>, size_t> index;
};

} // namespace eagle3::chat
