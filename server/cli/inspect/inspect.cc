#include "server/cli/inspect/inspect.h"

#include <cstdio>
#include <memory>

#include "server/cli/common/console.h"
#include "server/cli/inspect/inspect_report.h"

namespace spillway {

Status run_inspect(const InspectFlags& flags, const std::function<bool()>& keep_going) {
  InspectOptions options;
  options.verify = flags.verify;
  options.lenient_header = flags.lenient_header;
  Result<InspectReport> report = InspectReport();
  {
    ByteProgress progress("Reading");
    options.progress = [&](uint64_t done, uint64_t total) {
      progress.show(done, total);
      return !keep_going || keep_going();
    };
    report = inspect_model(flags.model, options);
  }
  if (!report.ok()) return report.status();
  const std::string text = flags.json ? json_of(report.value()) : text_of(report.value());
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

Command inspect_command() {
  auto flags = std::make_shared<InspectFlags>();
  Command command;
  command.name = "inspect";
  command.summary = "show what a model is and whether its files are sound";
  command.description =
      "Prints shape, parameters, sizes, tokenizer files, and how many numbers are NaN or infinite. "
      "Of a directory or a .gguf file all weights are read for that; a packed file knows its "
      "counts and is read "
      "only with --verify, which compares every checksum. Exit status 2 when the model is unsound.";
  command.arguments = {{"MODEL",
                        "a model directory, a .gguf or packed .spill file, or the name of a shape",
                        &flags->model}};
  Settings& settings = command.settings;
  settings.group("Inspect");
  settings.add_switch("verify", &flags->verify, "read everything and compare the checksums");
  settings.add_switch("json", &flags->json, "print one JSON object");
  settings.add_switch("lenient-header", &flags->lenient_header,
                      "accept white space in front of a safetensors header");
  command.run = [flags] { return report_input("inspect", run_inspect(*flags, {})); };
  return command;
}

}  // namespace spillway
