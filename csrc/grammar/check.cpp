#include "grammar/check.h"

#include "error.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <vector>

namespace eagle3 {

namespace {

constexpr size_t MAX_TEXT    = 4 << 20;
constexpr size_t MAX_TOKEN   = 1024; // bytes of a token in <...>: llama.cpp tokenizes it on a stack of the usual size
constexpr size_t MAX_NESTING = 200;
constexpr size_t MAX_REPETITIONS = 2000;        // llama.cpp takes more for any number, or refuses them
constexpr size_t MAX_ELEMENTS    = 1000 * 1000; // of all rules, when repetitions are written out
constexpr size_t MAX_BEGINNINGS  = 20 * 1000;   // ways in which a rule can begin
constexpr size_t MAX_CHAIN       = 4000;        // rules that begin with each other
constexpr size_t MAX_GROUP       = 8; // rules that begin with each other in a circle, and twice in one of them
constexpr size_t UNBOUNDED       = SIZE_MAX;

[[noreturn]] void refuse(const std::string & what) {
    throw std::invalid_argument("the grammar cannot be used: " + what);
}

// An element of a sequence: a rule, or some characters, of which only the number matters.
struct symbol {
    size_t rule   = SIZE_MAX; // or none
    size_t n_elem = 0;

    bool is_rule() const { return rule != SIZE_MAX; }
};

using sequence = std::vector<symbol>;

struct rule {
    std::string           name;
    std::vector<sequence> alternates;
    size_t                n_copies = 1; // number of such rules, one after another

    bool may_be_empty = false;
    bool may_end      = false; // it has a finite text
};

// Reads grammars as llama_grammar_parser does, but skips the rest of a rule that the parser would refuse.
class reader {
  public:
    explicit reader(const std::string & text) : text(text) {}

    std::vector<rule> read() {
        while (true) {
            skip_space(true);
            const std::string name = read_name();
            skip_space(false);
            if (name.empty() || text.compare(pos, 3, "::=") != 0) {
                return std::move(rules);
            }
            pos += 3;
            skip_space(true);
            if (!read_alternates(id_of(name))) {
                return std::move(rules);
            }
        }
    }

  private:
    struct group {
        size_t   rule;
        sequence current;
    };

    // False if something is wrong.
    bool read_alternates(size_t first) {
        std::vector<group> open = { { first, {} } };
        while (true) {
            const bool is_nested = open.size() > 1;
            skip_space(is_nested);
            const char c = pos < text.size() ? text[pos] : '\0';
            if (c == '"' || c == '[') {
                open.back().current.push_back({ SIZE_MAX, read_characters(c == '"' ? '"' : ']') });
            } else if (c == '.') {
                ++pos;
                open.back().current.push_back({ SIZE_MAX, 1 });
            } else if (c == '<' || c == '!') {
                const size_t end = std::min(text.find('>', pos), text.size() - 1) + 1;
                if (end - pos > MAX_TOKEN) {
                    refuse(format("the text of a token has at most %zu bytes", MAX_TOKEN));
                }
                pos = end;
                open.back().current.push_back({ SIZE_MAX, 1 });
            } else if (c == '(') {
                ++pos;
                open.push_back({ add_rule(rules[open.back().rule].name), {} });
                if (open.size() > MAX_NESTING) {
                    refuse(format("brackets are nested deeper than %zu", MAX_NESTING));
                }
            } else if (c == ')' && is_nested) {
                ++pos;
                end_alternate(open.back());
                const size_t id = open.back().rule;
                open.pop_back();
                open.back().current.push_back({ id, 1 });
            } else if (c == '|') {
                ++pos;
                end_alternate(open.back());
                skip_space(true);
            } else if (c == '*' || c == '+' || c == '?' || c == '{') {
                if (!read_repetition(open.back())) {
                    return false;
                }
            } else if (const std::string name = read_name(); !name.empty()) {
                open.back().current.push_back({ id_of(name), 1 });
            } else {
                end_alternate(open.back());
                return !is_nested && (c == '\n' || c == '\r' || c == '\0');
            }
            const sequence & current = open.back().current;
            count(current.empty() ? 0 : current.back().n_elem);
        }
    }

