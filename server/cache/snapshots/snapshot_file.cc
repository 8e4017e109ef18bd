#include "server/cache/snapshots/snapshot_file.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/safetensors/safetensors.h"
#include "server/cache/errors.h"

namespace gdpcache::cache {
namespace {

constexpr std::string_view kFormat = "gdpcache-snapshot";
constexpr std::size_t kChecksumDigits = 2 * std::tuple_size_v<SnapshotChecksum>;
constexpr std::string_view kBeforeChecksum = R"("checksum":")";
constexpr std::int64_t kLeastTensorBytes = 60;  // of one tensor's text in a header

struct StateType {
  kernels::DataType dtype;
  absl::string_view safetensors;
};
constexpr std::array<StateType, 3> kStateTypes = {{{kernels::DataType::kFloat32, "F32"},
                                                   {kernels::DataType::kBFloat16, "BF16"},
                                                   {kernels::DataType::kFloat16, "F16"}}};

absl::string_view TypeName(kernels::DataType dtype) {
  const std::string_view name = kernels::Name(dtype);
  return {name.data(), name.size()};
}

bool StandsForItself(unsigned char c) { return c >= 0x20 && c < 0x7F && c != '%' && c != '"' && c != '\\'; }

std::string EncodeBytes(absl::string_view bytes) {
  constexpr absl::string_view kDigits = "0123456789ABCDEF";
  std::string text;
  text.reserve(bytes.size());
  for (const unsigned char c : bytes) {
    if (StandsForItself(c)) {
      text += static_cast<char>(c);
    } else {
      text += {'%', kDigits[c >> 4], kDigits[c & 0xF]};
    }
  }
  return text;
}

std::string ToHex(absl::string_view bytes) { return absl::BytesToHexString(bytes); }

std::string ToHex(const SnapshotChecksum& checksum) {
  return ToHex(absl::string_view(reinterpret_cast<const char*>(checksum.data()), checksum.size()));
}

absl::string_view AsText(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

absl::Status CheckRecord(const SnapshotRecord& record) {
  if (absl::Status status = record.space.geometry().Validate(); !status.ok()) return status;
  if (absl::Status status = CheckSnapshotKey("key", record.key); !status.ok()) return status;
  if (record.position < 0) {
    return InvalidField("position", absl::StrCat("is ", record.position, "; it must not be negative"));
  }
  return absl::OkStatus();
}

std::vector<TensorDescription> DescribeTensors(const SnapshotSpace& space) {
  const auto* const type = std::find_if(kStateTypes.begin(), kStateTypes.end(),
                                        [&](const StateType& entry) { return entry.dtype == space.state_dtype; });
  std::vector<TensorDescription> tensors;
  for (std::int64_t layer = 0; layer < space.layers; ++layer) {
    tensors.push_back({absl::StrCat("layer.", layer, ".state"),
                       std::string(type->safetensors),
                       {space.heads, space.key_dim, space.value_dim}});
  }
  for (std::int64_t layer = 0; layer < space.layers && space.auxiliary_bytes > 0; ++layer) {
    tensors.push_back({absl::StrCat("layer.", layer, ".auxiliary"), "U8", {space.auxiliary_bytes}});
  }
  return tensors;
}

using Metadata = std::map<std::string, std::string>;

/// With zeros for the checksum.
Metadata MetadataOf(const SnapshotRecord& record) {
  const SnapshotSpace& space = record.space;
  return {
      {"format", std::string(kFormat)},
      {"format_version", absl::StrCat(kSnapshotFormatVersion)},
      {"layout_version", absl::StrCat(kStateLayoutVersion)},
      {"tenant", EncodeBytes(space.tenant)},
      {"fingerprint", EncodeBytes(space.fingerprint)},
      {"layers", absl::StrCat(space.layers)},
      {"heads", absl::StrCat(space.heads)},
      {"key_dim", absl::StrCat(space.key_dim)},
      {"value_dim", absl::StrCat(space.value_dim)},
      {"num_householder", absl::StrCat(space.num_householder)},
      {"state_dtype", std::string(kernels::Name(space.state_dtype))},
      {"auxiliary_bytes", absl::StrCat(space.auxiliary_bytes)},
      {"key", ToHex(record.key)},
      {"position", absl::StrCat(record.position)},
      {"checksum", std::string(kChecksumDigits, '0')},
  };
}

/// With zeros for the checksum. `unknown` is written as it is.
absl::StatusOr<std::string> EncodeHeader(const SnapshotRecord& record, const Metadata& unknown = {}) {
  const SnapshotSpace& space = record.space;
  Metadata metadata = MetadataOf(record);
  metadata.insert(unknown.begin(), unknown.end());
  std::size_t metadata_bytes = 64;  // the length, the braces and the name of the whole
  for (const auto& [name, value] : metadata) metadata_bytes += name.size() + value.size() + 6;
  if (metadata_bytes > static_cast<std::size_t>(kMaxSnapshotMetadataBytes)) {
    return InvalidField("fingerprint", absl::StrCat("has ", space.fingerprint.size(), " bytes and the tenant ",
                                                    space.tenant.size(), "; their text in a file is too long"));
  }
  return EncodeSafetensorsHeader(DescribeTensors(space), metadata);
}

/// Writes the checksum over the zeros.
void SetChecksum(std::string& header, const SnapshotChecksum& checksum) {
  // Inside of somebody else's text the quotation marks would be escaped.
  const std::size_t place = header.find(kBeforeChecksum) + kBeforeChecksum.size();
  header.replace(place, kChecksumDigits, ToHex(checksum));
}

/// Takes the entries of a file's metadata one by one; the first that is missing or not as we write it is the status.
class MetadataReader {
 public:
  explicit MetadataReader(const Metadata& metadata) : metadata_(metadata) {}

  const std::string& Text(absl::string_view name) {
    static const std::string kNone;
    const auto found = metadata_.find(std::string(name));
    if (found == metadata_.end()) {
      status_.Update(absl::DataLossError(absl::StrCat("the metadata have no ", name)));
      return kNone;
    }
    return found->second;
  }

  std::int64_t Number(absl::string_view name) {
    const std::string& text = Text(name);
    std::int64_t value = 0;
    if (!absl::SimpleAtoi(text, &value) || absl::StrCat(value) != text) Refuse(name, "is no decimal number");
    return value;
  }

  std::string Bytes(absl::string_view name) {
    const std::string& text = Text(name);
    std::string bytes;
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (text[at] != '%') {
        bytes += text[at];
      } else if (text.size() - at > 2 && absl::ascii_isxdigit(text[at + 1]) && absl::ascii_isxdigit(text[at + 2])) {
        bytes += absl::HexStringToBytes(absl::string_view(text).substr(at + 1, 2));
        at += 2;
      }
    }
    if (EncodeBytes(bytes) != text) Refuse(name, "is not encoded as it should be");
    return bytes;
  }

  std::string Hex(absl::string_view name) {
    const std::string& text = Text(name);
    std::string bytes;
    if (std::all_of(text.begin(), text.end(), absl::ascii_isxdigit)) bytes = absl::HexStringToBytes(text);
    if (ToHex(bytes) != text) Refuse(name, "is not hexadecimal");
    return bytes;
  }

  kernels::DataType Dtype(absl::string_view name) {
    const std::string& text = Text(name);
    for (const StateType& type : kStateTypes) {
      if (TypeName(type.dtype) == text) return type.dtype;
    }
    Refuse(name, "is no state dtype");
    return kernels::DataType::kFloat32;
  }

  void Refuse(absl::string_view name, absl::string_view why) {
    status_.Update(absl::DataLossError(absl::StrCat("the metadata's ", name, " ", Quoted(Text(name)), " ", why)));
  }

  const absl::Status& status() const { return status_; }

 private:
  const Metadata& metadata_;
  absl::Status status_;
};

absl::Status CheckVersion(MetadataReader& metadata, absl::string_view name, std::int64_t known) {
  const std::int64_t version = metadata.Number(name);
  if (!metadata.status().ok() || version == known) return metadata.status();
  return absl::FailedPreconditionError(absl::StrCat(name, " is ", version, "; only ", known, " can be read"));
}

absl::Status TooManyBytes(std::int64_t file_bytes) {
  return absl::DataLossError(absl::StrCat("there is more than the file's ", file_bytes, " bytes"));
}

/// Some bytes of a header for a message.
std::string Excerpt(absl::string_view header, std::size_t at) {
  return Quoted(header.substr(std::min(at, header.size()), 32));
}

}  // namespace

