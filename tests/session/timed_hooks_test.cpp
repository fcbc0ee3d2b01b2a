// Which stage of a step a timeline says that work is of.
#include <octavo/session/timed_hooks.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace timed_hooks_test {

using namespace octavo;

// The head of a model with a tied table announces the table's backward within its own stage.
TEST(TimedHooks, TiedTableBelongsToStageOfHead) {
  const Context<Cpu> context(1);
  const FlatParameters<float, float, Cpu> head, table;
  Timeline<Cpu> timeline;
  timeline.set_name(&head, "head");
  timeline.set_name(&table, "table");
  StageHooks<float, float, Cpu> none;
  TimedHooks<float, float, Cpu> hooks(none, timeline);
  timeline.begin();
  timeline.begin_step_sync(context);
  hooks.before_backward(head, context);
  hooks.before_backward(table, context);
  hooks.weights_read(table, context);
  hooks.weights_read(head, context);
  hooks.gradients_final(head, context);
  hooks.before_backward(table, context);
  hooks.weights_read(table, context);
  hooks.gradients_final(table, context);
  timeline.end_step_sync(context);
  std::vector<std::string> stages;
  for (const TimelineSpan& span : timeline.end()) {
    if (span.kind == SpanKind::compute) stages.push_back(span.name);
  }
  EXPECT_EQ(stages, (std::vector<std::string>{"backward head", "backward table"}));
}

}  // namespace timed_hooks_test
