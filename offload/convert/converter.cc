#include "offload/convert/converter.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "kernels/base/quote.h"
#include "kernels/base/units.h"
#include "offload/convert/checkpoint.h"
#include "offload/convert/family.h"
#include "offload/convert/fingerprint.h"
#include "offload/convert/hf_config.h"
#include "offload/convert/tokenizer_files.h"
#include "offload/convert/weight_map.h"
#include "offload/io/aligned_bytes.h"
#include "offload/io/checksum.h"
#include "offload/io/parallel_tasks.h"
#include "offload/model_file/model_file.h"

namespace spillway {

namespace {

constexpr uint64_t kCompareBytes = uint64_t{8} << 20;

// One unit of work. Records are verified right before their first slab, so that their bytes are
// read from disk once and the slabs find them in the page cache.
struct Task {
  enum class Kind : uint8_t { kPackSlab, kVerifyRecord, kCompareHead };
  Kind kind = Kind::kPackSlab;
  uint64_t index = 0;  // Slab, record, or byte offset in the head
  uint64_t bytes = 0;  // Bytes to read
};

struct Scratch {
  std::vector<std::byte> source;
  AlignedBytes packed;
};

class Converter {
 public:
  Converter(const Checkpoint& checkpoint, const WeightMap& map,
            std::span<const WeightFactors> factors, ModelFileWriter& writer,
            const ConvertOptions& options)
      : checkpoint_(checkpoint),
        map_(map),
        writer_(writer),
        options_(options),
        packer_(checkpoint, map, writer.table(), factors) {
    list_tasks();
  }

  Status run() {
    const unsigned threads = reading_threads(options_.threads);
    scratch_.resize(threads);
    const auto tick = [this] {
      return !options_.progress || options_.progress(done_bytes_, total_bytes_);
    };
    SPILLWAY_RETURN_IF_ERROR(run_tasks(
        tasks_.size(), threads,
        [this](size_t index, unsigned thread) { return run_task(tasks_[index], scratch_[thread]); },
        tick));
    SPILLWAY_RETURN_IF_ERROR(checkpoint_.check_unchanged());
    for (size_t i = 0; i < writer_.table().tensors.size(); ++i) {
      if (!is_quantized(writer_.table().tensors[i].format)) continue;
      writer_.set_quantization(i, packer_.quantization(i));
    }
    SPILLWAY_RETURN_IF_ERROR(writer_.finish());
    tick();
    return {};
  }

  std::vector<TensorDamage> damage() const { return packer_.damage(); }

 private:
  void list_tasks() {
    const auto& tensors = checkpoint_.tensors();
    std::vector<bool> listed(checkpoint_.records().size());
    const auto list_record = [&](uint32_t record) {
      if (!options_.verify_crc || listed[record]) return;
      listed[record] = true;
      add({Task::Kind::kVerifyRecord, record, checkpoint_.records()[record].bytes});
    };
    for (uint32_t slab = 0; slab < writer_.table().slabs.size(); ++slab) {
      for (const uint32_t tensor : packer_.source_tensors(slab)) {
        if (tensors[tensor].stored.record) list_record(*tensors[tensor].stored.record);
      }
      add({Task::Kind::kPackSlab, slab, packer_.source_bytes(slab)});
    }
    for (uint32_t record = 0; record < listed.size(); ++record) list_record(record);
    list_head_copy();
  }

  void list_head_copy() {
    if (!map_.head_copy) return;
    const CheckpointTensor& head = checkpoint_.tensors()[map_.head_copy->tensor];
    const CheckpointTensor& embedding = checkpoint_.tensors()[map_.head_copy->of];
    // In a .bin file both names usually share one storage.
    if (head.file == embedding.file && head.stored.offset == embedding.stored.offset) return;
    for (uint64_t offset = 0; offset < head.stored.bytes; offset += kCompareBytes) {
      add({Task::Kind::kCompareHead, offset, std::min(kCompareBytes, head.stored.bytes - offset)});
    }
  }

