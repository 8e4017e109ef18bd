#include "proto/safetensors/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace gdpcache {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are used as they lie in the file");

using Json = nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::size_t kMaxRank = 32;
constexpr std::string_view kMetadataKey = "__metadata__";

struct ElementType {
  std::string_view name;
  std::int64_t size;
};

constexpr std::array<ElementType, 15> kElementTypes = {{{"BOOL", 1},
                                                        {"U8", 1},
                                                        {"I8", 1},
                                                        {"F8_E4M3", 1},
                                                        {"F8_E5M2", 1},
                                                        {"U16", 2},
                                                        {"I16", 2},
                                                        {"F16", 2},
                                                        {"BF16", 2},
                                                        {"U32", 4},
                                                        {"I32", 4},
                                                        {"F32", 4},
                                                        {"U64", 8},
                                                        {"I64", 8},
                                                        {"F64", 8}}};

/// A name from a file, safe to put into a message.
std::string Quoted(std::string_view name) {
  constexpr std::size_t kShown = 64;
  return absl::StrCat("'", absl::Utf8SafeCEscape(absl::string_view(name.data(), std::min(name.size(), kShown))),
                      name.size() > kShown ? "...'" : "'");
}

/// The product of `shape`, or -1 when it, times `element_size`, overflows or a dimension is negative. A zero dimension
/// does not excuse an overflow among the others.
std::int64_t CountElements(const std::vector<std::int64_t>& shape, std::int64_t element_size) {
  std::int64_t elements = 1;
  std::int64_t bytes = 0;
  bool zero = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return -1;
    zero |= dimension == 0;
    if (dimension != 0 && __builtin_mul_overflow(elements, dimension, &elements)) return -1;
    if (__builtin_mul_overflow(elements, element_size, &bytes)) return -1;
  }
  return zero ? 0 : elements;
}