    bool read_repetition(group & g) {
        const char c         = text[pos++];
        size_t     min_times = c == '+' ? 1 : 0;
        size_t     max_times = c == '?' ? 1 : UNBOUNDED;
        if (c == '{') {
            skip_space(true);
            min_times = max_times = read_int();
            skip_space(true);
            if (pos < text.size() && text[pos] == ',') {
                ++pos;
                skip_space(true);
                max_times = pos < text.size() && is_digit(text[pos]) ? read_int() : UNBOUNDED;
                skip_space(true);
            }
            if (pos >= text.size() || text[pos++] != '}') {
                return false;
            }
        }
        if (min_times > max_times) {
            refuse(format("expected {from,to} with from <= to, found {%zu,%zu}", min_times, max_times));
        }
        if (g.current.empty() || min_times > MAX_REPETITIONS) {
            return false;
        }
        if (max_times > MAX_REPETITIONS) {
            max_times = UNBOUNDED;
        }
        // S{m,n} is written out as m copies of S, and a rule for each of the n - m others
        const symbol s          = g.current.back();
        const size_t n_optional = max_times == UNBOUNDED ? 1 : max_times - min_times;
        sequence     written_out;
        if (min_times > 0) {
            written_out.push_back(copies(g, { s }, min_times, false));
        }
        if (n_optional > 0) {
            sequence optional = { s };
            if (max_times == UNBOUNDED) {
                optional.push_back({ rules.size(), 1 }); // S' ::= S S' |
            }
            written_out.push_back(copies(g, std::move(optional), n_optional, true));
        }
        count((min_times + n_optional) * (s.n_elem + 3));
        g.current.back()        = copies(g, std::move(written_out), 1, false);
        g.current.back().n_elem = min_times * s.n_elem + 1;
        return true;
    }

    // Adds a rule for n copies of a sequence.
    symbol copies(const group & g, sequence s, size_t n, bool may_be_missing) {
        const size_t id    = add_rule(rules[g.rule].name);
        rules[id].n_copies = n;
        rules[id].alternates.push_back(std::move(s));
        if (may_be_missing) {
            rules[id].alternates.emplace_back();
        }
        return { id, 1 };
    }

    // Reads a literal or a set of characters, and returns the number of its elements.
    size_t read_characters(char end) {
        size_t n = 0;
        for (++pos; pos < text.size() && text[pos] != end; ++pos) {
            pos += text[pos] == '\\';
            n += (text[std::min(pos, text.size() - 1)] & 0xc0) != 0x80; // counts characters, not bytes
        }
        pos = std::min(pos + 1, text.size());
        return n;
    }

    void end_alternate(group & g) {
        rules[g.rule].alternates.push_back(std::move(g.current));
        g.current.clear();
    }

    void count(size_t n) {
        n_elements += n;
        if (n_elements > MAX_ELEMENTS) {
            refuse(format("its repetitions come to more than %zu elements", MAX_ELEMENTS));
        }
    }

    size_t add_rule(const std::string & name) {
        rules.push_back({ name, {} });
        return rules.size() - 1;
    }

    size_t id_of(const std::string & name) {
        const auto [it, is_new] = ids.emplace(name, rules.size());
        if (is_new) {
            add_rule(name);
        }
        return it->second;
    }

    static bool is_digit(char c) { return c >= '0' && c <= '9'; }

    static bool is_word(char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || is_digit(c);
    }

    std::string read_name() {
        const size_t start = pos;
        while (pos < text.size() && is_word(text[pos])) {
            ++pos;
        }
        return text.substr(start, pos - start);
    }

    size_t read_int() {
        size_t n = 0;
        for (; pos < text.size() && is_digit(text[pos]); ++pos) {
            n = std::min<size_t>(n * 10 + static_cast<size_t>(text[pos] - '0'), UINT32_MAX);
        }
        return n;
    }

    void skip_space(bool newlines) {
        while (pos < text.size()) {
            const char c = text[pos];
            if (c == '#') {
                pos = std::min(text.find_first_of("\r\n", pos), text.size());
            } else if (c == ' ' || c == '\t' || (newlines && (c == '\r' || c == '\n'))) {
                ++pos;
            } else {
                return;
            }
        }
    }

