// In the replay each constant of the planner can be set, and each mechanism switched off, by the environment variable
// PLANNER, "name=value name=value".

#pragma once

namespace replay {

double constant(const char * name, double value);

} // namespace replay

#define REPLAY_ENABLED(name)                                           \
    ([] {                                                              \
        static const bool on = replay::constant(name, 1.0) != 0.0;     \
        return on;                                                     \
    }())