/// Receives the header's JSON event by event, so that nothing but the expected structure is ever held, and duplicate
/// names, which a document tree would hide, are seen.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  enum class Extent : std::uint8_t {
    kWhole,
    kLeadingMetadata,  // stops where the metadata end, and anything before them is an error
  };

  explicit HeaderReader(Extent extent = Extent::kWhole) : extent_(extent) {}

  std::map<std::string, std::string> metadata;
  std::map<std::string, TensorInfo, std::less<>> tensors;
  std::string error;

  /// Whether the metadata have been read to their end.
  bool metadata_read() const { return metadata_read_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool /*value*/) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return Unexpected(absl::StrCat("the number ", value)); }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", text.substr(0, 32)));
  }
  bool binary(binary_t& /*value*/) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return Fail(absl::StrCat("tensor ", Quoted(tensor_.name), ": the number ", value, " is too large"));
    }
    if (place_ == Place::kShapeItem) {
      if (tensor_.shape.size() == kMaxRank) {
        return Fail(absl::StrCat("tensor ", Quoted(tensor_.name), " has more than ", kMaxRank, " dimensions"));
      }
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsetItem && offsets_read_ < offsets_.size()) {
      offsets_[offsets_read_++] = static_cast<std::int64_t>(value);
      return true;
    }
    return Unexpected(absl::StrCat("the number ", value));
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadataValue) {
      if (!metadata.emplace(key_, std::move(value)).second) {
        return Fail(absl::StrCat("metadata key ", Quoted(key_), " appears twice"));
      }
      place_ = Place::kMetadata;
      return true;
    }
    if (place_ == Place::kDtypeValue) {
      tensor_.dtype = std::move(value);
      place_ = Place::kTensor;
      return true;
    }
    return Unexpected(absl::StrCat("the string ", Quoted(value)));
  }

  bool start_object(std::size_t /*size*/) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTopValue:
        if (key_ == kMetadataKey) {
          if (std::exchange(metadata_seen_, true)) return Fail("__metadata__ appears twice");
          place_ = Place::kMetadata;
        } else if (extent_ == Extent::kLeadingMetadata) {
          return Fail(absl::StrCat("it begins with ", Quoted(key_)));
        } else {
          tensor_ = TensorInfo();
          tensor_.name = key_;
          fields_seen_ = 0;
          offsets_read_ = 0;
          place_ = Place::kTensor;
        }
        return true;
      default:
        return Unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    switch (place_) {
      case Place::kTop:
        key_ = std::move(name);
        place_ = Place::kTopValue;
        return true;
      case Place::kMetadata:
        key_ = std::move(name);
        place_ = Place::kMetadataValue;
        return true;
      default:  // kTensor: the grammar allows a key inside an object only
        if (name == "dtype") return Field(kDtypeField, name, Place::kDtypeValue);
        if (name == "shape") return Field(kShapeField, name, Place::kShapeValue);
        if (name == "data_offsets") return Field(kOffsetsField, name, Place::kOffsetsValue);
        return Fail(absl::StrCat("tensor ", Quoted(tensor_.name), " has the unknown field ", Quoted(name)));
    }
  }

  bool end_object() override {
    switch (place_) {
      case Place::kTop:
        place_ = Place::kEnd;
        return true;
      case Place::kMetadata:
        place_ = Place::kTop;
        metadata_read_ = true;
        return extent_ == Extent::kWhole;
      default:
        place_ = Place::kTop;
        return FinishTensor();
    }
  }

  bool start_array(std::size_t /*size*/) override {
    if (place_ == Place::kShapeValue) {
      place_ = Place::kShapeItem;
      return true;
    }
    if (place_ == Place::kOffsetsValue) {
      place_ = Place::kOffsetItem;
      return true;
    }
    return Unexpected("an array");
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*exception*/) override {
    return Fail(absl::StrCat("it is no valid JSON at byte ", position));
  }

 private:
  enum class Place {
    kStart,
    kTop,
    kTopValue,
    kMetadata,
    kMetadataValue,
    kTensor,
    kDtypeValue,
    kShapeValue,
    kShapeItem,
    kOffsetsValue,
    kOffsetItem,
    kEnd,
  };
  static constexpr unsigned kDtypeField = 1;
  static constexpr unsigned kShapeField = 2;
  static constexpr unsigned kOffsetsField = 4;

  bool Fail(std::string what) {
    error = std::move(what);
    return false;
  }

  bool Unexpected(const std::string& what) {
    if (key_.empty()) return Fail(absl::StrCat(what, " was not expected"));
    return Fail(absl::StrCat(what, " was not expected in the entry ", Quoted(key_)));
  }

  bool Field(unsigned field, const std::string& name, Place next) {
    if ((fields_seen_ & field) != 0) {
      return Fail(absl::StrCat("tensor ", Quoted(tensor_.name), " has the field ", name, " twice"));
    }
    fields_seen_ |= field;
    place_ = next;
    return true;
  }

  bool FinishTensor() {
    const std::string who = absl::StrCat("tensor ", Quoted(tensor_.name));
    if (fields_seen_ != (kDtypeField | kShapeField | kOffsetsField)) {
      return Fail(absl::StrCat(who, " needs dtype, shape and data_offsets"));
    }
    if (offsets_read_ != offsets_.size()) return Fail(absl::StrCat(who, ": data_offsets needs two numbers"));
    const std::int64_t element_size = SafetensorsElementSize(tensor_.dtype);
    if (element_size == 0) return Fail(absl::StrCat(who, " has the unknown dtype ", Quoted(tensor_.dtype)));
    tensor_.elements = CountElements(tensor_.shape, element_size);
    if (tensor_.elements < 0) return Fail(absl::StrCat(who, ": the product of its shape overflows"));
    if (offsets_[0] > offsets_[1]) {
      return Fail(absl::StrCat(who, ": data_offsets ", offsets_[0], " and ", offsets_[1], " descend"));
    }
    tensor_.offset = offsets_[0];
    tensor_.size = offsets_[1] - offsets_[0];
    if (tensor_.size != tensor_.elements * element_size) {
      return Fail(absl::StrCat(who, ": data_offsets span ", tensor_.size, " bytes; its shape and dtype need ",
                               tensor_.elements * element_size));
    }
    if (!tensors.emplace(tensor_.name, tensor_).second) return Fail(absl::StrCat(who, " appears twice"));
    return true;
  }

  Extent extent_;
  Place place_ = Place::kStart;
  std::string key_;
  bool metadata_seen_ = false;
  bool metadata_read_ = false;
  TensorInfo tensor_;
  unsigned fields_seen_ = 0;
  std::array<std::int64_t, 2> offsets_ = {};
  std::size_t offsets_read_ = 0;
};

