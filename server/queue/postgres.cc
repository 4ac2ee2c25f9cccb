#include "server/queue/postgres.h"

#include <libpq-fe.h>
#include <poll.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <boost/algorithm/string/split.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/units.h"

namespace spillway {
namespace {

// Types by their numbers in pg_type.dat, which never change.
constexpr uint32_t kBool = 16, kBytea = 17, kInt8 = 20, kText = 25, kFloat8 = 701;
constexpr uint32_t kBoolArray = 1000, kByteaArray = 1001, kTextArray = 1009, kInt8Array = 1016;
constexpr int kPollMilliseconds = 100;

// Appends the lowest `bytes` bytes of a number, the highest first.
void put_number(std::string& to, uint64_t value, int bytes) {
  for (int i = bytes - 1; i >= 0; --i) to += static_cast<char>((value >> (8 * i)) & 0xff);
}

void put_bytes(std::string& to, std::string_view bytes) {
  put_number(to, bytes.size(), 4);
  to += bytes;
}

uint64_t number_of(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

// One dimension, no nulls, the first element is number 1; `put` appends an element with its length.
template <typename Values, typename Put>
std::string array_of(const Values& values, uint32_t type, const Put& put) {
  std::string array;
  put_number(array, values.empty() ? 0 : 1, 4);
  put_number(array, 0, 4);
  put_number(array, type, 4);
  if (values.empty()) return array;
  put_number(array, values.size(), 4);
  put_number(array, 1, 4);
  for (const auto& value : values) put(array, value);
  return array;
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// Classes and codes as in the manual's appendix A.
Code code_of_state(std::string_view state) {
  constexpr std::string_view kAgainClasses[] = {"08", "40", "53", "58"};
  constexpr std::string_view kAgain[] = {"25P03", "55P03", "57014", "57P01",
                                         "57P02", "57P03", "57P05", "25006"};
  const std::string_view of_class = state.substr(0, 2);
  if (std::find(std::begin(kAgainClasses), std::end(kAgainClasses), of_class) !=
          std::end(kAgainClasses) ||
      std::find(std::begin(kAgain), std::end(kAgain), state) != std::end(kAgain)) {
    return Code::kIoError;
  }
  if (state == "42P01" || state == "3F000") return Code::kNotFound;
  return Code::kInvalidArgument;
}

// "FATAL:  28P01: password authentication failed ...\nLOCATION: ..." in parts. The word in front is
// in the server's language; without a code the server did not speak.
struct VerboseError {
  std::string state, message;
};
VerboseError read_verbose(const std::string& text) {
  const size_t colon = text.find(":  ");
  if (colon == std::string::npos || text.size() < colon + 10 || text[colon + 8] != ':') return {};
  VerboseError error;
  error.state = text.substr(colon + 3, 5);
  const bool is_code = std::all_of(error.state.begin(), error.state.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z');
  });
  if (!is_code) return {};
  error.message = text.substr(colon + 10);
  error.message = trimmed(error.message.substr(0, error.message.find('\n')));
  return error;
}

// libpq's own words: the first line says what happened, others give advice that does not help here.
std::string first_line(const std::string& text) {
  return trimmed(text.substr(0, text.find('\n')));
}

// Without what stands between the first quote and the last: of a URL that libpq cannot read that
// may be the password, which may have quotes itself.
std::string without_quoted(const std::string& text) {
  const size_t first = text.find('"'), last = text.rfind('"');
  if (first == std::string::npos) return text;
  return text.substr(0, first) + "..." + text.substr(last + 1);
}

Status unreadable(const std::string& why) {
  return invalid_argument("the database's URL cannot be read (" + without_quoted(why) +
                          "); it looks like postgresql://USER@HOST/DATABASE");
}

// What a URL or a connection string says.
struct ConnectionText {
  struct Host {
    std::string host, address, port;
  };
  std::vector<Host> hosts;  // One at least
  std::vector<std::pair<std::string, std::string>> others;
};

std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts;
  boost::split(parts, list, [](char c) { return c == ','; });
  return parts;
}

Result<ConnectionText> read_url(const std::string& url) {
  char* error = nullptr;
  PQconninfoOption* const options = PQconninfoParse(url.c_str(), &error);
  if (options == nullptr) {
    const Status status = unreadable(error == nullptr ? "no memory" : first_line(error));
    PQfreemem(error);
    return status;
  }
  ConnectionText text;
  std::string hosts, addresses, ports;
  for (const PQconninfoOption* option = options; option->keyword != nullptr; ++option) {
    if (option->val == nullptr) continue;
    const std::string name = option->keyword;
    std::string* const list = name == "host"       ? &hosts
                              : name == "hostaddr" ? &addresses
                              : name == "port"     ? &ports
                                                   : nullptr;
    if (list != nullptr) {
      *list = option->val;
    } else {
      text.others.emplace_back(name, option->val);
    }
  }
  PQconninfoFree(options);
  // What stands behind a password with an '@' that is not escaped is part of it.
  if (hosts.find('@') != std::string::npos || ports.find('@') != std::string::npos) {
    return invalid_argument(
        "the database's URL has an '@' in its host; in a password it is written %40");
  }
  const std::vector<std::string> host = parts_of(hosts), address = parts_of(addresses),
                                 port = parts_of(ports);
  const size_t count = std::max(host.size(), address.size());
  for (size_t i = 0; i < count; ++i) {
    text.hosts.push_back({i < host.size() ? host[i] : "", i < address.size() ? address[i] : "",
                          port.size() == 1  ? port[0]
                          : i < port.size() ? port[i]
                                            : ""});
  }
  return text;
}

}  // namespace

// ---- Parameters and rows ------------------------------------------------------------------------

PgParameters& PgParameters::add(uint32_t type, std::string value) {
  parameters_.push_back({type, false, std::move(value)});
  return *this;
}

PgParameters& PgParameters::text(std::string_view value) {
  return add(kText, std::string(value));
}

PgParameters& PgParameters::optional_text(std::string_view value) {
  add(kText, std::string(value));
  parameters_.back().null = value.empty();
  return *this;
}

PgParameters& PgParameters::integer(int64_t value) {
  std::string bytes;
  put_number(bytes, static_cast<uint64_t>(value), 8);
  return add(kInt8, std::move(bytes));
}

PgParameters& PgParameters::real(double value) {
  std::string bytes;
  put_number(bytes, std::bit_cast<uint64_t>(value), 8);
  return add(kFloat8, std::move(bytes));
}

PgParameters& PgParameters::boolean(bool value) {
  return add(kBool, std::string(1, value ? '\1' : '\0'));
}

PgParameters& PgParameters::integers(const std::vector<int64_t>& values) {
  return add(kInt8Array, array_of(values, kInt8, [](std::string& array, int64_t value) {
               put_number(array, 8, 4);
               put_number(array, static_cast<uint64_t>(value), 8);
             }));
}

PgParameters& PgParameters::booleans(const std::vector<bool>& values) {
  return add(kBoolArray, array_of(values, kBool, [](std::string& array, bool value) {
               put_number(array, 1, 4);
               array += value ? '\1' : '\0';
             }));
}

PgParameters& PgParameters::texts(const std::vector<std::string>& values) {
  return add(kTextArray, array_of(values, kText, put_bytes));
}

PgParameters& PgParameters::byte_arrays(const std::vector<std::string>& values) {
  return add(kByteaArray, array_of(values, kBytea, put_bytes));
}

void PgRows::Clear::operator()(pg_result* result) const {
  PQclear(result);
}

int64_t PgRows::size() const {
  return result_ == nullptr ? 0 : PQntuples(result_.get());
}

bool PgRows::null(int64_t row, int column) const {
  return PQgetisnull(result_.get(), static_cast<int>(row), column) != 0;
}

std::string_view PgRows::bytes(int64_t row, int column) const {
  const int at = static_cast<int>(row);
  return {PQgetvalue(result_.get(), at, column),
          static_cast<size_t>(PQgetlength(result_.get(), at, column))};
}

int64_t PgRows::integer(int64_t row, int column) const {
  const std::string_view value = bytes(row, column);
  if (value.empty()) return 0;
  const int unused = 64 - 8 * static_cast<int>(value.size());
  return static_cast<int64_t>(number_of(value) << unused) >> unused;  // With its sign
}

double PgRows::real(int64_t row, int column) const {
  return std::bit_cast<double>(number_of(bytes(row, column)));
}

bool PgRows::boolean(int64_t row, int column) const {
  return number_of(bytes(row, column)) != 0;
}

// ---- The connection -----------------------------------------------------------------------------

void PgConnection::Finish::operator()(pg_conn* connection) const {
  PQfinish(connection);
}

Status PgConnection::connection_error(const char* doing) const {
  const std::string text = PQerrorMessage(connection_.get());
  const VerboseError said = read_verbose(text);
  const std::string where = std::string(doing) + " " + place_ + ": ";
  if (said.state.empty()) return {Code::kIoError, where + first_line(text)};
  return {code_of_state(said.state), where + said.message + " (" + said.state + ")"};
}

// Waits until libpq may read, or also write.
Status PgConnection::wait(bool for_write, double deadline) {
  for (;;) {
    if (options_.stop && options_.stop()) return give_up({Code::kCancelled, "interrupted"});
    const double left = deadline - steady_seconds();
    if (left <= 0) {
      return give_up({Code::kIoError, place_ + ": no answer from the database in " +
                                          format_seconds(options_.query_seconds)});
    }
    pollfd socket = {PQsocket(connection_.get()),
                     static_cast<short>(POLLIN | (for_write ? POLLOUT : 0)), 0};
    const int milliseconds = std::min(kPollMilliseconds, static_cast<int>(left * 1000) + 1);
    const int ready = ::poll(&socket, 1, milliseconds);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return give_up(io_error("poll the database's socket", errno));
  }
}

// A query's answer that is not waited for must not be taken for the next one's.
Status PgConnection::give_up(Status why) {
  connection_.reset();
  return why;
}

bool PgConnection::broken() const {
  return connection_ == nullptr || PQstatus(connection_.get()) != CONNECTION_OK;
}

Result<PgConnection> PgConnection::connect(const std::string& url, const PgOptions& options) {
  Result<ConnectionText> read = read_url(url);
  if (!read.ok()) return read.status();
  // libpq goes on to the next host when one refuses, but not when one does not answer.
  Status failed;
  for (const ConnectionText::Host& host : read->hosts) {
    std::vector<const char*> names = {"fallback_application_name", "client_encoding",
                                      "keepalives_idle", "keepalives_interval", "keepalives_count"};
    std::vector<const char*> values = {"spillway", "UTF8", "15", "5", "3"};
    for (const auto& [name, value] : read->others) {
      names.push_back(name.c_str());
      values.push_back(value.c_str());
    }
    for (const auto& [name, value] : {std::pair("host", &host.host), std::pair("port", &host.port),
                                      std::pair("hostaddr", &host.address)}) {
      if (value->empty()) continue;
      names.push_back(name);
      values.push_back(value->c_str());
    }
    Result<PgConnection> opened = connect_one(names, values, options);
    if (opened.ok() || opened.status().code() != Code::kIoError) return opened;
    failed = opened.status();
  }
  return failed;
}

Result<PgConnection> PgConnection::connect_one(const std::vector<const char*>& names,
                                               const std::vector<const char*>& values,
                                               const PgOptions& options) {
  std::vector<const char*> all_names = names, all_values = values;
  all_names.push_back(nullptr);
  all_values.push_back(nullptr);
  PgConnection opened;
  opened.options_ = options;
  opened.connection_.reset(
      PQconnectStartParams(all_names.data(), all_values.data(), /*expand_dbname=*/0));
  SPILLWAY_CHECK(opened.connection_ != nullptr);
  pg_conn* const connection = opened.connection_.get();
  const auto said = [](const char* text) { return text == nullptr ? std::string() : text; };
  opened.place_ = said(PQhost(connection)) + ":" + said(PQport(connection)) + "/" +
                  said(PQdb(connection)) + " as " + said(PQuser(connection));
  if (PQstatus(connection) == CONNECTION_BAD) {
    const std::string why = first_line(PQerrorMessage(connection));
    if (why.starts_with("invalid ")) return unreadable(why);
    return Status(Code::kIoError, "connect to " + opened.place_ + ": " + why);
  }
  PQsetErrorVerbosity(connection, PQERRORS_VERBOSE);
  const double deadline = steady_seconds() + options.connect_seconds;
  for (PostgresPollingStatusType next = PGRES_POLLING_WRITING; next != PGRES_POLLING_OK;) {
    if (next == PGRES_POLLING_FAILED) {
      const Status failed = opened.connection_error("connect to");
      if (PQconnectionNeedsPassword(connection) == 0) return failed;
      return invalid_argument(std::string(failed.message()) +
                              "; give one in PGPASSWORD or ~/.pgpass");
    }
    if (next == PGRES_POLLING_READING || next == PGRES_POLLING_WRITING) {
      // Where reading is asked for, being able to write is no reason to go on.
      const Status waited = opened.wait(next == PGRES_POLLING_WRITING, deadline);
      if (!waited.ok()) {
        if (waited.code() == Code::kCancelled) return waited;
        return Status(Code::kIoError, "connect to " + opened.place_ + ": no answer in " +
                                          format_seconds(options.connect_seconds));
      }
    }
    next = PQconnectPoll(connection);
  }
  PQsetErrorVerbosity(connection, PQERRORS_DEFAULT);
  PQsetNoticeProcessor(
      connection, [](void*, const char*) {}, nullptr);
  if (PQsetnonblocking(connection, 1) != 0) return opened.connection_error("connect to");
  // What a client that hangs or is cut off holds in the server, others wait for; in a COPY it is
  // its connection alone that tells.
  SPILLWAY_RETURN_IF_ERROR(
      opened.execute("SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '30s';"
                     " SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5;"
                     " SET tcp_keepalives_count = 3"));
  if (!options.settings.empty()) SPILLWAY_RETURN_IF_ERROR(opened.execute(options.settings));
  return opened;
}

Status PgConnection::flush(double deadline) {
  for (;;) {
    const int left = PQflush(connection_.get());
    if (left == 0) return {};
    if (left < 0) return connection_error("send to");
    SPILLWAY_RETURN_IF_ERROR(wait(/*for_write=*/true, deadline));
    if (PQconsumeInput(connection_.get()) == 0) return connection_error("read from");
  }
}

// The last result of what was sent; an error, if one of them is.
Result<PgRows> PgConnection::last_result(double deadline) {
  SPILLWAY_RETURN_IF_ERROR(flush(deadline));
  PgRows last;
  Status failed;
  for (;;) {
    while (PQisBusy(connection_.get()) != 0) {
      SPILLWAY_RETURN_IF_ERROR(wait(/*for_write=*/false, deadline));
      if (PQconsumeInput(connection_.get()) == 0) return connection_error("read from");
    }
    pg_result* const result = PQgetResult(connection_.get());
    if (result == nullptr) break;
    last.result_.reset(result);
    const ExecStatusType status = PQresultStatus(result);
    if (status == PGRES_COPY_IN) break;  // Nothing follows until the copy has ended.
    if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK || !failed.ok()) continue;
    const char* const state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char* const message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    if (state == nullptr || message == nullptr) {
      failed = connection_error("lost");
    } else {
      failed = Status(code_of_state(state), place_ + ": " + message + " (" + state + ")");
    }
  }
  if (!failed.ok()) return failed;
  return last;
}