  void add(const Task& task) {
    tasks_.push_back(task);
    total_bytes_ += task.bytes;
  }

  Status run_task(const Task& task, Scratch& scratch) {
    Status status;
    switch (task.kind) {
      case Task::Kind::kPackSlab:
        status = pack(static_cast<uint32_t>(task.index), scratch);
        break;
      case Task::Kind::kVerifyRecord:
        status = checkpoint_.verify(checkpoint_.records()[task.index]);
        break;
      case Task::Kind::kCompareHead:
        status = compare_head(task, scratch);
        break;
    }
    done_bytes_ += task.bytes;
    return status;
  }

  Status pack(uint32_t slab, Scratch& scratch) {
    const size_t bytes = writer_.table().slabs[slab].bytes;
    const auto packed = scratch.packed.reserve(bytes);
    SPILLWAY_RETURN_IF_ERROR(packer_.pack(slab, scratch.source, packed));
    return writer_.write_slab(slab, packed);
  }

  Status compare_head(const Task& task, Scratch& scratch) {
    const CheckpointTensor& head = checkpoint_.tensors()[map_.head_copy->tensor];
    const CheckpointTensor& embedding = checkpoint_.tensors()[map_.head_copy->of];
    scratch.source.resize(std::max<size_t>(scratch.source.size(), 2 * task.bytes));
    const auto a = std::span(scratch.source).first(task.bytes);
    const auto b = std::span(scratch.source).subspan(task.bytes, task.bytes);
    SPILLWAY_RETURN_IF_ERROR(checkpoint_.read(head, task.index, a));
    SPILLWAY_RETURN_IF_ERROR(checkpoint_.read(embedding, task.index, b));
    if (std::memcmp(a.data(), b.data(), a.size()) == 0) return {};
    return invalid_argument("tied weights differ: " + in_quotes(head.stored.name) + " and " +
                            in_quotes(embedding.stored.name) +
                            " hold different numbers; if the model has a head of its own, "
                            "config.json must say \"tie_word_embeddings\": false");
  }

