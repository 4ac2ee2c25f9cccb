// The table of `spillway profile`.
#include <cstdio>

#include "kernels/base/units.h"
#include "kernels/measure/peaks.h"
#include "server/cli/common/console.h"
#include "server/cli/profile/profile.h"

namespace spillway {

namespace {

std::string heading(const char* name) {
  return text_line("%-38s %11s %11s %11s %8s", name, "median", "low", "high", "samples");
}

// `share`: text for the end of the line.
// Times per second, as the microseconds that each takes.
std::string duration_line(const std::string& name, const Figure& figure) {
  const double micro = 1e6;
  if (!figure.source.empty()) {
    return text_line("  %-36s %11.2f   %s", name.c_str(), micro / figure.value,
                     figure.source.c_str());
  }
  return text_line("  %-36s %11.2f %11.2f %11.2f %8d", name.c_str(), micro / figure.value,
                   micro / figure.high, micro / figure.low, figure.samples);
}

std::string rate_line(const std::string& name, const Figure& figure,
                      const std::string& share = "") {
  const double giga = 1e-9;
  if (!figure.source.empty()) {
    return text_line("  %-36s %11.2f   %s", name.c_str(), figure.value * giga,
                     figure.source.c_str());
  }
  return text_line("  %-36s %11.2f %11.2f %11.2f %8d%s", name.c_str(), figure.value * giga,
                   figure.low * giga, figure.high * giga, figure.samples, share.c_str());
}

double best(const Figure& figure) {
  return figure.source.empty() ? figure.high : figure.value;
}

// "   0.93 of bf16": the best over the best, since noise only reduces rates.
std::string share_of(const Figure& figure, const Figure& ceiling, const std::string& name) {
  if (best(ceiling) <= 0) return "";
  char text[80];
  std::snprintf(text, sizeof(text), "   %.2f of %s", best(figure) / best(ceiling), name.c_str());
  return text;
}

// The share of an arithmetic's peak; empty where there is none.
std::string share_of_peak(const HardwareProfile::Compute& compute, const Figure& figure,
                          Arithmetic arithmetic) {
  for (const PeakFigure& peak : compute.peaks) {
    if (peak.arithmetic == arithmetic_name(arithmetic)) {
      return share_of(figure, peak.rate, peak.arithmetic);
    }
  }
  return "";
}

std::string peak_lines(const std::vector<PeakFigure>& peaks) {
  if (peaks.empty()) return "";
  std::string text = heading("peaks of instructions, GFLOP/s");
  for (const PeakFigure& peak : peaks) {
    text += rate_line(peak.arithmetic, peak.rate, "   " + peak.instruction);
  }
  return text;
}

std::string size_line(const std::string& name, const Figure& figure) {
  return text_line("  %-36s %11s%s%s", name.c_str(),
                   format_bytes(static_cast<uint64_t>(figure.value)).c_str(),
                   figure.source.empty() ? "" : "   ", figure.source.c_str());
}

std::string matrix_lines(const HardwareProfile::Compute& compute) {
  std::string text = heading("matrix products, GFLOP/s");
  for (const MatrixFigure& figure : compute.matrix) {
    char name[96];
    std::snprintf(name, sizeof(name), "%-4s %4lld x [%lld, %lld]",
                  std::string(format_name(figure.format)).c_str(),
                  static_cast<long long>(figure.rows), static_cast<long long>(figure.outputs),
                  static_cast<long long>(figure.inputs));
    text += rate_line(name, figure.rate,
                      share_of_peak(compute, figure.rate, product_arithmetic(figure.format)));
  }
  return text;
}

std::string disk_lines(const char* what, const std::vector<DiskFigure>& figures) {
  std::string text = heading(what);
  for (const DiskFigure& figure : figures) {
    text += rate_line(format_bytes(figure.block_bytes) + " x " + std::to_string(figure.depth),
                      figure.rate);
  }
  return text;
}

}  // namespace

std::string profile_table(const HardwareProfile& profile) {
  const HardwareProfile::Compute& compute = profile.compute;
  std::string text = profile.name + '\n';
  text += text_line("%s", compute.kind == "cuda" ? "device" : "CPU");
  text += size_line("memory", compute.memory_bytes);
  text += size_line("free", compute.memory_free_bytes);
  text += peak_lines(compute.peaks);
  text += matrix_lines(compute);
  text += heading("attention");
  // Figures for a 16-bit cache.
  text += rate_line("prompts, GFLOP/s", compute.prompt_attention,
                    share_of_peak(compute, compute.prompt_attention, Arithmetic::kBF16));
  const auto of_memory = [&](const Figure& figure) {
    return share_of(figure, compute.memory_read, "memory");
  };
  const auto decode_lines = [&](const char* kv, const Figure& own, const Figure& shared) {
    const std::string name = "decode steps" + std::string(kv);
    if (own.value > 0) text += rate_line(name + ", GB/s", own, of_memory(own));
    if (shared.value <= 0) return;
    const std::string heads = std::to_string(HardwareProfile::kQueryHeadsPerKvHead);
    text += rate_line("... of " + heads + " query heads a KV head", shared, of_memory(shared));
  };
  decode_lines("", compute.decode_attention, compute.decode_attention_shared);
  decode_lines(", 4-bit KV", compute.decode_attention_q4, compute.decode_attention_q4_shared);
  decode_lines(", 8-bit KV", compute.decode_attention_q8, compute.decode_attention_q8_shared);
  text += heading("memory, GB/s");
  text += rate_line("read", compute.memory_read);
  if (profile.link) {
    text += heading("link, GB/s");
    text += rate_line("host to device", profile.link->to_device);
    text += rate_line("device to host", profile.link->to_host);
    text += rate_line("both at once", profile.link->both);
    for (const CopyFigure& copy : profile.link->small) {
      const std::string each = ", " + format_bytes(copy.bytes) + " each";
      text += rate_line("host to device" + each, copy.to_device);
      text += rate_line("device to host" + each, copy.to_host);
    }
    if (compute.small_ops.value > 0 || profile.link->round_trips.value > 0) {
      text += heading("what takes as long however little it is, us");
    }
    if (compute.small_ops.value > 0) text += duration_line("an op", compute.small_ops);
    if (profile.link->round_trips.value > 0) {
      text += duration_line("to the host and back", profile.link->round_trips);
    }
    text += heading("host, GB/s");
    text += rate_line("memory read", profile.host.memory_read);
    text += rate_line("attention of decode steps", profile.host.decode_attention);
    text += size_line("memory", profile.host.memory_bytes);
    text += size_line("free", profile.host.memory_free_bytes);
  }
  text += disk_lines("disk read, GB/s", profile.disk.read);
  text += disk_lines("disk write, GB/s", profile.disk.write);
  if (profile.disk.processor.value > 0) {
    text += heading("disk beside products, GB/s");
    text += rate_line("that would take all of the CPU", profile.disk.processor);
  }
  text += size_line("free", profile.disk.free_bytes);
  return text;
}

}  // namespace spillway