Result<PgRows> PgConnection::query(const char* sql, const PgParameters& parameters) {
  if (connection_ == nullptr) return Status(Code::kIoError, place_ + ": the connection is closed");
  std::vector<Oid> types;
  std::vector<const char*> values;
  std::vector<int> lengths, formats;
  for (const PgParameters::Parameter& parameter : parameters.parameters_) {
    types.push_back(parameter.type);
    values.push_back(parameter.null ? nullptr : parameter.value.data());
    lengths.push_back(static_cast<int>(parameter.value.size()));
    formats.push_back(1);
  }
  const auto count = static_cast<int>(types.size());
  const double deadline = steady_seconds() + options_.query_seconds;
  char name[32];
  std::snprintf(name, sizeof(name), "q%016llx",
                static_cast<unsigned long long>(XXH3_64bits(sql, std::strlen(sql))));
  if (prepared_.count(name) == 0) {
    if (PQsendPrepare(connection_.get(), name, sql, count, types.data()) == 0) {
      return connection_error("send to");
    }
    SPILLWAY_RETURN_IF_ERROR(last_result(deadline).status());
    prepared_.insert(name);
  }
  if (PQsendQueryPrepared(connection_.get(), name, count, values.data(), lengths.data(),
                          formats.data(), /*resultFormat=*/1) == 0) {
    return connection_error("send to");
  }
  return last_result(deadline);
}

