// Plans for the cuda device.
#include <plan_memory/measure.hpp>

std::vector<planner::PrecisionPlans> planner::plans_on_cuda() { return plans_on<octavo::Cuda>(); }