  const Checkpoint& checkpoint_;
  const WeightMap& map_;
  ModelFileWriter& writer_;
  const ConvertOptions& options_;
  SlabPacker packer_;
  std::vector<Task> tasks_;
  std::vector<Scratch> scratch_;  // By thread.
  uint64_t total_bytes_ = 0;
  std::atomic<uint64_t> done_bytes_ = 0;
};

// Says what became of the quantised blocks of a GGUF file: nothing is lost silently, and nobody
// wonders why a 4-bit model takes 16 bits.
std::string blocks_note(const std::string& blocks, const ModelFileTable& table) {
  const Format format = table.format;
  std::string text = blocks + " blocks are ";
  if (is_quantized(format)) {
    const double rms = table.quantization().relative_rms() * 100;
    char loss[64];
    std::snprintf(loss, sizeof(loss), "%.*g", 2, rms);
    if (format_traits(format).group != 32) {
      return text + "read as numbers and packed as " + table.formats_text() +
             ", another quantisation: it adds a relative RMS error of " + loss + " %";
    }
    if (rms == 0) return text + "kept, as " + table.formats_text() + ": no number changes";
    return text + "packed as " + table.formats_text() + " with an added relative RMS error of " +
           loss + " %";
  }
  text += "read as numbers and packed as " + std::string(format_name(format));
  if (format == Format::kF16) text += ", whose 11 bits hardly add to their own error";
  if (format == Format::kBF16) text += ", whose 8 bits add to their own error; f16 keeps more";
  return text + "; without --format they keep their few bits";
}

// A short name of a calibration: files of one checkpoint that differ in it are different models.
std::string mark_of(std::span<const WeightFactors> factors) {
  uint64_t checksum = 0;
  for (const WeightFactors& weight : factors) {
    for (const std::vector<float>* part : {&weight.rows, &weight.columns}) {
      checksum = seeded_checksum(std::as_bytes(std::span(*part)), checksum);
    }
  }
  char text[32];
  std::snprintf(text, sizeof(text), "smoothed-%08x", static_cast<uint32_t>(checksum));
  return text;
}

// Announces the file that will be written, or says why there is no room for it.
Status announce_room(const std::string& checkpoint, const std::string& output,
                     const ModelFileTable& table, const ConvertOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(const PackedFileRoom room, ModelFileWriter::room(output, table));
  const std::string what = checkpoint + " as " + std::string(format_name(table.format));
  const std::string free = format_bytes(room.free_bytes);
  if (room.bytes > room.free_bytes) {
    return Status(Code::kCapacity, "no room for " + room.path + ": " + what + " takes " +
                                       format_bytes(room.bytes) + " and " + free +
                                       " are free there, " +
                                       format_bytes(room.bytes - room.free_bytes) + " short; " +
                                       options.room_advice);
  }
  if (options.announce) {
    options.announce("converting " + what + " to " + room.path + ": " + format_bytes(room.bytes) +
                     " to write, " + free + " are free there");
  }
  return {};
}

}  // namespace

Result<ConvertReport> convert_checkpoint(const std::string& directory, const std::string& output,
                                         const ConvertOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::string fingerprint, checkpoint_fingerprint(directory));
  SPILLWAY_ASSIGN_OR_RETURN(const HfConfig config, read_hf_config(directory));
  SPILLWAY_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                            Checkpoint::open(directory, {options.lenient_header}));
  const Family* family = family_of(config.shape.family);
  SPILLWAY_CHECK(family != nullptr);
  Result<WeightMap> map = map_weights(*family, config.shape, checkpoint);
  if (!map.ok()) return map.status().at(directory);

  NaturalFormats formats;
  if (options.format) {
    formats.main = *options.format;
  } else {
    formats = natural_formats(config.shape, map.value());
    if (options.bf16_for_f16 && formats.main == Format::kF16) formats.main = Format::kBF16;
  }
  const Format format = formats.main;
  ModelFileTable table = plan_model_file(
      config.shape, format, options.layout ? options.layout(format) : MatrixLayout::kPanels16,
      formats.of_weights);
  table.source = source_of(config.shape.name, fingerprint);
  std::vector<WeightFactors> factors;
  if (!options.calibration.empty()) {
    SPILLWAY_CHECK(options.format && keeps_no_blocks(*options.format));
    SPILLWAY_ASSIGN_OR_RETURN(
        const std::vector<InputMaxima> columns,
        column_maxima(config.shape, checkpoint, map.value(), reading_threads(options.threads),
                      [&] { return !options.progress || options.progress(0, 0); }));
    factors = smoothing_factors(config.shape, options.calibration, columns);
    table.source += "-" + mark_of(factors);
  }
  table.origin = options.origin;
  SPILLWAY_ASSIGN_OR_RETURN(table.files, read_tokenizer_files(directory));
  SPILLWAY_RETURN_IF_ERROR(announce_room(directory, output, table, options));
  SPILLWAY_ASSIGN_OR_RETURN(auto writer, ModelFileWriter::create(output, std::move(table)));
  Converter converter(checkpoint, map.value(), factors, *writer, options);
  SPILLWAY_RETURN_IF_ERROR(converter.run());
  std::vector<std::string> notes = checkpoint.notes();
  if (!checkpoint.block_formats().empty()) {
    notes.push_back(blocks_note(checkpoint.block_formats(), writer->table()));
  }
  return ConvertReport{config.shape,
                       format,
                       writer->table().weight_bytes(),
                       writer->table().quantization(),
                       converter.damage(),
                       std::move(notes)};
}

std::string damage_text(const TensorDamage& damage, Format format) {
  std::string text = in_quotes(damage.tensor) + ":";
  if (damage.stored.nan != 0) text += " " + std::to_string(damage.stored.nan) + " NaN";
  if (damage.stored.inf != 0) text += " " + std::to_string(damage.stored.inf) + " infinite";
  if (damage.overflow != 0) {
    text += " " + std::to_string(damage.overflow) + " too large for " +
            std::string(format_name(format));
  }
  return text;
}

}  // namespace spillway
