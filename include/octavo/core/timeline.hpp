/// @file
/// How a step spends its time: stages, work on lanes, and operations between ranks.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/core/host_clock.hpp>

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The kind of a span of time.
enum class SpanKind {
  step,           ///< a whole step
  phase,          ///< of stages: the forward or the backward of a micro-batch
  compute,        ///< a stage
  communication,  ///< an operation between ranks, including its packing and summing
  copy,           ///< between host and device memory
};

[[nodiscard]] constexpr const char* name_of(SpanKind kind) {
  constexpr const char* names[]{"step", "phase", "compute", "communication", "copy"};
  return names[static_cast<int>(kind)];
}

/// A span of time.
struct TimelineSpan {
  SpanKind kind = SpanKind::compute;
  const char* track = "";  ///< "stages", "lane", "to device", "to host" or "host": one after the
                           ///< other, or one in another
  std::string name;        ///< such as "forward blocks.3"
  double begin = 0;        ///< µs since the timeline started
  double end = 0;          ///< µs since the timeline started
};

namespace detail {

/// Reports when a context has reached a point in its work. Specialised for each device.
/// `begin_sync` is called before the first mark of a step. `mark` marks the end of the work
/// enqueued so far, `host_mark` the current time. `microseconds_sync` returns the time of a mark on
/// the host's clock. Ranges are for profilers.
template <Device D>
class TimelineClock : DeviceNotIncluded<D> {
 public:
  struct Mark {};
};

/// The `Cpu` device has finished all enqueued work.
template <>
class TimelineClock<Cpu> {
 public:
  using Mark = double;

  void begin_sync(const Context<Cpu>&) {}
  [[nodiscard]] Mark mark(const Context<Cpu>&) { return host_microseconds(); }
  [[nodiscard]] Mark host_mark() const { return host_microseconds(); }
  [[nodiscard]] double microseconds_sync(Mark mark) const { return mark; }

  static void begin_range(const std::string&) {}
  static void end_range() {}
};

}  // namespace detail

/// Times the steps between `begin` and `end`. Every part of a step that takes time reports to it.
/// It is disabled initially; while it is disabled, each report costs one comparison.
///
/// On the `Cuda` device spans begin and end with events on the streams that run the work. The host
/// therefore enqueues a timed step itself: a step that is launched from its recording has no
/// events.
template <Device D>
class Timeline {
 public:
  /// Ends a span when it goes out of scope.
  class Scope {
   public:
    Scope(Timeline* timeline, std::size_t span, const Context<D>* context)
        : timeline_(timeline), span_(span), context_(context) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      if (timeline_ != nullptr) timeline_->close(span_, context_);
    }