absl::Status CheckSameSpace(const SnapshotSpace& actual, const SnapshotSpace& expected) {
  if (actual == expected) return absl::OkStatus();
  std::string difference = DescribeDifference(actual.geometry(), expected.geometry());
  const auto append = [&](absl::string_view field, const std::string& a, const std::string& b) {
    if (a == b) return;
    absl::StrAppend(&difference, difference.empty() ? "" : "; ", field, " is ", Quoted(a), ", not ", Quoted(b));
  };
  append("fingerprint", actual.fingerprint, expected.fingerprint);
  append("tenant", actual.tenant, expected.tenant);
  return absl::FailedPreconditionError(absl::StrCat("the snapshot is of another space: ", difference));
}

absl::Status CheckParts(const SnapshotSpace& space, absl::Span<const SnapshotPart> parts) {
  if (static_cast<std::int64_t>(parts.size()) != space.layers) {
    return absl::InternalError(absl::StrCat("there are ", parts.size(), " parts; the space has ", space.layers));
  }
  const auto state_bytes = static_cast<std::size_t>(space.state_bytes());
  const auto auxiliary_bytes = static_cast<std::size_t>(space.auxiliary_bytes);
  for (std::size_t layer = 0; layer < parts.size(); ++layer) {
    if (parts[layer].state.size != state_bytes || parts[layer].auxiliary.size != auxiliary_bytes) {
      return absl::InternalError(absl::StrCat("part ", layer, " has ", parts[layer].state.size, " + ",
                                              parts[layer].auxiliary.size, " bytes, not ", state_bytes, " + ",
                                              auxiliary_bytes));
    }
  }
  return absl::OkStatus();
}

