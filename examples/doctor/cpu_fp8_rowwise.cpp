#include <doctor/examine.hpp>

template doctor::Findings doctor::examine<octavo::Fp8Recipe<octavo::Rowwise>, octavo::Cpu>(
    octavo::Context<octavo::Cpu>&);
