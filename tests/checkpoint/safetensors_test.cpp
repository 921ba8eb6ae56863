// safetensors files: the same bytes as Python's library, round trips, a violation of every rule of the format, and
// damaged files (truncated at any byte, any header byte changed), which must cause a UserError or a valid read.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "core/error.h"
#include "testing/largest_allocation.h"
#include "testing/temporary_folder.h"

namespace te {
namespace {

namespace fs = std::filesystem;
using testing::largest_allocation;

class SafetensorsTest : public ::testing::Test {
 protected:
  fs::path path(const std::string& name = "x.safetensors") const { return folder_ / name; }

  fs::path store(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
    return path();
  }

  /// Changes one byte of path() in place, which is faster than rewriting the file thousands of times.
  void patch(size_t at, char value) const {
    std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at)).put(value);
  }

  te::testing::TemporaryFolder folder_;
};

std::string load(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string length_prefix(uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

std::string file_bytes(const std::string& json, const std::string& data) {
  return length_prefix(json.size()) + json + data;
}

/// The error message of opening `file`; empty if it can be opened.
std::string open_error(const fs::path& file) {
  try {
    SafetensorsReader reader(file);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// Written by Python: safetensors 0.8.0, save({"w": F32 [[1, 2], [3, -4]], "b": BF16 [1, -2], "q": E4M3 [1,
// 448], "g": E5M2 [-1, 57344, 0], "ids": I32 [[5, -1]], "a/n": I64 9, "u": U8 [250], "empty": F32 [0, 3],
// "s": U16 [65535], 'k"é': F32 [0.5]}, metadata={"note": 'tiny\n"é" \x01'}).
const std::string kGoldenHeader =
    R"({"__metadata__":{"note":"tiny\n\"é\" \u0001"},"a/n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
    R"("empty":{"dtype":"F32","shape":[0,3],"data_offsets":[8,8]},"k\"é":{"dtype":"F32","shape":[1],"data_offsets":)"
    R"([8,12]},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[12,28]},"ids":{"dtype":"I32","shape":[1,2],)"
    R"("data_offsets":[28,36]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[36,40]},"s":{"dtype":"U16","shape":)"
    R"([1],"data_offsets":[40,42]},"q":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[42,44]},"g":{"dtype":)"
    R"("F8_E5M2","shape":[3],"data_offsets":[44,47]},"u":{"dtype":"U8","shape":[1],"data_offsets":[47,48]}}       )";
const unsigned char kGoldenData[] = {0x09, 0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0x3f,
                                     0,    0,    0x80, 0x3f, 0,    0,    0,    0x40, 0,    0,    0x40, 0x40,
                                     0,    0,    0x80, 0xc0, 0x05, 0,    0,    0,    0xff, 0xff, 0xff, 0xff,
                                     0x80, 0x3f, 0,    0xc0, 0xff, 0xff, 0x38, 0x7e, 0xbc, 0x7b, 0,    0xfa};
std::string golden() {
  return length_prefix(0x270) + kGoldenHeader +
         std::string(reinterpret_cast<const char*>(kGoldenData), sizeof(kGoldenData));
}

const std::vector<SafetensorsSpec> kGoldenSpecs = {
    {"w", DType::f32, {2, 2}}, {"b", DType::bf16, {2}},       {"q", DType::e4m3, {2}},
    {"g", DType::e5m2, {3}},   {"ids", DType::i32, {1, 2}},   {"a/n", DType::i64, {}},
    {"u", DType::u8, {1}},     {"empty", DType::f32, {0, 3}}, {"s", DType::u16, {1}},
    {"k\"é", DType::f32, {1}},
};

void write_golden(const fs::path& path) {
  SafetensorsWriter writer(path, kGoldenSpecs, {{"note", "tiny\n\"é\" \x01"}});
  writer.write("u", &kGoldenData[47], 1);
  writer.write("w", &kGoldenData[12], 5);  // in two parts, with other tensors between them
  writer.write("g", &kGoldenData[44], 3);
  writer.write("b", &kGoldenData[36], 4);
  writer.write("w", &kGoldenData[17], 11);
  writer.write("q", &kGoldenData[42], 2);
  writer.write("ids", &kGoldenData[28], 8);
  writer.write("a/n", &kGoldenData[0], 8);
  writer.write("k\"é", &kGoldenData[8], 4);
  writer.write("s", &kGoldenData[40], 2);
  writer.finish();
}

TEST_F(SafetensorsTest, WritesTheSameBytesAsPython) {
  write_golden(path());
  EXPECT_EQ(load(path()), golden());
  EXPECT_FALSE(fs::exists(path("x.safetensors.tmp")));
}

TEST_F(SafetensorsTest, ReadsAFileFromPython) {
  SafetensorsReader opened(store(golden()));
  SafetensorsReader reader = std::move(opened);  // the mapping moves along
  EXPECT_EQ(reader.metadata(), (SafetensorsMetadata{{"note", "tiny\n\"é\" \x01"}}));
  ASSERT_EQ(reader.tensors().size(), kGoldenSpecs.size());
  EXPECT_EQ(reader.tensors().front().name, "a/n");
  EXPECT_EQ(reader.tensors().back().name, "u");
  for (const SafetensorsSpec& spec : kGoldenSpecs) {
    const SafetensorsTensor& tensor = reader.at(spec.name);
    EXPECT_EQ(tensor.name, spec.name);
    EXPECT_EQ(tensor.dtype, spec.dtype) << spec.name;
    EXPECT_EQ(tensor.shape, spec.shape) << spec.name;
  }
  float w[4];
  ASSERT_EQ(reader.at("w").bytes, sizeof(w));
  std::memcpy(w, reader.at("w").data, sizeof(w));
  EXPECT_EQ(std::vector<float>(w, w + 4), (std::vector<float>{1, 2, 3, -4}));
  EXPECT_EQ(reader.at("empty").bytes, 0u);
  EXPECT_EQ(reader.at("u").data[0], std::byte{250});
  EXPECT_EQ(reader.find("v"), nullptr);
  EXPECT_THROW(reader.at("v"), UserError);
}

TEST_F(SafetensorsTest, ReadsForeignTypesAndUnpaddedHeaders) {
  const std::string json = R"({"h":{"dtype":"F16","shape":[1],"data_offsets":[1,3]},)"
                           R"("m":{"shape":[1],"data_offsets":[0,1],"dtype":"BOOL"}} )";
  SafetensorsReader reader(store(file_bytes(json, std::string("\1\0\x3c", 3))));
  EXPECT_EQ(reader.tensors()[0].name, "m");
  EXPECT_EQ(reader.at("h").file_dtype, "F16");
  EXPECT_EQ(reader.at("h").dtype, std::nullopt);
  EXPECT_EQ(reader.at("h").data[1], std::byte{0x3c});
  EXPECT_TRUE(SafetensorsReader(store(file_bytes("{}      ", ""))).tensors().empty());
}

TEST_F(SafetensorsTest, ReadsTheFixtures) {
  for (const char* model : {"gpt2_tiny", "llama_tiny", "qwen2_tiny"}) {
    const SafetensorsReader reader(fs::path(TE_SOURCE_DIR) / "tests" / "fixtures" /
                                   (std::string(model) + ".safetensors"));
    EXPECT_TRUE(reader.metadata().contains("model")) << model;
    EXPECT_EQ(reader.at("tokens").dtype, DType::i32);
    EXPECT_EQ(reader.at("logits").shape.size(), 3u);
    int parameters = 0;
    for (const SafetensorsTensor& tensor : reader.tensors()) {
      if (!tensor.name.starts_with("param/")) continue;
      ++parameters;
      for (const char* kind : {"grad/", "updated/"}) {
        const SafetensorsTensor& other = reader.at(kind + tensor.name.substr(6));
        EXPECT_EQ(other.shape, tensor.shape) << model << " " << other.name;
        EXPECT_NE(std::memcmp(other.data, tensor.data, tensor.bytes), 0) << model << " " << other.name;
      }
    }
    EXPECT_GT(parameters, 10) << model;
  }
}

TEST_F(SafetensorsTest, ReportsEveryViolatedRule) {
  struct Case {
    std::string json, data, expected;
  };
  const std::string four(4, 'x'), eight(8, 'x');
  const Case cases[] = {
      {"", "", "must be a JSON object"},
      {"        ", "", "must be a JSON object"},
      {"[]", "", "must be a JSON object"},
      {"\xef\xbb\xbf{}", "", "must be a JSON object"},
      {std::string("{}\0}", 4), "", "must be a JSON object"},
      {"{}{}", "", "not valid JSON at byte 3"},
      {R"({"a":})", "", "not valid JSON"},
      {"{\"a\xff\":1}", "", "not valid JSON"},
      {R"({"a":1})", "", R"(tensor "a": a number instead of an object)"},
      {R"({"__metadata__":[]})", "", R"("__metadata__": a list instead of an object)"},
      {R"({"__metadata__":{"k":1}})", "", R"("k" is a number, must be text)"},
      {R"({"__metadata__":{"k":{}}})", "", R"("k" is an object, must be text)"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", "", R"(the key "k" occurs twice)"},
      {R"({"a":{}})", "", R"(tensor "a": dtype is missing)"},
      {R"({"a":{"dtype":"U8","shape":[]}})", "", "data_offsets is missing"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})", four, R"(the key "x" is not part)"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", four,
       R"(the key "dtype" is given twice)"},
      {R"({"a":{"dtype":"F7","shape":[4],"data_offsets":[0,4]}})", four, R"(tensor "a": unknown dtype "F7")"},
      {R"({"a":{"dtype":1,"shape":[4],"data_offsets":[0,4]}})", four, "dtype has a number, must be text"},
      {R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", four, "shape has a number, must be a list"},
      {R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", four, "shape has a fraction"},
      {R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", four, "shape has a negative number"},
      {R"({"a":{"dtype":"U8","shape":["4"],"data_offsets":[0,4]}})", four, "shape has text"},
      {R"({"a":{"dtype":"U8","shape":[[4]],"data_offsets":[0,4]}})", four, "shape has a list"},
      {R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4]}})", four,
       "too large a number"},
      {R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,4]}})", four,
       "too large a number"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4]}})", four, "fewer than two numbers"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})", four,
       "data_offsets has a number, must be"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,5]}})", four, "outside the file's 4 bytes"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", four, "outside the file's 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", four, "F32 of shape [2] needs 8 bytes"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", four, "more than 2^64"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "", "more than 2^64"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", eight, "the tensors end after 4 bytes"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       eight, R"(tensor "a": the name occurs twice)"},
      {R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       eight, R"(tensor "b": data_offsets begin at 4 instead of 5, so tensors overlap)"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       eight, R"(tensor "b": data_offsets begin at 4 instead of 3, so tensors leave a gap)"},
      {R"({"a\nb)" + std::string(200, 'z') + R"(":1})", "", R"(tensor "a\nbzzz)"},
  };
  for (const Case& c : cases) {
    const std::string error = open_error(store(file_bytes(c.json, c.data)));
    EXPECT_NE(error.find(c.expected), error.npos) << c.json << "\n  gave: " << error;
    EXPECT_EQ(error.find(path().string() + ": "), 0u) << error;
    EXPECT_EQ(error.find('\n'), error.npos) << error;
    EXPECT_LT(error.size(), path().string().size() + 300);
  }
}