Result<PgRows> PgConnection::query_once(const std::string& sql) {
  if (connection_ == nullptr) return Status(Code::kIoError, place_ + ": the connection is closed");
  if (PQsendQueryParams(connection_.get(), sql.c_str(), 0, nullptr, nullptr, nullptr, nullptr,
                        /*resultFormat=*/1) == 0) {
    return connection_error("send to");
  }
  return last_result(steady_seconds() + options_.query_seconds);
}

Status PgConnection::execute(const std::string& sql) {
  if (connection_ == nullptr) return {Code::kIoError, place_ + ": the connection is closed"};
  if (PQsendQuery(connection_.get(), sql.c_str()) == 0) return connection_error("send to");
  return last_result(steady_seconds() + options_.query_seconds).status();
}

Status PgConnection::copy_begin(const char* sql) {
  return execute(sql);
}

Status PgConnection::copy_put(std::string_view bytes) {
  const double deadline = steady_seconds() + options_.query_seconds;
  for (;;) {
    if (connection_ == nullptr) return {Code::kIoError, place_ + ": the connection is closed"};
    const int put = PQputCopyData(connection_.get(), bytes.data(), static_cast<int>(bytes.size()));
    if (put < 0) return connection_error("copy to");
    if (put > 0) return flush(deadline);
    SPILLWAY_RETURN_IF_ERROR(wait(/*for_write=*/true, deadline));
    if (PQconsumeInput(connection_.get()) == 0) return connection_error("read from");
  }
}

