#include <doctor/examine.hpp>

template doctor::Findings doctor::examine<octavo::Mxfp8, octavo::Cpu>(
    octavo::Context<octavo::Cpu>&);
