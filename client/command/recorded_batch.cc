#include "client/command/recorded_batch.h"

#include <cstring>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/command/text.h"

namespace gdpcache::command {
namespace {

using Shape = std::vector<std::int64_t>;

// Of one call, for every server. A file without rows may claim any number of empty ones.
constexpr std::int64_t kMaxSequences = 65'536;

/// The float types by their names in safetensors files.
std::optional<DataType> FloatType(const std::string& dtype) {
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    if (dtype == SafetensorsDtype(type)) return type;
  }
  return std::nullopt;
}

/// Takes the batch out of its file; the first error stays and stops the rest.
class Loader {
 public:
  explicit Loader(RecordedBatch* batch) : batch_(*batch) {}

  absl::Status Load() {
    LoadOptions();
    if (status_.ok()) LoadInputs();
    if (status_.ok()) LoadSequences();
    if (status_.ok()) LoadStates();
    if (status_.ok()) LoadOutputs();
    return status_;
  }

 private:
  template <typename... Parts>
  void Fail(const Parts&... parts) {
    status_.Update(absl::InvalidArgumentError(absl::StrCat(batch_.path, ": ", parts...)));
  }

  const std::string* Metadata(const std::string& key) {
    const auto found = batch_.file.metadata().find(key);
    return found == batch_.file.metadata().end() ? nullptr : &found->second;
  }

  /// One of the values allowed.
  template <typename T>
  void Choice(const std::string& key, const std::map<std::string, T>& values, T* out) {
    const std::string* text = Metadata(key);
    if (text == nullptr) return Fail("the metadata has no '", key, "'");
    const auto found = values.find(*text);
    if (found == values.end()) return Fail("metadata '", key, "' is '", *text, "', which has no meaning");
    *out = found->second;
  }

  void Count(const std::string& key, bool required, std::int64_t* out) {
    const std::string* text = Metadata(key);
    if (text == nullptr) {
      if (required) Fail("the metadata has no '", key, "'");
      return;
    }
    if (!absl::SimpleAtoi(*text, out) || *out < 1) Fail("metadata '", key, "' is '", *text, "', not a positive number");
  }

  void Error(const std::string& key, std::optional<double>* out) {
    const std::string* text = Metadata(key);
    if (text == nullptr) return;
    double value = 0;
    if (!absl::SimpleAtod(*text, &value) || !(value >= 0)) {
      return Fail("metadata '", key, "' is '", *text, "', not a relative error");
    }
    *out = value;
  }

  /// A float tensor of exactly this shape and, if given, dtype; absent where the file has none.
  std::optional<ConstTensor> Optional(const std::string& name, const Shape& shape,
                                      std::optional<DataType> dtype = std::nullopt) {
    const TensorInfo* info = batch_.file.Find(name);
    if (info == nullptr) return std::nullopt;
    const std::optional<DataType> type = FloatType(info->dtype);
    if (!type || (dtype && *type != *dtype)) {
      Fail("tensor ", name, " is ", info->dtype, " instead of ",
           dtype ? SafetensorsDtype(*dtype) : std::string("F32, BF16 or F16"));
      return std::nullopt;
    }
    if (info->shape != shape) {
      Fail("tensor ", name, " has the shape ", FormatShape(info->shape), " instead of ", FormatShape(shape));
      return std::nullopt;
    }
    return ConstTensor{*type, shape, batch_.file.Data(*info).data()};
  }

  ConstTensor Required(const std::string& name, const Shape& shape, std::optional<DataType> dtype = std::nullopt) {
    const std::optional<ConstTensor> tensor = Optional(name, shape, dtype);
    if (!tensor) Fail("there is no tensor ", name);
    return tensor.value_or(ConstTensor{});
  }

