// Plans for the cpu device.
#include <plan_memory/measure.hpp>

std::vector<planner::PrecisionPlans> planner::plans_on_cpu() { return plans_on<octavo::Cpu>(); }