    const std::string &                     text;
    size_t                                  pos        = 0;
    size_t                                  n_elements = 0;
    std::vector<rule>                       rules;
    std::unordered_map<std::string, size_t> ids;
};

bool may_be_empty(const std::vector<rule> & rules, const symbol & s) {
    return s.is_rule() ? rules[s.rule].may_be_empty : s.n_elem == 0;
}

// Sets a flag of the rules that have an alternate with whose symbols it holds.
template <typename Holds>
void find_rules(std::vector<rule> & rules, bool rule::* flag, const Holds & holds) {
    std::vector<std::vector<size_t>> users(rules.size());
    std::vector<size_t>              todo;
    for (size_t i = 0; i < rules.size(); ++i) {
        todo.push_back(i);
        for (const sequence & alternate : rules[i].alternates) {
            for (const symbol & s : alternate) {
                if (s.is_rule() && (users[s.rule].empty() || users[s.rule].back() != i)) {
                    users[s.rule].push_back(i);
                }
            }
        }
    }
    while (!todo.empty()) {
        const size_t i = todo.back();
        todo.pop_back();
        rule & r = rules[i];
        if (r.*flag) {
            continue;
        }
        r.*flag = std::any_of(r.alternates.begin(), r.alternates.end(), [&](const sequence & alternate) {
            return std::all_of(alternate.begin(), alternate.end(), [&](const symbol & s) { return holds(rules, s); });
        });
        if (r.*flag) {
            todo.insert(todo.end(), users[i].begin(), users[i].end());
        }
    }
}

// A grammar without a finite text would be written until max_tokens. One that lacks rules is refused later.
void check_end(const std::vector<rule> & rules) {
    const auto root     = std::find_if(rules.begin(), rules.end(), [](const rule & r) { return r.name == "root"; });
    const bool is_whole = std::none_of(rules.begin(), rules.end(), [](const rule & r) { return r.alternates.empty(); });
    if (root != rules.end() && is_whole && !root->may_end) {
        refuse("no text of it ends, since each one contains another one of the same rule");
    }
}

// A rule that a rule can begin with. is_tail: nothing comes after it, so llama.cpp's stack does not grow.
struct beginning {
    size_t rule;
    bool   is_tail;
};

using beginnings = std::vector<std::vector<beginning>>;

beginnings find_beginnings(const std::vector<rule> & rules) {
    beginnings res(rules.size());
    for (size_t i = 0; i < rules.size(); ++i) {
        for (const sequence & alternate : rules[i].alternates) {
            for (const symbol & s : alternate) {
                if (s.is_rule()) {
                    res[i].push_back({ s.rule, &s == &alternate.back() });
                }
                if (!may_be_empty(rules, s)) {
                    break;
                }
            }
        }
    }
    return res;
}

// Groups of rules that begin with each other (Tarjan), and an order of rules in which a rule comes after those that it
// begins with.
struct groups {
    std::vector<size_t> order;
    std::vector<size_t> group_of;
};

groups find_groups(const beginnings & begin) {
    const size_t        n = begin.size();
    groups              res{ {}, std::vector<size_t>(n, SIZE_MAX) };
    std::vector<size_t> index(n, SIZE_MAX), low(n), next(n, 0), path, open;
    size_t              n_seen = 0, n_groups = 0;
    for (size_t first = 0; first < n; ++first) {
        if (index[first] == SIZE_MAX) {
            path.push_back(first);
        }
        while (!path.empty()) {
            const size_t i = path.back();
            if (index[i] == SIZE_MAX) {
                index[i] = low[i] = n_seen++;
                open.push_back(i);
            }
            if (next[i] < begin[i].size()) {
                const size_t k = begin[i][next[i]++].rule;
                if (index[k] == SIZE_MAX) {
                    path.push_back(k);
                } else if (res.group_of[k] == SIZE_MAX) {
                    low[i] = std::min(low[i], index[k]);
                }
                continue;
            }
            path.pop_back();
            if (!path.empty()) {
                low[path.back()] = std::min(low[path.back()], low[i]);
            }
            if (low[i] == index[i]) {
                for (size_t k = SIZE_MAX; k != i;) {
                    k = open.back();
                    open.pop_back();
                    res.group_of[k] = n_groups;
                    res.order.push_back(k);
                }
                ++n_groups;
            }
        }
    }
    return res;
}

// llama.cpp's search for left recursion visits a rule again on each way to it, and its grammar has a stack for each way
// in which a rule can begin. It visits rules of a group once, as it does not expand the same stack twice.
void check_beginnings(const std::vector<rule> & rules) {
    const beginnings    begin  = find_beginnings(rules);
    const groups        groups = find_groups(begin);
    std::vector<size_t> n_ways(rules.size(), 0); // by group
    std::vector<size_t> chain(rules.size(), 0);
    std::vector<size_t> size(rules.size(), 0);
    for (const size_t i : groups.order) {
        const rule & r    = rules[i];
        const size_t g    = groups.group_of[i];
        size_t       ways = r.alternates.size();
        size_t       n_in = 0;
        ++size[g];
        for (const beginning & b : begin[i]) {
            const size_t k = groups.group_of[b.rule];
            if (k != g) {
                ways += n_ways[k];
                chain[g] = std::max(chain[g], chain[k] + 1);
            } else if (!b.is_tail) {
                refuse(format("rule %s can begin with itself (left recursion)", r.name.c_str()));
            } else if (++n_in > 2 || size[g] > MAX_GROUP) {
                refuse(format("rule %s can be empty in too many ways", r.name.c_str()));
            }
        }
        n_ways[g] += ways * (r.may_be_empty ? r.n_copies : 1);
        if (n_ways[g] > MAX_BEGINNINGS) {
            refuse(format("rule %s can begin in more than %zu ways", r.name.c_str(), MAX_BEGINNINGS));
        }
        if (chain[g] > MAX_CHAIN) {
            refuse(format("more than %zu rules begin with each other", MAX_CHAIN));
        }
    }
}

} // namespace

void check_grammar(const std::string & text) {
    if (text.size() > MAX_TEXT) {
        refuse(format("expected at most %zu bytes, found %zu", MAX_TEXT, text.size()));
    }
    std::vector<rule> rules = reader(text).read();
    find_rules(rules, &rule::may_be_empty, may_be_empty);
    check_beginnings(rules);
    find_rules(rules, &rule::may_end,
               [](const auto & all, const symbol & s) { return !s.is_rule() || all[s.rule].may_end; });
    check_end(rules);
}

} // namespace eagle3