std::vector<SnapshotPart> PartsIn(const SnapshotSpace& space, void* memory) {
  std::vector<SnapshotPart> parts(static_cast<std::size_t>(space.layers));
  auto* next = static_cast<std::byte*>(memory);
  for (SnapshotPart& part : parts) {
    part.state = {next, static_cast<std::size_t>(space.state_bytes())};
    next += space.state_bytes();
  }
  for (SnapshotPart& part : parts) {
    part.auxiliary = {next, static_cast<std::size_t>(space.auxiliary_bytes)};
    next += space.auxiliary_bytes;
  }
  return parts;
}

void AppendDataRanges(absl::Span<const SnapshotPart> parts, std::int64_t offset, std::int64_t size,
                      std::vector<kernels::ByteRange>& ranges) {
  if (parts.empty()) return;
  const auto state_bytes = static_cast<std::int64_t>(parts.front().state.size);
  const auto auxiliary_bytes = static_cast<std::int64_t>(parts.front().auxiliary.size);
  const std::int64_t all_state_bytes = state_bytes * static_cast<std::int64_t>(parts.size());
  while (size > 0) {
    const bool in_states = offset < all_state_bytes;
    const std::int64_t tensor_bytes = in_states ? state_bytes : auxiliary_bytes;
    const std::int64_t from_first = in_states ? offset : offset - all_state_bytes;
    const SnapshotPart& part = parts[static_cast<std::size_t>(from_first / tensor_bytes)];
    const std::int64_t inside = from_first % tensor_bytes;
    const std::int64_t taken = std::min(size, tensor_bytes - inside);
    auto* const data = static_cast<std::byte*>(in_states ? part.state.data : part.auxiliary.data);
    ranges.push_back({data + inside, static_cast<std::size_t>(taken)});
    offset += taken;
    size -= taken;
  }
}

