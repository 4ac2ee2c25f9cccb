// An inspect report as text and as JSON.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/base/units.h"
#include "offload/convert/converter.h"
#include "offload/model_file/model_shape_json.h"
#include "server/cli/common/report_json.h"
#include "server/cli/inspect/inspect_report.h"

namespace spillway {

using nlohmann::json;

namespace {

// 1315758080 -> "1,315,758,080".
std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), ",");
  }
  return text;
}

std::string line(const char* label, const std::string& value) {
  std::string text(label);
  text.resize(14, ' ');
  return text + value + "\n";
}

std::string architecture(const ModelShape& s) {
  std::string text = std::to_string(s.layers) + " layers, hidden " + std::to_string(s.hidden);
  if (s.embedding != s.hidden) text += " (embedding " + std::to_string(s.embedding) + ")";
  text += ", " + std::to_string(s.heads) + " heads";
  if (s.kv_heads != s.heads) text += " (" + std::to_string(s.kv_heads) + " KV)";
  return text + " of " + std::to_string(s.head_size) + ", MLP " + std::to_string(s.mlp) + " " +
         std::string(activation_name(s.activation));
}

std::string details(const ModelShape& s) {
  std::string text = s.norm_place == NormPlace::kPre ? "pre-norm" : "post-norm";
  if (!s.norm_affine) text += ", norms without weights";
  if (!s.final_norm) text += ", no final norm";
  text += s.mlp_bias ? ", biases" : s.qkv_bias ? ", biases of q, k and v" : ", no biases";
  if (s.parallel) text += ", attention and MLP side by side";
  if (s.head_norm) text += ", normed heads";
  if (s.sliding_window > 0) {
    text += ", a sliding window of " + std::to_string(s.sliding_window) + " in " +
            (s.sliding_layers.empty() ? "all" : std::to_string(s.layers_with_window())) + " layers";
  }
  return text + (s.tied_head ? ", tied head" : ", head of its own");
}

std::string sizes(const InspectReport& r) {
  return format_bytes(r.total_bytes) + " as " + r.formats + ": embeddings " +
         format_bytes(r.embedding_bytes) + ", " + std::to_string(r.shape.layers) + " layers of " +
         format_bytes(r.layer_bytes) + ", norm and head " + format_bytes(r.head_bytes);
}

std::string tokens(const ModelShape& s) {
  std::string text = std::to_string(s.vocabulary) + " in the vocabulary, end";
  for (const int32_t token : s.eos_tokens) text += " " + std::to_string(token);
  return text + (s.eos_tokens.empty() ? " none" : "") + ", " + std::to_string(s.positions) +
         " positions";
}

std::string tokenizer(const InspectReport& r) {
  std::string text;
  for (const auto& [name, bytes] : r.tokenizer_files) {
    text += (text.empty() ? "" : ", ") + name + " (" + format_bytes(bytes) + ")";
  }
  return text.empty() ? "none: prompts must be token ids" : text;
}

std::string health(const InspectReport& r) {
  if (r.kind == "shape") return "";
  std::string text;
  if (r.damage.empty()) {
    text = line("numbers", "all finite");
  } else {
    text = line("numbers", "NaN or infinite in " + std::to_string(r.damage.size()) + " tensors:");
    for (const TensorDamage& damage : r.damage) {
      text += line("", damage_text(damage, r.format));
    }
  }
  if (r.verified) text += line("checksums", "all match");
  return text;
}

}  // namespace

std::string quantization(const InspectReport& r) {
  if (r.kind != "packed" || !is_quantized(r.format)) return "";
  char text[160];
  std::snprintf(text, sizeof(text),
                "relative RMS error %.2f %%, largest %.4g; most in %s (%.2f %%)",
                r.quantization.relative_rms() * 100, r.quantization.error_max,
                r.quantization_worst.c_str(), r.quantization_worst_rms * 100);
  return line("quantization", text + std::string(r.hadamard ? ", by Hadamard matrices" : ""));
}

std::string text_of(const InspectReport& r) {
  std::string text = line("model", r.shape.name + " (" + r.shape.family + ", " + r.kind + ")");
  if (!r.source.empty()) text += line("made from", r.source);
  text += line("shape", architecture(r.shape));
  text += line("", details(r.shape));
  text += line("tokens", tokens(r.shape));
  text += line("parameters", grouped(r.parameters));
  text += line("size", sizes(r));
  text += quantization(r);
  if (r.kind != "shape") text += line("tokenizer", tokenizer(r));
  if (r.kind != "shape") text += line("chat", r.chat_template);
  text += health(r);
  for (const std::string& note : r.notes) text += line("note", note);
  return text;
}

std::string json_of(const InspectReport& r) {
  json files = json::array();
  for (const auto& [name, bytes] : r.tokenizer_files) {
    files.push_back({{"name", name}, {"bytes", bytes}});
  }
  json damage = json::array();
  NonFinite total;
  for (const TensorDamage& entry : r.damage) {
    damage.push_back(
        {{"tensor", entry.tensor}, {"nan", entry.stored.nan}, {"inf", entry.stored.inf}});
    total += entry.stored;
  }
  json root = {{"model", r.model},
               {"kind", r.kind},
               {"source", r.source},
               {"shape", json_of_shape(r.shape)},
               {"parameters", r.parameters},
               {"tensors", r.tensors},
               {"format", format_name(r.format)},
               {"bytes",
                {{"embeddings", r.embedding_bytes},
                 {"layer", r.layer_bytes},
                 {"layers", r.layer_bytes * static_cast<uint64_t>(r.shape.layers)},
                 {"head", r.head_bytes},
                 {"total", r.total_bytes}}},
               {"tokenizer_files", std::move(files)},
               {"chat_template", r.chat_template},
               {"nan", total.nan},
               {"inf", total.inf},
               {"non_finite", std::move(damage)},
               {"weights_read", r.weights_read},
               {"verified", r.verified},
               {"notes", r.notes}};
  if (r.kind == "packed" && is_quantized(r.format)) {
    root["quantization"] = json_of_quantization(r.format, r.quantization);
    root["quantization"]["hadamard"] = r.hadamard;
    root["quantization"]["worst_tensor"] = r.quantization_worst;
    root["quantization"]["worst_relative_rms"] = r.quantization_worst_rms;
  }
  return root.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace spillway