   private:
    Timeline* timeline_;  ///< null if it was off
    std::size_t span_;
    const Context<D>* context_;
  };

  /// Sets the name of the stages that work on an object, such as "blocks.3" for a buffer of
  /// parameters.
  void set_name(const void* object, std::string name) { names_[object] = std::move(name); }

  /// Starts timing with the next step.
  void begin() {
    is_on_ = true;
    start_time_ = detail::host_microseconds();
    spans_.clear();
  }
  /// Stops timing.
  /// @return the spans of the timed steps
  std::vector<TimelineSpan> end() {
    is_on_ = false;
    is_in_step_ = false;
    return std::exchange(spans_, {});
  }
  /// Returns whether steps are timed.
  [[nodiscard]] bool is_on() const { return is_on_; }

  /// Starts a step. Waits for the context.
  void begin_step_sync(const Context<D>& context) {
    if (!is_on_) return;
    abandon();
    clock_.begin_sync(context);
    is_in_step_ = true;
    open_spans_.clear();
    phase_ = stage_ = none;
    step_ = open(SpanKind::step, "stages", "step", &context);
  }
  /// Ends a step, after all its work has run.
  void end_step_sync(const Context<D>& context) {
    if (!is_in_step_) return;
    end_phase(context);
    close(step_, &context);
    is_in_step_ = false;
    for (Open& span : open_spans_) {
      span.span.begin = clock_.microseconds_sync(span.begin) - start_time_;
      span.span.end = clock_.microseconds_sync(span.end) - start_time_;
      spans_.push_back(std::move(span.span));
    }
  }

  /// Discards a step that threw: it has no end, and is not in the timeline.
  void abandon() {
    if (!is_in_step_) return;
    for (const Open& span : open_spans_) {
      if (span.is_open) Clock::end_range();
    }
    open_spans_.clear();
    is_in_step_ = false;
  }

  /// Ends the current phase, and starts one with the work that is enqueued next.
  void begin_phase(const char* name, const Context<D>& context) {
    if (!is_in_step_) return;
    end_phase(context);
    phase_ = open(SpanKind::phase, "stages", name, &context);
    phase_name_ = name;
  }
  /// Same as begin_phase, but does nothing if the phase has already begun.
  void enter_phase(const char* name, const Context<D>& context) {
    if (is_in_step_ && (phase_ == none || phase_name_ != name)) begin_phase(name, context);
  }
  void end_phase(const Context<D>& context) {
    if (!is_in_step_) return;
    end_stage(context);
    if (phase_ != none) close(std::exchange(phase_, none), &context);
  }

  /// Ends the current stage, and starts one.
  /// @param object  the object that it works on, or null; see set_name
  void begin_stage(const char* name, const void* object, const Context<D>& context) {
    if (!is_in_step_) return;
    end_stage(context);
    stage_ = open(SpanKind::compute, "stages", full_name(name, object), &context);
  }
  /// Restarts the current stage: work before this call does not belong to it.
  void restart_stage(const Context<D>& context) {
    if (is_in_step_ && stage_ != none) open_spans_[stage_].begin = mark(&context);
  }
  void end_stage(const Context<D>& context) {
    if (is_in_step_ && stage_ != none) close(std::exchange(stage_, none), &context);
  }

  /// Times an operation between ranks on a context, and the work enqueued there for it, until the
  /// scope ends.
  [[nodiscard]] Scope communication(const char* track, const char* name, const void* object,
                                    const Context<D>& context) {
    return scope(SpanKind::communication, track, name, object, &context);
  }
  /// Times an operation between ranks that the host waits for.
  [[nodiscard]] Scope host_communication(const char* name) {
    return scope(SpanKind::communication, "host", name, nullptr, nullptr);
  }
  /// Times a copy between host and device memory.
  [[nodiscard]] Scope copy(const char* track, const char* name, const Context<D>& context) {
    return scope(SpanKind::copy, track, name, nullptr, &context);
  }

 private:
  using Clock = detail::TimelineClock<D>;
  using Mark = typename Clock::Mark;
  static constexpr std::size_t none = ~std::size_t{0};

  struct Open {
    TimelineSpan span;
    Mark begin;
    Mark end;
    bool is_open = true;
  };

  [[nodiscard]] Scope scope(SpanKind kind, const char* track, const char* name, const void* object,
                            const Context<D>* context) {
    if (!is_in_step_) return {nullptr, none, nullptr};
    return {this, open(kind, track, full_name(name, object), context), context};
  }

  [[nodiscard]] std::string full_name(const char* name, const void* object) const {
    const auto found = names_.find(object);
    return found == names_.end() ? name : message(name, " ", found->second);
  }

  /// @param context  null: on the host
  std::size_t open(SpanKind kind, const char* track, std::string name, const Context<D>* context) {
    Clock::begin_range(name);
    const Mark now = mark(context);
    open_spans_.push_back({{.kind = kind, .track = track, .name = std::move(name)}, now, now});
    return open_spans_.size() - 1;
  }
  void close(std::size_t span, const Context<D>* context) {
    if (span >= open_spans_.size()) return;  // the step threw, and another has begun
    open_spans_[span].end = mark(context);
    open_spans_[span].is_open = false;
    Clock::end_range();
  }
  [[nodiscard]] Mark mark(const Context<D>* context) {
    return context == nullptr ? clock_.host_mark() : clock_.mark(*context);
  }

  Clock clock_;
  std::map<const void*, std::string> names_;
  bool is_on_ = false;
  bool is_in_step_ = false;
  double start_time_ = 0;         ///< the host's clock when the timeline started
  std::vector<Open> open_spans_;  ///< spans of the current step, including those that have ended
  std::size_t step_ = none;       ///< index in `open_spans_`, as are the next two
  std::size_t phase_ = none;
  std::size_t stage_ = none;
  const char* phase_name_ = "";
  std::vector<TimelineSpan> spans_;  ///< of the earlier steps
};

}  // namespace octavo