TEST_F(SafetensorsTest, RefusesAHeaderThatExceedsTheFile) {
  EXPECT_NE(open_error(store(length_prefix(~0ull) + "{}")).find("truncated or damaged"), std::string::npos);
  EXPECT_NE(open_error(store(length_prefix(3) + "{}")).find("truncated or damaged"), std::string::npos);
  EXPECT_NE(open_error(store("1234567")).find("too few"), std::string::npos);
  EXPECT_NE(open_error(path("absent")).find("cannot be opened"), std::string::npos);
  EXPECT_NE(open_error(folder_.path()).find("not a regular file"), std::string::npos);
  store(length_prefix(100'000'001));
  fs::resize_file(path(), 100'000'100);  // sparse
  EXPECT_NE(open_error(path()).find("exceeds the format's limit"), std::string::npos);
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  const std::string whole = golden();
  EXPECT_EQ(open_error(store(whole)), "");
  for (size_t size = whole.size(); size-- > 0;) {
    fs::resize_file(path(), size);
    largest_allocation = 0;
    EXPECT_NE(open_error(path()), "") << "cut to " << size << " bytes";
    EXPECT_LT(largest_allocation, 8 * whole.size());
  }
}

// Most changes are refused; some (such as a letter of a name) result in a valid file, whose tensors must be inside it.
TEST_F(SafetensorsTest, ChangedHeaderBytesAreHarmless) {
  const std::string whole = golden();
  const size_t header_end = 8 + kGoldenHeader.size();
  const unsigned char kValues[] = {0, '"', '9', '}', 0xff};
  int refused = 0, accepted = 0;
  store(whole);
  for (size_t at = 0; at < header_end; ++at) {
    std::vector<unsigned char> values(std::begin(kValues), std::end(kValues));
    for (int bit = 0; bit < 8; ++bit) values.push_back(static_cast<unsigned char>(whole[at]) ^ (1u << bit));
    for (unsigned char value : values) {
      if (value == static_cast<unsigned char>(whole[at])) continue;
      patch(at, static_cast<char>(value));
      largest_allocation = 0;
      try {
        SafetensorsReader reader(path());
        size_t total = 0;
        unsigned checksum = 0;
        for (const SafetensorsTensor& tensor : reader.tensors()) {
          total += tensor.bytes;
          for (size_t i = 0; i < tensor.bytes; ++i) checksum += std::to_integer<unsigned>(tensor.data[i]);
        }
        ASSERT_EQ(total, sizeof(kGoldenData)) << "byte " << at << " = " << int{value};
        ASSERT_GT(checksum, 0u);
        ++accepted;
      } catch (const UserError& error) {
        ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos);
        ++refused;
      }
      ASSERT_LT(largest_allocation, 8 * whole.size()) << "byte " << at << " = " << int{value};
    }
    patch(at, whole[at]);
  }
  EXPECT_GT(refused, 5 * accepted);
  EXPECT_GT(accepted, 0);
}