  /// A list of I32 or I64.
  std::vector<std::int64_t> Integers(const TensorInfo& info) {
    std::vector<std::int64_t> values;
    if (info.shape.size() != 1 || (info.dtype != "I32" && info.dtype != "I64")) {
      Fail("tensor ", info.name, " is ", info.dtype, " ", FormatShape(info.shape), " instead of a list of I32 or I64");
      return values;
    }
    const std::byte* data = batch_.file.Data(info).data();
    for (std::int64_t i = 0; i < info.elements; ++i) {
      if (info.dtype == "I32") {
        std::int32_t value = 0;
        std::memcpy(&value, data + i * 4, 4);
        values.push_back(value);
      } else {
        std::int64_t value = 0;
        std::memcpy(&value, data + i * 8, 8);
        values.push_back(value);
      }
    }
    return values;
  }

  void LoadOptions() {
    static const std::map<std::string, bool> kBooleans = {{"true", true}, {"false", false}};
    const std::string* name = Metadata("name");
    batch_.name = name == nullptr ? batch_.path : *name;
    Count("num_householder", true, &batch_.num_householder);
    Count("chunk_size", true, &batch_.chunk_size);
    Count("batch", false, &batch_.batch);
    Choice<DataType>(
        "states_dtype",
        {{"float32", DataType::kFloat32}, {"bfloat16", DataType::kBFloat16}, {"float16", DataType::kFloat16}},
        &batch_.states_dtype);
    Choice("save_new_value", kBooleans, &batch_.save_new_value);
    Choice("output_final_state", kBooleans, &batch_.output_final_state);
    Choice<InitialState>(
        "initial_state",
        {{"slot", InitialState::kSlot}, {"dense", InitialState::kTensor}, {"zero", InitialState::kZero}},
        &batch_.initial_state_source);
    Error("triton_err_h", &batch_.error_h);
    Error("triton_err_v_new", &batch_.error_v_new);
    Error("triton_err_state", &batch_.error_state);
  }

  void LoadInputs() {
    const TensorInfo* k = batch_.file.Find("k");
    const TensorInfo* u = batch_.file.Find("u");
    if (k == nullptr || u == nullptr) return Fail("there is no tensor ", k == nullptr ? "k" : "u");
    if (k->shape.size() != 3 || u->shape.size() != 3) {
      return Fail("k has the shape ", FormatShape(k->shape), " and u ", FormatShape(u->shape),
                  " instead of [T, H, K] and [T, H, V]");
    }
    batch_.tokens = k->shape[0];
    batch_.heads = k->shape[1];
    batch_.key_dim = k->shape[2];
    batch_.value_dim = u->shape[2];
    if (batch_.heads < 1 || batch_.key_dim < 1 || batch_.value_dim < 1) {
      return Fail("k has the shape ", FormatShape(k->shape), " and u ", FormatShape(u->shape),
                  ": H, K and V must be 1 or more");
    }
    batch_.k = Required("k", k->shape);
    if (!status_.ok()) return;
    batch_.w = Required("w", k->shape, batch_.k.dtype);
    batch_.u = Required("u", {batch_.tokens, batch_.heads, batch_.value_dim}, batch_.k.dtype);
    batch_.g = Optional("g", {batch_.tokens, batch_.heads}, DataType::kFloat32);
  }

