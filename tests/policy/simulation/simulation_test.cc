#include "policy/simulation/simulation.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

namespace spillway::simulation_test {
namespace {

using Task = Simulation::Task;

TEST_CASE("tasks wait for their resource and for those before them") {
  Simulation sim;
  const auto link = sim.add_resource("link"), processor = sim.add_resource("processor");
  // Two pieces come over the link and are worked on: 2, then 2 more; 3 of work each.
  const Task first = sim.add("weights", {{link, 2}}, {});
  const Task second = sim.add("cache", {{link, 2}}, {});
  const Task work = sim.add("layer", {{processor, 3}}, {first}, 0);
  const Task more = sim.add("layer", {{processor, 3}}, {second, work, Simulation::kNone}, 1);
  sim.run();
  CHECK(sim.end(first) == 2);
  CHECK(sim.end(second) == 4);
  CHECK(sim.end(work) == 5);
  CHECK(sim.end(more) == 8);
  CHECK(sim.end() == 8);
  CHECK(sim.busy(link) == 4);
  CHECK(sim.busy(processor) == 6);
  const auto waits = sim.waits(processor);
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].what == std::string("weights"));
  CHECK(waits[0].start == 0);
  CHECK(waits[0].end == 2);
  const auto spans = sim.spans(processor);
  REQUIRE(spans.size() == 2);
  CHECK(spans[1].layer == 1);
  CHECK(spans[1].start == 5);
}

TEST_CASE("a resource serves in the order of becoming ready, then of being added") {
  Simulation sim;
  const auto a = sim.add_resource("a"), b = sim.add_resource("b");
  const Task late = sim.add("late", {{a, 5}}, {});
  const Task early = sim.add("early", {{a, 1}}, {});
  // Ready at 5, though added before the one that is ready at 0.
  const Task behind = sim.add("behind", {{b, 1}}, {late});
  const Task ahead = sim.add("ahead", {{b, 7}}, {});
  const Task tie = sim.add("tie", {{b, 1}}, {late});
  sim.run();
  CHECK(sim.end(early) == 6);
  CHECK(sim.end(ahead) == 7);
  CHECK(sim.end(behind) == 8);
  CHECK(sim.end(tie) == 9);
}

TEST_CASE("a task of several resources ends with the last, one of none at once") {
  Simulation sim;
  const auto link = sim.add_resource("link"), memory = sim.add_resource("memory");
  const Task both = sim.add("both", {{link, 2}, {memory, 3}}, {});
  const Task next = sim.add("next", {{link, 4}}, {});  // The link is free at 2.
  const Task join = sim.add("join", {}, {both, next});
  const Task last = sim.add("last", {{memory, 1}}, {join});
  sim.run();
  CHECK(sim.end(both) == 3);
  CHECK(sim.end(next) == 6);
  CHECK(sim.end(join) == 6);
  CHECK(sim.end(last) == 7);
  // Behind the name of an end, what really was last.
  REQUIRE(sim.waits(memory).size() == 1);
  CHECK(sim.waits(memory)[0].what == std::string("next"));
}

TEST_CASE("ends of nothing come at once and free what waits for them once") {
  Simulation sim;
  const auto link = sim.add_resource("link");
  const Task nothing = sim.add("nothing", {}, {});
  const Task more = sim.add("more", {}, {nothing, nothing});
  const Task work = sim.add("work", {{link, 1}}, {more});
  const Task after = sim.add("after", {{link, 0}}, {work, more});
  sim.run();
  CHECK(sim.end(more) == 0);
  CHECK(sim.end(after) == 1);
  CHECK(sim.busy(link) == 1);
  CHECK(sim.spans(link).size() == 2);
}

TEST_CASE("random tasks: never two at a time, never idle without a reason, always the same") {
  const auto seed = GENERATE(range(1, 40));
  INFO("seed " << seed);
  const auto build = [&](Simulation* sim) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
    std::vector<Simulation::Resource> resources;
    for (int i = 0; i < 3; ++i) resources.push_back(sim->add_resource(std::to_string(i)));
    std::vector<Task> tasks;
    for (int i = 0; i < 200; ++i) {
      std::vector<Task> after;
      for (size_t n = below(4); n > 0 && !tasks.empty(); --n) {
        after.push_back(tasks[below(tasks.size())]);
      }
      const auto seconds = static_cast<double>(below(100)) / 8;
      tasks.push_back(sim->add("task", {{resources[below(3)], seconds}}, after));
    }
    return resources;
  };
  Simulation sim, again;
  const auto resources = build(&sim);
  build(&again);
  sim.run();
  again.run();
  CHECK(sim.end() == again.end());
  for (const auto resource : resources) {
    double free = 0, waited = 0;
    for (const auto& span : sim.spans(resource)) {
      CHECK(span.start >= free);
      free = span.end;
    }
    for (const auto& wait : sim.waits(resource)) waited += wait.end - wait.start;
    // Every gap is a wait, and nothing else is.
    CHECK(free == Approx(waited + sim.busy(resource)));
    CHECK(sim.end() >= sim.busy(resource));
  }
}

}  // namespace
}  // namespace spillway::simulation_test
