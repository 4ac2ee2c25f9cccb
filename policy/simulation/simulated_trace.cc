#include "policy/simulation/simulated_trace.h"

namespace spillway {

namespace {

void write_spans(const std::vector<Simulation::Span>& spans, Trace::Track track, Trace& trace) {
  for (const Simulation::Span& span : spans) {
    if (span.end <= span.start) continue;
    trace.span(track, span.what, span.start, span.end, span.layer < 0 ? nullptr : "layer",
               span.layer);
  }
}

}  // namespace

void write_timeline(const SimulatedRun& run, Trace& trace) {
  const Simulation& timeline = run.timeline;
  for (size_t r = 0; r < timeline.resources(); ++r) {
    const Simulation::Resource resource{static_cast<uint32_t>(r)};
    const std::string& name = timeline.name(resource);
    write_spans(timeline.spans(resource), trace.track(name), trace);
    for (const Simulation::Resource processor : run.processors) {
      if (processor != resource) continue;
      write_spans(timeline.waits(resource), trace.track(name + " waits for"), trace);
    }
  }
}

}  // namespace spillway