/// The header length, once it is known to be possible in a file of `file_bytes`.
absl::StatusOr<std::int64_t> CheckedHeaderLength(const char* length_bytes, std::int64_t file_bytes) {
  std::uint64_t length = 0;
  std::memcpy(&length, length_bytes, sizeof(length));
  if (length > static_cast<std::uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header length is ", length, "; at most ", kMaxSafetensorsHeaderBytes, " are accepted"));
  }
  if (static_cast<std::int64_t>(length) > file_bytes - kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("the header length is ", length, "; only ", file_bytes - kLengthBytes, " bytes follow"));
  }
  return static_cast<std::int64_t>(length);
}

absl::Status TooShort(std::int64_t file_bytes) {
  return absl::DataLossError(
      absl::StrCat("the file has ", file_bytes, " bytes; at least ", kLengthBytes, " are needed"));
}

/// Reads the JSON and checks that the tensors fill `data_bytes` without gap or overlap.
absl::Status ReadHeader(const char* json, std::int64_t json_bytes, std::int64_t data_bytes, HeaderReader& header) {
  // The format has no leading whitespace; without this check a 0-byte header would be reported as a JSON error.
  if (json_bytes == 0 || json[0] != '{') return absl::InvalidArgumentError("the header does not start with '{'");
  if (!Json::sax_parse(json, json + json_bytes, &header)) {
    return absl::InvalidArgumentError(absl::StrCat("the header is malformed: ", header.error));
  }
  std::vector<const TensorInfo*> by_offset;
  by_offset.reserve(header.tensors.size());
  for (const auto& [name, tensor] : header.tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->offset, a->size) < std::pair(b->offset, b->size);
  });
  std::int64_t end = 0;
  for (const TensorInfo* tensor : by_offset) {
    if (tensor->offset != end) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor->name), " starts at byte ",
                                                     tensor->offset, " of the data; the one before it ends at ", end));
    }
    if (tensor->size > data_bytes - end) {
      return absl::DataLossError(absl::StrCat("tensor ", Quoted(tensor->name), " ends at byte ", end, " + ",
                                              tensor->size, " of the data; the file has ", data_bytes));
    }
    end += tensor->size;
  }
  if (end != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors end at byte ", end, " of the data; the file has ", data_bytes));
  }
  return absl::OkStatus();
}

absl::Status FileError(int error, absl::string_view action, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat(action, " ", path));
}

/// `status` with the path in front of its message.
absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

  /// Closes early, to learn of errors that only closing reports. 0 or -1 with errno.
  int Close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

absl::Status ReadExactly(int fd, void* destination, std::int64_t size, const std::string& path) {
  char* to = static_cast<char*>(destination);
  while (size > 0) {
    const ssize_t count = ::read(fd, to, static_cast<std::size_t>(size));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(errno, "reading", path);
    if (count == 0) return absl::DataLossError(absl::StrCat(path, ": became shorter while it was read"));
    to += count;
    size -= count;
  }
  return absl::OkStatus();
}

absl::Status WriteExactly(int fd, absl::Span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(errno, "writing", path);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status WriteFile(FileDescriptor& file, const std::string& path, absl::Span<const std::byte> header,
                       absl::Span<const TensorToWrite> tensors) {
  if (const absl::Status status = WriteExactly(file.get(), header, path); !status.ok()) return status;
  for (const TensorToWrite& tensor : tensors) {
    if (const absl::Status status = WriteExactly(file.get(), tensor.data, path); !status.ok()) return status;
  }
  if (file.Close() != 0) return FileError(errno, "closing", path);
  return absl::OkStatus();
}

}  // namespace

