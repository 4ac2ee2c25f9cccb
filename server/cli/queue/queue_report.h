// What `spillway queue` prints about jobs and workers. Pure, any thread.
#pragma once

#include <string>
#include <vector>

#include "server/queue/queue_jobs.h"

namespace spillway {

std::string text_of(const JobStatus& job);                // Lines of one job
std::string text_of(const std::vector<JobStatus>& jobs);  // A table
std::string text_of(const std::vector<WorkerStatus>& workers);

std::string json_of(const JobStatus& job);
std::string json_of(const std::vector<JobStatus>& jobs);  // A list
std::string json_of(const std::vector<WorkerStatus>& workers);

}  // namespace spillway
