#include "policy/rank_hardware.h"

namespace spillway {

namespace {

class Divider {
 public:
  explicit Divider(int64_t ranks) : share_(1.0 / static_cast<double>(ranks)) {}

  void operator()(Figure& figure) const {
    figure.value *= share_;
    figure.low *= share_;
    figure.high *= share_;
  }

 private:
  const double share_;
};

}  // namespace

HardwareProfile rank_hardware(const HardwareProfile& machine, int64_t ranks) {
  HardwareProfile own = machine;
  const Divider divide(ranks);
  HardwareProfile::Compute& compute = own.compute;
  if (compute.kind == "cpu") {
    for (Figure* figure :
         {&compute.memory_read, &compute.prompt_attention, &compute.decode_attention,
          &compute.decode_attention_q4, &compute.decode_attention_q8,
          &compute.decode_attention_shared, &compute.decode_attention_q4_shared,
          &compute.decode_attention_q8_shared}) {
      divide(*figure);
    }
    for (MatrixFigure& matrix : compute.matrix) divide(matrix.rate);
    for (PeakFigure& peak : compute.peaks) divide(peak.rate);
  }
  divide(own.host.memory_read);
  divide(own.host.decode_attention);
  divide(own.disk.processor);
  for (DiskFigure& disk : own.disk.read) divide(disk.rate);
  for (DiskFigure& disk : own.disk.write) divide(disk.rate);
  return own;
}

}  // namespace spillway
