#include <plan_memory/measure.hpp>

template std::vector<planner::Plan> planner::plans<octavo::qwen3_8b>();
