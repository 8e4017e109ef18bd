#include "server/config/config_file.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/message.h>
#include <google/protobuf/reflection.h>
#include <google/protobuf/text_format.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gdpcache/config/v1/server_config.pb.h"
#include "server/config/trusted_file.h"

namespace gdpcache::config {
namespace {

using google::protobuf::FieldDescriptor;

class ErrorList final : public google::protobuf::io::ErrorCollector {
 public:
  ErrorList(const std::string& path, std::vector<std::string>& errors) : path_(path), errors_(errors) {}
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    errors_.push_back(absl::StrCat(path_, ":", line + 1, ":", column + 1, ": ", message));
  }

 private:
  const std::string& path_;
  std::vector<std::string>& errors_;
};

// A set field as the flag of its name would be written.
std::string FlagValue(const google::protobuf::Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (field.is_repeated()) {
    return absl::StrJoin(reflection.GetRepeatedFieldRef<std::string>(message, &field), ",");
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection.GetInt64(message, &field));
    default:
      return reflection.GetString(message, &field);
  }
}

}  // namespace

ConfigFile ReadConfigFile(const std::string& path, std::vector<std::string>& errors) {
  ConfigFile file;
  const absl::StatusOr<std::string> text = ReadTrustedFile("the configuration file", path, Secrecy::kPublic);
  if (!text.ok()) {
    errors.push_back(absl::StrCat("--config: ", text.status().message()));
    return file;
  }
  config::v1::ServerConfig message;
  ErrorList collector(path, errors);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&collector);
  if (!parser.ParseFromString(*text, &message)) return file;

  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) continue;  // caches, identities
    file.values.emplace_back(field->name(), FlagValue(message, *field));
  }
  file.caches.assign(message.caches().begin(), message.caches().end());
  file.identities.assign(message.identities().begin(), message.identities().end());
  return file;
}

}  // namespace gdpcache::config
