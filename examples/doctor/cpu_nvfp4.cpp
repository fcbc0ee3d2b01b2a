#include <doctor/examine.hpp>

template doctor::Findings doctor::examine<octavo::Nvfp4, octavo::Cpu>(
    octavo::Context<octavo::Cpu>&);
