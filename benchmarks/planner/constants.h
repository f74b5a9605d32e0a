// In the replay each constant of the planner can be another one, and each `enabled` can be false: by the environment
// variable PLANNER, "name=value name=value".

#pragma once

namespace replay {

double constant(const char * name, double value);

inline bool enabled(const char * name) {
    return constant(name, 1.0) != 0.0;
}

} // namespace replay