std::int64_t SafetensorsElementSize(std::string_view dtype) {
  for (const ElementType& type : kElementTypes) {
    if (type.name == dtype) return type.size;
  }
  return 0;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path, std::int64_t max_bytes) {
  // Non-blocking, so that a FIFO of that name is refused below instead of waited for.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return FileError(errno, "opening", path);
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return FileError(errno, "examining", path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  const std::int64_t file_bytes = info.st_size;
  if (file_bytes > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", file_bytes, " bytes; at most ", max_bytes, " are accepted"));
  }
  if (file_bytes < kLengthBytes) return InFile(path, TooShort(file_bytes));

  std::array<char, kLengthBytes> length_bytes;
  if (absl::Status status = ReadExactly(file.get(), length_bytes.data(), kLengthBytes, path); !status.ok()) {
    return status;
  }
  const absl::StatusOr<std::int64_t> header_bytes = CheckedHeaderLength(length_bytes.data(), file_bytes);
  if (!header_bytes.ok()) return InFile(path, header_bytes.status());
  std::string json(static_cast<std::size_t>(*header_bytes), '\0');
  if (absl::Status status = ReadExactly(file.get(), json.data(), *header_bytes, path); !status.ok()) return status;

  // The header is judged before memory for the data is taken.
  const std::int64_t data_bytes = file_bytes - kLengthBytes - *header_bytes;
  HeaderReader header;
  if (absl::Status status = ReadHeader(json.data(), *header_bytes, data_bytes, header); !status.ok()) {
    return InFile(path, status);
  }
  std::shared_ptr<std::byte[]> data(new (std::nothrow) std::byte[static_cast<std::size_t>(data_bytes)]);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory for its ", data_bytes, " bytes"));
  }
  if (absl::Status status = ReadExactly(file.get(), data.get(), data_bytes, path); !status.ok()) return status;

  SafetensorsFile result;
  result.metadata_ = std::move(header.metadata);
  result.tensors_ = std::move(header.tensors);
  result.data_ = data.get();
  result.owner_ = std::move(data);
  return result;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(std::string bytes) {
  const auto file_bytes = static_cast<std::int64_t>(bytes.size());
  if (file_bytes < kLengthBytes) return TooShort(file_bytes);
  const absl::StatusOr<std::int64_t> header_bytes = CheckedHeaderLength(bytes.data(), file_bytes);
  if (!header_bytes.ok()) return header_bytes.status();
  HeaderReader header;
  if (absl::Status status =
          ReadHeader(bytes.data() + kLengthBytes, *header_bytes, file_bytes - kLengthBytes - *header_bytes, header);
      !status.ok()) {
    return status;
  }
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  SafetensorsFile result;
  result.metadata_ = std::move(header.metadata);
  result.tensors_ = std::move(header.tensors);
  result.data_ = reinterpret_cast<const std::byte*>(owner->data()) + kLengthBytes + *header_bytes;
  result.owner_ = std::move(owner);
  return result;
}

const TensorInfo* SafetensorsFile::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

absl::Span<const std::byte> SafetensorsFile::Data(const TensorInfo& tensor) const {
  return {data_ + tensor.offset, static_cast<std::size_t>(tensor.size)};
}

absl::StatusOr<std::string> EncodeSafetensorsHeader(absl::Span<const TensorDescription> tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  std::string encoded(kLengthBytes, '\0');
  encoded += '{';
  try {
    if (!metadata.empty()) {
      absl::StrAppend(&encoded, Json(std::string(kMetadataKey)).dump(), ":", Json(metadata).dump(),
                      tensors.empty() ? "" : ",");
    }
    std::set<std::string_view> names = {kMetadataKey};
    std::int64_t offset = 0;
    for (const TensorDescription& tensor : tensors) {
      const auto wrong = [&](const std::string& what) {
        return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name), what));
      };
      const std::int64_t element_size = SafetensorsElementSize(tensor.dtype);
      if (element_size == 0) return wrong(absl::StrCat(" has the unknown dtype ", Quoted(tensor.dtype)));
      const std::int64_t elements = CountElements(tensor.shape, element_size);
      std::int64_t end = 0;
      if (elements < 0 || __builtin_add_overflow(offset, elements * element_size, &end)) {
        return wrong(": the product of its shape is negative or overflows");
      }
      if (!names.insert(tensor.name).second) return wrong(": the name is taken");
      absl::StrAppend(&encoded, names.size() > 2 ? "," : "", Json(tensor.name).dump(), R"(:{"dtype":")", tensor.dtype,
                      R"(","shape":[)", absl::StrJoin(tensor.shape, ","), R"(],"data_offsets":[)", offset, ",", end,
                      "]}");
      offset = end;
    }
  } catch (const Json::exception& exception) {
    return absl::InvalidArgumentError(absl::StrCat("a name or a metadata entry is not UTF-8: ", exception.what()));
  }
  encoded += '}';
  encoded.append((kLengthBytes - encoded.size() % kLengthBytes) % kLengthBytes, ' ');
  const std::uint64_t length = encoded.size() - kLengthBytes;
  if (length > static_cast<std::uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header has ", length, " bytes; at most ", kMaxSafetensorsHeaderBytes, " are readable"));
  }
  std::memcpy(encoded.data(), &length, sizeof(length));
  return encoded;
}

