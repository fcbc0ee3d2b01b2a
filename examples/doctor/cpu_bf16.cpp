#include <doctor/examine.hpp>

template doctor::Findings doctor::examine<octavo::Bf16, octavo::Cpu>(octavo::Context<octavo::Cpu>&);
