#include <plan_memory/measure.hpp>

template std::vector<planner::Plan> planner::plans<octavo::llama3_8b>();