absl::StatusOr<std::int64_t> ReadSafetensorsHeaderBytes(std::string_view beginning, std::int64_t file_bytes) {
  const std::int64_t available = std::min(file_bytes, static_cast<std::int64_t>(beginning.size()));
  if (available < kLengthBytes) return TooShort(available);
  const absl::StatusOr<std::int64_t> json_bytes = CheckedHeaderLength(beginning.data(), file_bytes);
  if (!json_bytes.ok()) return json_bytes.status();
  return kLengthBytes + *json_bytes;
}

absl::StatusOr<SafetensorsBeginning> ReadSafetensorsBeginning(std::string_view beginning, std::int64_t file_bytes) {
  const absl::StatusOr<std::int64_t> header_bytes = ReadSafetensorsHeaderBytes(beginning, file_bytes);
  if (!header_bytes.ok()) return header_bytes.status();
  const std::string_view json = beginning.substr(kLengthBytes, static_cast<std::size_t>(*header_bytes - kLengthBytes));
  HeaderReader header(HeaderReader::Extent::kLeadingMetadata);
  Json::sax_parse(json.begin(), json.end(), &header);
  if (!header.metadata_read()) {
    return absl::InvalidArgumentError(absl::StrCat("the header does not begin with metadata: ",
                                                   header.error.empty() ? "there are none" : header.error));
  }
  return SafetensorsBeginning{*header_bytes, std::move(header.metadata)};
}

absl::Status WriteSafetensors(const std::string& path, absl::Span<const TensorToWrite> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<TensorDescription> descriptions;
  descriptions.reserve(tensors.size());
  for (const TensorToWrite& tensor : tensors) descriptions.push_back({tensor.name, tensor.dtype, tensor.shape});
  const absl::StatusOr<std::string> header = EncodeSafetensorsHeader(descriptions, metadata);
  if (!header.ok()) return header.status();
  for (const TensorToWrite& tensor : tensors) {
    const std::int64_t element_size = SafetensorsElementSize(tensor.dtype);
    const std::int64_t needed = CountElements(tensor.shape, element_size) * element_size;
    if (static_cast<std::int64_t>(tensor.data.size()) != needed) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name), " has ", tensor.data.size(),
                                                     " bytes; its shape and dtype need ", needed));
    }
  }
  struct stat existing = {};
  if (::lstat(path.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode) && !S_ISLNK(existing.st_mode) &&
      !S_ISDIR(existing.st_mode)) {  // a directory stops the rename itself
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  // Random, since processes in different containers may share a directory and have equal process ids.
  std::random_device random;
  const std::string temporary =
      absl::StrCat(path, ".", absl::Hex(random()), absl::Hex(random(), absl::kZeroPad8), ".tmp");
  FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) return FileError(errno, "creating", temporary);
  absl::Status status =
      WriteFile(file, temporary, {reinterpret_cast<const std::byte*>(header->data()), header->size()}, tensors);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) status = FileError(errno, "renaming to", path);
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

}  // namespace gdpcache
