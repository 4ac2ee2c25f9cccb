// Seeds of tests that draw anew in every run.
#pragma once

namespace spillway::test {

// Another one in every run, or that of SPILLWAY_TEST_SEED in the environment, with which a failure
// is had again. Says so where the test fails: INFO("SPILLWAY_TEST_SEED=" << seed).
unsigned random_seed();

}  // namespace spillway::test