SnapshotFileWriter::SnapshotFileWriter(std::string header, std::int64_t data_bytes)
    : header_(std::move(header)), data_bytes_(data_bytes) {
  hasher_.Add(AsBytes(header_));
}

absl::StatusOr<SnapshotFileWriter> SnapshotFileWriter::Create(const SnapshotRecord& record) {
  if (absl::Status status = CheckRecord(record); !status.ok()) return status;
  absl::StatusOr<std::string> header = EncodeHeader(record);
  if (!header.ok()) return header.status();
  return SnapshotFileWriter(*std::move(header), record.space.snapshot_bytes());
}

std::string SnapshotFileWriter::header() const {
  std::string header = header_;
  SetChecksum(header, checksum());
  return header;
}

absl::StatusOr<std::string> EncodeSnapshotHeader(const SnapshotRecord& record, absl::Span<const SnapshotPart> parts) {
  absl::StatusOr<SnapshotFileWriter> writer = SnapshotFileWriter::Create(record);
  if (!writer.ok()) return writer.status();
  if (absl::Status status = CheckParts(record.space, parts); !status.ok()) return status;
  std::vector<kernels::ByteRange> ranges;
  AppendDataRanges(parts, 0, record.space.snapshot_bytes(), ranges);
  for (const kernels::ByteRange& range : ranges) {
    writer->AddData({static_cast<const std::byte*>(range.data), range.size});
  }
  return writer->header();
}

absl::StatusOr<SnapshotFileInfo> ReadSnapshotMetadata(absl::string_view beginning, std::int64_t file_bytes) {
  absl::StatusOr<SafetensorsBeginning> file =
      ReadSafetensorsBeginning({beginning.data(), beginning.size()}, file_bytes);
  if (!file.ok()) return absl::DataLossError(file.status().message());
  const auto format = file->metadata.find("format");
  if (format == file->metadata.end() || format->second != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("this is no snapshot: its metadata have no format '", std::string(kFormat), "'"));
  }
  MetadataReader metadata(file->metadata);
  if (absl::Status status = CheckVersion(metadata, "format_version", kSnapshotFormatVersion); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckVersion(metadata, "layout_version", kStateLayoutVersion); !status.ok()) return status;

  SnapshotFileInfo info;
  info.header_bytes = file->header_bytes;
  SnapshotSpace& space = info.record.space;
  space.tenant = metadata.Bytes("tenant");
  space.fingerprint = metadata.Bytes("fingerprint");
  space.layers = metadata.Number("layers");
  space.heads = metadata.Number("heads");
  space.key_dim = metadata.Number("key_dim");
  space.value_dim = metadata.Number("value_dim");
  space.num_householder = metadata.Number("num_householder");
  space.state_dtype = metadata.Dtype("state_dtype");
  space.auxiliary_bytes = metadata.Number("auxiliary_bytes");
  info.record.key = metadata.Hex("key");
  info.record.position = metadata.Number("position");
  const std::string checksum = metadata.Hex("checksum");
  if (checksum.size() != info.checksum.size()) metadata.Refuse("checksum", "has not 32 digits");
  if (!metadata.status().ok()) return metadata.status();
  std::copy(checksum.begin(), checksum.end(), info.checksum.begin());
  if (absl::Status status = CheckRecord(info.record); !status.ok()) {
    return absl::DataLossError(absl::StrCat("the metadata are wrong: ", status.message()));
  }
  info.unknown_metadata = std::move(file->metadata);
  for (const auto& [name, value] : MetadataOf(info.record)) info.unknown_metadata.erase(name);
  if (space.layers > info.header_bytes / kLeastTensorBytes) {
    return absl::DataLossError(
        absl::StrCat("layers is ", space.layers, "; a header of ", info.header_bytes, " bytes cannot tell so many"));
  }
  if (file_bytes - info.header_bytes != space.snapshot_bytes()) {
    return absl::DataLossError(absl::StrCat("the file has ", file_bytes, " bytes; header and snapshot have ",
                                            info.header_bytes, " + ", space.snapshot_bytes()));
  }
  return info;
}