  void LoadSequences() {
    const TensorInfo* cu_seqlens = batch_.file.Find("cu_seqlens");
    if (cu_seqlens == nullptr) {
      if (batch_.batch == 0) batch_.batch = 1;
      if (batch_.batch > kMaxSequences) {
        return Fail("metadata 'batch' is ", batch_.batch, "; one call may have ", kMaxSequences, " sequences");
      }
      if (batch_.tokens % batch_.batch != 0) {
        return Fail("T is ", batch_.tokens, ", which is no multiple of the batch of ", batch_.batch);
      }
      for (std::int64_t n = 0; n <= batch_.batch; ++n) batch_.begins.push_back(batch_.tokens / batch_.batch * n);
    } else {
      if (batch_.batch != 0) return Fail("there are both cu_seqlens and metadata 'batch'");
      batch_.cu_seqlens = Integers(*cu_seqlens);
      batch_.begins = batch_.cu_seqlens;
    }
    if (!status_.ok()) return;
    if (batch_.begins.empty() || batch_.begins.front() != 0) return Fail("cu_seqlens does not start at 0");
    batch_.sequences = static_cast<std::int64_t>(batch_.begins.size()) - 1;
    for (std::size_t n = 0; n + 1 < batch_.begins.size(); ++n) {
      const std::int64_t end = batch_.begins[n + 1];
      if (end < batch_.begins[n] || end > batch_.tokens || end % batch_.num_householder != 0) {
        return Fail("sequence ", n, " ends at ", end, ", which must be a multiple of num_householder (",
                    batch_.num_householder, ") between ", batch_.begins[n], " and T (", batch_.tokens, ")");
      }
      const std::int64_t tokens = (end - batch_.begins[n]) / batch_.num_householder;
      batch_.boundaries += tokens / batch_.chunk_size + (tokens % batch_.chunk_size != 0 ? 1 : 0);
    }
  }

  void LoadStates() {
    if (const TensorInfo* before = batch_.file.Find("state.before"); before != nullptr) {
      if (before->shape.empty()) return Fail("tensor state.before is a scalar");
      batch_.state_before =
          Optional("state.before", {before->shape[0], batch_.heads, batch_.key_dim, batch_.value_dim});
      if (status_.ok() && before->shape[0] < 1) Fail("tensor state.before has no slot");
    }
    if (const TensorInfo* indices = batch_.file.Find("state_indices"); indices != nullptr) {
      batch_.state_indices = Integers(*indices);
      CheckStateIndices();
    }
    if (batch_.initial_state_source == InitialState::kTensor) {
      batch_.initial_state = Required("initial_state", States(batch_.sequences), DataType::kFloat32);
    }
    if (batch_.initial_state_source == InitialState::kSlot && batch_.state_indices.empty() && batch_.sequences > 0) {
      Fail("metadata 'initial_state' is 'slot', but there are no state_indices");
    }
  }

  void CheckStateIndices() {
    if (!status_.ok()) return;
    if (static_cast<std::int64_t>(batch_.state_indices.size()) != batch_.sequences) {
      return Fail("there are ", batch_.state_indices.size(), " state_indices for ", batch_.sequences, " sequences");
    }
    if (!batch_.state_before) return Fail("there are state_indices, but no state.before");
    const std::int64_t slots = batch_.state_before->shape[0];
    for (std::size_t n = 0; n < batch_.state_indices.size(); ++n) {
      const std::int64_t slot = batch_.state_indices[n];
      if (slot < -1 || slot >= slots) {
        return Fail("state_indices[", n, "] is ", slot, "; state.before has ", slots, " slots");
      }
    }
  }

  void LoadOutputs() {
    batch_.out_h = Optional("out.h", States(batch_.boundaries), batch_.states_dtype);
    batch_.out_v_new = Optional("out.v_new", batch_.u.shape, batch_.k.dtype);
    if (batch_.state_before) {
      batch_.out_state = Optional("out.state", batch_.state_before->shape, batch_.state_before->dtype);
    }
    batch_.out_final_state = Optional("out.final_state", States(batch_.sequences), DataType::kFloat32);
  }

  Shape States(std::int64_t count) const { return {count, batch_.heads, batch_.key_dim, batch_.value_dim}; }

  RecordedBatch& batch_;
  absl::Status status_;
};

}  // namespace

std::string SafetensorsDtype(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return "F32";
    case DataType::kBFloat16:
      return "BF16";
    case DataType::kFloat16:
      return "F16";
    case DataType::kUInt8:
      return "U8";
  }
  return "U8";
}

absl::StatusOr<RecordedBatch> LoadRecordedBatch(const std::string& path) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  RecordedBatch batch(*std::move(file));
  batch.path = path;
  const absl::Status status = Loader(&batch).Load();
  if (!status.ok()) return status;
  return batch;
}

}  // namespace gdpcache::command