Status PgConnection::copy_end() {
  const double deadline = steady_seconds() + options_.query_seconds;
  for (;;) {
    if (connection_ == nullptr) return {Code::kIoError, place_ + ": the connection is closed"};
    const int put = PQputCopyEnd(connection_.get(), nullptr);
    if (put < 0) return connection_error("copy to");
    if (put > 0) return last_result(deadline).status();
    SPILLWAY_RETURN_IF_ERROR(wait(/*for_write=*/true, deadline));
  }
}

void PgConnection::copy_abort() {
  if (connection_ == nullptr) return;
  const double deadline = steady_seconds() + options_.query_seconds;
  const bool told = PQputCopyEnd(connection_.get(), "not wanted any more") > 0;
  // The server's answer is an error that says so.
  if (!told || last_result(deadline).ok() || broken()) connection_.reset();
}

Status in_transaction(PgConnection& connection, const std::function<Status()>& body) {
  SPILLWAY_RETURN_IF_ERROR(connection.execute("BEGIN"));
  Status status = body();
  if (status.ok()) return connection.execute("COMMIT");
  // What went wrong is what is said, also where undoing it fails; then the server undoes it.
  if (!connection.broken() && !connection.execute("ROLLBACK").ok()) connection.close();
  return status;
}

// ---- COPY ---------------------------------------------------------------------------------------

PgCopyBuffer::PgCopyBuffer() : buffer_("PGCOPY\n\377\r\n\0", 11) {
  put_number(buffer_, 0, 4);  // No flags
  put_number(buffer_, 0, 4);  // No extension of the header
}

void PgCopyBuffer::row(int16_t fields) {
  put_number(buffer_, static_cast<uint64_t>(fields), 2);
}

void PgCopyBuffer::integer(int64_t value) {
  put_number(buffer_, 8, 4);
  put_number(buffer_, static_cast<uint64_t>(value), 8);
}

void PgCopyBuffer::small(int16_t value) {
  put_number(buffer_, 2, 4);
  put_number(buffer_, static_cast<uint64_t>(value), 2);
}

void PgCopyBuffer::bytes(std::string_view value) {
  put_bytes(buffer_, value);
}

void PgCopyBuffer::end() {
  put_number(buffer_, 0xffff, 2);
}

}  // namespace spillway
