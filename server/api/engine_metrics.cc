#include "server/api/engine_metrics.h"

#include <array>

namespace spillway {

namespace {

template <class T>
double number(T value) {
  return static_cast<double>(value);
}

void add_classes(const char* name, const char* help, const ClassCounts& counts,
                 MetricFamilies* to) {
  constexpr const char* kNames[] = {"priority", "interactive", "background", "batch"};
  static_assert(std::size(kNames) == kQueueClasses);
  to->gauge(name, help);
  for (size_t i = 0; i < kQueueClasses; ++i) to->sample(number(counts[i]), {{"class", kNames[i]}});
}

// All of them add up to spillway_busy_seconds_total. The engine's thread waits for the disk alone:
// copies from and to a device with memory of its own are queued.
void add_causes(const SweepSeconds& seconds, MetricFamilies* to) {
  to->counter("spillway_sweep_seconds_total",
              "Seconds inside sweeps by cause: computing, waiting for weights, KV cache, "
              "activations or room to write, over that link, and other work around the engine.");
  struct Cause {
    const char* name;
    const char* link;
    double seconds;
  };
  const Cause causes[] = {{"compute", "none", seconds.compute},
                          {"weights", "disk_to_host", seconds.weights},
                          {"kv", "disk_to_host", seconds.kv},
                          {"activations", "disk_to_host", seconds.activations},
                          {"write_room", "host_to_disk", seconds.staging},
                          {"other", "none", seconds.other}};
  for (const Cause& cause : causes) {
    to->sample(cause.seconds, {{"cause", cause.name}, {"link", cause.link}});
  }
}

void add_links(const LinkTable& links, MetricFamilies* to) {
  constexpr std::array<const char*, kLinks> kNames = {"disk_to_host", "host_to_disk",
                                                      "host_to_device", "device_to_host"};
  const auto for_links = [&](const auto& add) {
    for (size_t i = 0; i < kLinks; ++i) {
      if (links[i]) add(kNames[i], *links[i]);
    }
  };
  bool any = false, timed = false;
  for_links([&](const char*, const LinkTotals& link) {
    any = true;
    timed |= link.busy_seconds.has_value();
  });
  if (any) {
    to->counter("spillway_link_bytes_total",
                "Bytes of weights, KV cache and activations that went over each link.");
    for_links([&](const char* name, const LinkTotals& link) {
      to->sample(number(link.bytes), {{"link", name}});
    });
  }
  if (timed) {
    to->counter("spillway_link_busy_seconds_total",
                "Seconds in which at least one transfer was under way on the link; of links whose "
                "transfers are timed.");
    for_links([&](const char* name, const LinkTotals& link) {
      if (link.busy_seconds) to->sample(*link.busy_seconds, {{"link", name}});
    });
  }
}

// What the plan promised, and what came of it.
void add_pace(const SchedulerStats& stats, const PlanFigures& plan, MetricFamilies* to) {
  if (plan.predicted_tokens_per_second) {
    to->gauge("spillway_policy_predicted_tokens_per_second",
              "Generated tokens a second that the cost model expects of full blocks.",
              *plan.predicted_tokens_per_second);
  }
  if (stats.recent_seconds > 0) {
    to->gauge("spillway_measured_tokens_per_second",
              "Generated tokens a second of work, of about the last minute of work.",
              stats.recent_tokens / stats.recent_seconds);
  }
  if (!stats.bound_seconds) return;
  to->counter("spillway_bound_seconds_total",
              "The least seconds that the sweeps would have needed at the rates of this machine's "
              "profile, each as long as its slowest resource.",
              *stats.bound_seconds);
  if (stats.recent_seconds > 0) {
    to->gauge("spillway_efficiency_ratio",
              "The bound over the seconds of work, of about the last minute of work; 1: as fast as "
              "the profile's rates allow.",
              stats.recent_bound_seconds / stats.recent_seconds);
  }
}

}  // namespace

void add_engine_metrics(const SchedulerStats& stats, bool healthy, const PlanFigures& plan,
                        MetricFamilies* to) {
  add_classes("spillway_num_requests_running", "Sequences in the block, by class.",
              stats.running_by_class, to);
  add_classes("spillway_num_requests_waiting",
              "Sequences accepted and not yet admitted to the block, by class.",
              stats.waiting_by_class, to);
  to->counter("spillway_sweeps_total", "Passes of the block over all layers.",
              number(stats.sweeps));
  to->counter("spillway_busy_seconds_total",
              "Seconds inside sweeps; generated tokens over these are the engine's pace.",
              stats.busy_seconds);
  to->counter("spillway_sweeps_failed_total", "Of these, the ones that ended with an error.",
              number(stats.sweeps_failed));
  add_causes(stats.seconds, to);
  add_links(stats.links, to);
  to->gauge("spillway_prefill_target_tokens",
            "Prompt tokens that a sweep aims at while requests wait; 0: as many as fit.",
            number(stats.prefill_target));
  to->gauge("spillway_engine_healthy",
            "0 while /health answers 503 for the engine: it is lost, no sweep ends, or the last "
            "ones failed. Else 1.",
            healthy ? 1 : 0);
  add_pace(stats, plan, to);
  if (plan.tier_bytes.empty()) return;
  to->gauge("spillway_tier_bytes",
            "Bytes that the plan gives to each kind on each tier; on a machine without an "
            "accelerator the device tier is host memory, too.");
  for (const TierAmount& amount : plan.tier_bytes) {
    to->sample(number(amount.bytes), {{"tier", amount.tier}, {"kind", amount.kind}});
  }
}

}  // namespace spillway
