#include "server/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/dup_filter_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <chrono>
#include <memory>

namespace spillway {

namespace {

constexpr auto kRepeatsWithin = std::chrono::seconds(5);

// Created with the first line, so that tests and main() need not set anything up. Immutable.
spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> the_logger = [] {
    auto filter = std::make_shared<spdlog::sinks::dup_filter_sink_mt>(kRepeatsWithin);
    filter->add_sink(std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    auto made = std::make_shared<spdlog::logger>("spillway", std::move(filter));
    made->set_pattern("[%Y-%m-%d %H:%M:%S.%e] [%^%l%$] %v");
    made->flush_on(spdlog::level::trace);
    made->set_error_handler([](const std::string&) {});  // A failing log has nowhere to report to.
    return made;
  }();
  return *the_logger;
}

spdlog::string_view_t view(std::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

void log_info(std::string_view text) {
  logger().info(view(text));
}

void log_warning(std::string_view text) {
  logger().warn(view(text));
}

void log_error(std::string_view text) {
  logger().error(view(text));
}

}  // namespace spillway