TEST_F(SafetensorsTest, UnfinishedWriteKeepsTheOldFile) {
  store("old");
  {
    SafetensorsWriter writer(path(), {{"a", DType::f32, {2}}});
    const float values[2] = {1, 2};
    writer.write("a", values, 4);
    EXPECT_THROW(writer.write("a", values, 8), InternalError);
    EXPECT_THROW(writer.write("b", values, 4), InternalError);
    EXPECT_THROW(writer.finish(), InternalError);  // 4 bytes are missing
    EXPECT_TRUE(fs::exists(path("x.safetensors.tmp")));
  }
  EXPECT_FALSE(fs::exists(path("x.safetensors.tmp")));
  EXPECT_EQ(load(path()), "old");
}

TEST_F(SafetensorsTest, WriterRefusesInvalidTensors) {
  EXPECT_THROW(SafetensorsWriter(path(), {{"a", DType::u8, {1}}, {"a", DType::u8, {1}}}), InternalError);
  EXPECT_THROW(SafetensorsWriter(path(), {{"__metadata__", DType::u8, {1}}}), InternalError);
  EXPECT_THROW(SafetensorsWriter(path(), {{"a", DType::f32, {1ll << 62, 2}}}), InternalError);
  EXPECT_THROW(SafetensorsWriter(path(), {{"a", DType::f32, {-1}}}), InternalError);
  EXPECT_THROW(SafetensorsWriter(path("no/such/x"), {{"a", DType::f32, {1}}}), UserError);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

}  // namespace
}  // namespace te
