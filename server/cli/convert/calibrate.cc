#include "server/cli/convert/calibrate.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "server/cli/common/text_file.h"
#include "server/runtime.h"

namespace spillway {

namespace {

constexpr uint64_t kTextBytesMax = uint64_t{64} << 20;
constexpr int64_t kWindowsAtOnce = 16;

// Notes what goes into the products of a running model.
class Notes {
 public:
  void begin(const ModelShape& shape) { maxima_ = no_maxima(shape); }

  void note(int64_t layer, WeightRole weight, const ConstMatrixView& in) {
    std::vector<float>& maxima = maxima_[static_cast<size_t>(layer)].of(weight);
    row_.resize(static_cast<size_t>(in.columns));
    for (int64_t i = 0; i < in.rows; ++i) {
      convert_elements(in.dtype, in.row(i), DType::kF32, reinterpret_cast<std::byte*>(row_.data()),
                       row_.size());
      note_inputs(row_, maxima);
    }
  }

  std::vector<InputMaxima> take() { return std::move(maxima_); }

 private:
  std::vector<InputMaxima> maxima_;
  std::vector<float> row_;
};

// Wants no logits.
class NoLogits final : public LogitsSink {
 public:
  void on_logits(size_t, int64_t, std::span<float>) override {}
  void on_failure(size_t, const Status& status) override { failure_ = status; }
  Status take_failure() { return std::exchange(failure_, Status()); }

 private:
  Status failure_;
};

// Runs windows of the text through the model.
class Reader {
 public:
  explicit Reader(Engine& engine) : engine_(engine) {}

  Status read(std::span<const std::span<const int32_t>> windows) {
    std::vector<std::unique_ptr<KvSequence>> caches;
    std::vector<SweepItem> items;
    Status status;
    for (const std::span<const int32_t> window : windows) {
      auto cache = engine_.reserve(std::ssize(window));
      status = cache.status();
      if (!status.ok()) break;
      caches.push_back(std::move(cache).value());
      // Logits of every token: else the last layer would leave out most of its rows.
      items.push_back({.tokens = window, .kv = caches.back().get(), .all_logits = true});
    }
    if (status.ok()) status = engine_.run(items, sink_);
    for (auto& cache : caches) engine_.release(std::move(cache));
    return status.ok() ? sink_.take_failure() : status;
  }

 private:
  Engine& engine_;
  NoLogits sink_;
};

Result<std::vector<int32_t>> tokens_of(const Runtime& runtime, const std::string& text) {
  if (runtime.tokenizer() == nullptr) {
    const std::string& why = runtime.tokenizer_error();
    return invalid_argument("--calibrate needs the model's tokenizer" +
                            (why.empty() ? std::string(", and the model has no tokenizer files")
                                         : ", which cannot be used: " + why));
  }
  return runtime.tokenizer()->encode(text, {.add_bos = true});
}

}  // namespace

Result<Calibration> calibrate(const std::string& model, const std::string& text_file,
                              const std::function<void(const std::string&)>& say,
                              const std::function<bool()>& keep_going) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text,
                            read_text_file("--calibrate", text_file, kTextBytesMax));
  Notes notes;
  RuntimeOptions options;
  options.start_scheduler = false;
  options.say = say;
  options.wishes.prefill_tokens_max = kWindowsAtOnce * kCalibrationTokens;
  options.observe = [&](int64_t layer, WeightRole weight, const ConstMatrixView& in) {
    notes.note(layer, weight, in);
  };
  EngineFlags flags;
  flags.device = "cpu";
  SPILLWAY_ASSIGN_OR_RETURN(const auto runtime, Runtime::open(model, flags, options));
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokens_of(*runtime, text));
  notes.begin(runtime->shape());
  const int64_t length = std::min(kCalibrationTokens, runtime->shape().positions);
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(kCalibrationWindows * length)));
  std::vector<std::span<const int32_t>> windows;
  for (std::span<const int32_t> rest = tokens; !rest.empty();) {
    windows.push_back(rest.first(std::min(rest.size(), static_cast<size_t>(length))));
    rest = rest.subspan(windows.back().size());
  }
  Engine& engine = runtime->engine();
  const int64_t fitting = std::min(engine.kv().sequences_at_once(length, {}),
                                   engine.options().sweep_tokens_max / length);
  const auto at_once = static_cast<size_t>(std::clamp<int64_t>(fitting, 1, kWindowsAtOnce));
  Reader reader(engine);
  for (size_t first = 0; first < windows.size(); first += at_once) {
    if (keep_going && !keep_going()) return Status(Code::kCancelled, "calibration was cancelled");
    const auto some = std::span(windows).subspan(first, std::min(at_once, windows.size() - first));
    SPILLWAY_RETURN_IF_ERROR(reader.read(some));
    say("Calibrating: read " + std::to_string(first + some.size()) + " of " +
        std::to_string(windows.size()) + " windows of " + std::to_string(length) + " tokens");
  }
  return Calibration{notes.take(), std::ssize(tokens)};
}

}  // namespace spillway