absl::Status SnapshotFileReader::ReadHeader(absl::Span<const std::byte>& bytes) {
  constexpr std::int64_t kLengthBytes = 8;
  while (!has_header_ && !bytes.empty()) {
    // First the length, then as much as it says.
    const std::int64_t wanted = received_ < kLengthBytes ? kLengthBytes : info_.header_bytes;
    const std::size_t taken = std::min(bytes.size(), static_cast<std::size_t>(wanted - received_));
    absl::StrAppend(&header_, AsText(bytes.subspan(0, taken)));
    bytes.remove_prefix(taken);
    received_ += static_cast<std::int64_t>(taken);
    if (received_ < wanted) continue;
    if (wanted == kLengthBytes) {
      const absl::StatusOr<std::int64_t> size =
          ReadSafetensorsHeaderBytes({header_.data(), header_.size()}, file_bytes_);
      if (!size.ok()) return absl::DataLossError(size.status().message());
      info_.header_bytes = *size;
    }
    if (received_ == info_.header_bytes) {
      if (absl::Status status = CheckHeader(); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status SnapshotFileReader::CheckHeader() {
  absl::StatusOr<SnapshotFileInfo> info =
      ReadSnapshotMetadata(absl::string_view(header_).substr(0, kMaxSnapshotMetadataBytes), file_bytes_);
  if (!info.ok()) return info.status();
  absl::StatusOr<std::string> expected = EncodeHeader(info->record, info->unknown_metadata);
  if (!expected.ok()) return absl::DataLossError(expected.status().message());
  hasher_.Add(AsBytes(*expected));
  SetChecksum(*expected, info->checksum);
  if (*expected != header_) {
    const auto at = static_cast<std::size_t>(
        std::mismatch(expected->begin(), expected->end(), header_.begin(), header_.end()).first - expected->begin());
    return absl::DataLossError(absl::StrCat("the header is not that of the snapshot its metadata describe: at byte ",
                                            at, " it has ", Excerpt(header_, at), ", not ", Excerpt(*expected, at)));
  }
  info_ = *std::move(info);
  has_header_ = true;
  header_ = std::string();
  return absl::OkStatus();
}

absl::Status SnapshotFileReader::AddData(absl::Span<const std::byte> bytes) {
  if (static_cast<std::int64_t>(bytes.size()) > file_bytes_ - received_) return TooManyBytes(file_bytes_);
  hasher_.Add(bytes);
  received_ += static_cast<std::int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status SnapshotFileReader::ReadData(absl::Span<const std::byte> bytes, absl::Span<const SnapshotPart> parts,
                                          std::vector<kernels::ByteCopy>& copies) {
  const std::int64_t offset = received_ - info_.header_bytes;
  if (absl::Status status = AddData(bytes); !status.ok()) return status;
  std::vector<kernels::ByteRange> ranges;
  AppendDataRanges(parts, offset, static_cast<std::int64_t>(bytes.size()), ranges);
  const std::byte* from = bytes.data();
  for (const kernels::ByteRange& range : ranges) {
    copies.push_back({range.data, from, range.size});
    from += range.size;
  }
  return absl::OkStatus();
}

absl::Status SnapshotFileReader::Finish() const {
  if (received_ != file_bytes_ || !has_header_) {
    return absl::DataLossError(absl::StrCat("the file ends after ", received_, " of ", file_bytes_, " bytes"));
  }
  const SnapshotChecksum checksum = hasher_.checksum();
  if (checksum != info_.checksum) {
    return absl::DataLossError(
        absl::StrCat("the file's checksum is ", ToHex(checksum), "; its header says ", ToHex(info_.checksum)));
  }
  return absl::OkStatus();
}

}  // namespace gdpcache::cache
