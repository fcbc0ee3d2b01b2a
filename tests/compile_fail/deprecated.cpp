// expect: is deprecated: use later_name
#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
#define OCTAVO_NO_DEPRECATION_WARNINGS
#endif
#include <octavo/core/macros.hpp>

OCTAVO_DEPRECATED("use later_name")
void earlier_name();

void caller() { earlier_name(); }
