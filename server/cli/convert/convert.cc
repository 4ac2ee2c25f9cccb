#include "server/cli/convert/convert.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "kernels/base/units.h"
#include "kernels/base/weights.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "offload/convert/converter.h"
#include "offload/convert/gguf_model.h"
#include "offload/convert/hf_config.h"
#include "offload/model_source.h"
#include "server/cli/common/console.h"
#include "server/cli/convert/calibrate.h"

namespace spillway {

namespace {

void print_report(const ConvertFlags& flags, const ConvertReport& report, double seconds) {
  for (const std::string& note : report.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  for (const TensorDamage& damage : report.damage) {
    std::fprintf(stderr, "warning: tensor %s\n", damage_text(damage, report.format).c_str());
  }
  const double rate = static_cast<double>(report.weight_bytes) / (seconds > 0 ? seconds : 1);
  std::printf("%s: %s, %lld parameters, %s of %s in %s (%s/s)\n", flags.output.c_str(),
              report.shape.name.c_str(), static_cast<long long>(parameter_count(report.shape)),
              format_bytes(report.weight_bytes).c_str(),
              std::string(format_name(report.format)).c_str(), format_seconds(seconds).c_str(),
              format_bytes(static_cast<uint64_t>(rate)).c_str());
  if (!is_quantized(report.format)) return;
  std::printf("quantization: relative RMS error %.2f %%, largest error %.4g\n",
              report.quantization.relative_rms() * 100, report.quantization.error_max);
}

// Requires a directory or a .gguf file; the error describes what the path is instead.
Status check_is_directory(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status) || std::filesystem::is_directory(status)) return {};
  if (is_gguf_path(path)) return {};
  const Result<ModelFile> packed = open_packed(path);
  if (packed.status().code() == Code::kInvalidArgument) return packed.status();
  return invalid_argument(path +
                          (packed.ok() ? " is a packed model already" : " is not a directory") +
                          "; convert wants the Hugging Face model directory or .gguf file" +
                          (packed.ok() ? " that it was made from" : ""));
}

}  // namespace

Status run_convert(const ConvertFlags& flags, const std::function<bool()>& keep_going) {
  SPILLWAY_RETURN_IF_ERROR(check_is_directory(flags.directory));
  ConvertOptions options;
  if (flags.format != "auto") {
    options.format = format_of_name(flags.format);
    if (!options.format) return invalid_argument("--format " + flags.format + " is unknown");
  }
  if (!flags.calibrate.empty() && options.format != Format::kQ8 && options.format != Format::kQ4) {
    return invalid_argument(
        "--calibrate smooths weights before they are quantised: it goes with --format q8 or q4");
  }
  options.verify_crc = !flags.no_crc;
  options.lenient_header = flags.lenient_header;
  options.threads = static_cast<unsigned>(flags.threads);
  options.announce = say;
  options.room_advice = "free some, or write OUTPUT to another disk";
  if (flags.device == "cuda") {
    SPILLWAY_ASSIGN_OR_RETURN(const HfConfig config, read_hf_config(flags.directory));
    SPILLWAY_RETURN_IF_ERROR(check_shape(DeviceKind::kCuda, config.shape));
  }
  // The layout is for this machine's kernels, or for a GPU's; others repack while they load.
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, open_cpu_device(0));
  options.layout = [&](Format format) {
    return flags.device == "cuda" ? kCudaMatrixLayout : device->matrix_layout(format);
  };
  const auto start = std::chrono::steady_clock::now();
  if (!flags.calibrate.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(Calibration calibration,
                              calibrate(flags.directory, flags.calibrate, say, keep_going));
    say("Smoothing weights by what " + std::to_string(calibration.tokens) + " tokens of " +
        flags.calibrate + " make of their inputs");
    options.calibration = std::move(calibration.maxima);
  }
  Result<ConvertReport> report = invalid_argument("not run");
  {
    ByteProgress progress("Converting");
    options.progress = [&](uint64_t done, uint64_t total) {
      progress.show(done, total);
      return !keep_going || keep_going();
    };
    report = convert_checkpoint(flags.directory, flags.output, options);
  }
  if (!report.ok()) return report.status();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  print_report(flags, report.value(), seconds.count());
  return {};
}

Command convert_command() {
  auto flags = std::make_shared<ConvertFlags>();
  Command command;
  command.name = "convert";
  command.summary = "pack a Hugging Face model directory or a GGUF file into one file";
  command.description =
      "Reads config.json, *.safetensors or pytorch_model*.bin and the tokenizer files of a model "
      "directory, or all of these from a .gguf file, checks all of them, and writes one .spill "
      "file from which weights are read as "
      "the kernels want them. An existing OUTPUT is replaced only when the new one is complete. "
      "serve, batch and the other commands do the same into a cache folder when they are given a "
      "directory.";
  command.arguments = {
      {"MODEL_DIR", "a Hugging Face model directory, or a .gguf file", &flags->directory},
      {"OUTPUT.spill", "the packed file to write", &flags->output}};
  Settings& settings = command.settings;
  settings.group("Convert");
  std::vector<std::string> formats = {"auto"};
  for (const Format format : kFormats) formats.emplace_back(format_name(format));
  settings.add_choice("format", &flags->format, std::move(formats),
                      "number format of matrices and tables; auto: the checkpoint's own, f16 for "
                      "a quantised .gguf file");
  settings.add_text("calibrate", &flags->calibrate, "FILE",
                    "let the model read this text first, and smooth its weights by what goes into "
                    "its products (SmoothQuant), with --format q8 or q4: the same function, that "
                    "loses less");
  settings.add_choice("device", &flags->device, {"cpu", "cuda"},
                      "what will compute with the file: the other kind must repack it while "
                      "loading, and cannot stream it from disk");
  settings.add_switch("no-crc", &flags->no_crc,
                      "do not verify the checksums in .bin files (saved with them switched off)");
  settings.add_switch("lenient-header", &flags->lenient_header,
                      "accept white space in front of a safetensors header");
  settings.add_integer("threads", &flags->threads, 0, 256, "0: two more than cores");
  command.run = [flags] { return report_input("convert", run_convert(*flags, {})); };
  return command;
}

}  // namespace spillway
