#include <plan_memory/measure.hpp>

template std::vector<planner::Plan> planner::plans<octavo::gpt2_124m>();
