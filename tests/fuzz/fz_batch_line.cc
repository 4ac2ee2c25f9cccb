// Lines of a batch: any bytes become rows; every row is one line of valid JSON that names its line.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "server/batches/batch_line.h"
#include "server/batches/batch_run.h"
#include "tests/support/tiny_shape.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const ModelShape shape = test::make_shape({});
  ApiContext context;
  context.shape = &shape;
  context.model_names = {"tiny"};
  CustomIds ids;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  for (int64_t number = 1; !rest.empty() && number < 100; ++number) {
    const std::string_view text = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), text.size() + 1));
    std::string prompt = "not empty";
    BatchLine line = read_batch_line({number, text, false}, context, &prompt);
    if (line.error && !prompt.empty()) std::abort();
    ids.check(&line);
    std::string row;
    if (line.error) {
      row = error_line("0123456789abcdef", line, *line.error);
    } else {
      const auto call = parse_batch_line(line, context, 1);
      if (const auto* error = std::get_if<ApiError>(&call)) {
        row = error_line("0123456789abcdef", line, *error);
      } else {
        for (const Request& request : std::get<CompletionCall>(call).requests) {
          if (request.prompt.empty() || request.max_tokens < 0) std::abort();
        }
        row = answer_line("0123456789abcdef", line, "{}");
      }
    }
    const auto json = nlohmann::json::parse(row, nullptr, false);
    if (json.is_discarded() || row.find('\n') != std::string::npos) std::abort();
    if (json["id"] != "batch_req_0123456789abcdef_" + std::to_string(number)) std::abort();
  }
  return 0;
}
