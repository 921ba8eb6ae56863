// The text readers: decompression, lines of any length, documents and their chunks, JSON records.
#include <gtest/gtest.h>
#include <lzma.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"
#include "text/readers/byte_stream.h"
#include "text/readers/document_reader.h"
#include "text/readers/input_files.h"
#include "text/readers/json_records.h"
#include "text/readers/line_reader.h"

namespace te {
namespace {

using testing::TextFolder;
using testing::user_error_of;
using testing::write_file;

std::string gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(const std::string& text) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as the zstd tool does
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

std::string xz(const std::string& text) {
  std::string out(lzma_stream_buffer_bound(text.size()), '\0');
  size_t size = 0;
  EXPECT_EQ(
      lzma_easy_buffer_encode(3, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(text.data()),
                              text.size(), reinterpret_cast<uint8_t*>(out.data()), &size, out.size()),
      LZMA_OK);
  out.resize(size);
  return out;
}

struct Codec {
  const char* name;
  const char* suffix;
  std::string (*compress)(const std::string&);
};
const Codec kCodecs[] = {{"gzip", ".gz", gzip}, {"zstd", ".zst", zstd}, {"xz", ".xz", xz}};

/// All bytes of a ByteStream, read `step` bytes at a time.
std::string read_all(const std::string& path, size_t step = 1 << 16) {
  text::ByteStream stream(path);
  std::string text, part(step, '\0');
  while (const size_t count = stream.read(part.data(), step)) text.append(part, 0, count);
  EXPECT_EQ(stream.read(part.data(), step), 0u);  // reading again at the end returns 0 again
  EXPECT_EQ(stream.file_bytes_read(), static_cast<int64_t>(std::filesystem::file_size(path)));
  return text;
}

/// Lines of pseudorandom letters, which do not compress well.
std::string sample_text(int lines) {
  std::string text;
  uint32_t state = 1;
  for (int i = 0; i < lines; ++i) {
    for (int k = 0; k < 60; ++k) {
      state = state * 1664525u + 1013904223u;
      text += static_cast<char>('a' + (state >> 24) % 26);
    }
    text += '\n';
  }
  return text;
}

TEST(ByteStream, ReadsEveryFormatUnderAnyName) {
  TextFolder folder;
  const std::string text = sample_text(12000);  // larger than any block
  write_file(folder / "a", text);
  EXPECT_EQ(read_all(folder / "a"), text);
  for (const Codec& codec : kCodecs) {
    write_file(folder / "a", codec.compress(text));
    EXPECT_EQ(read_all(folder / "a"), text) << codec.name;
    EXPECT_EQ(read_all(folder / "a", 7), text) << codec.name;
    // Several parts are one text, and an empty part adds nothing.
    write_file(folder / "a", codec.compress("one ") + codec.compress("") + codec.compress("two"));
    EXPECT_EQ(read_all(folder / "a"), "one two") << codec.name;
    write_file(folder / "a", codec.compress(""));
    EXPECT_EQ(read_all(folder / "a"), "") << codec.name;
  }
  write_file(folder / "a", gzip("padded") + std::string(600, '\0'));  // zero padding, as on tapes
  EXPECT_EQ(read_all(folder / "a"), "padded");
  write_file(folder / "a",
             std::string("\x50\x2a\x4d\x18\x02\x00\x00\x00xx", 10) + zstd("after a skippable frame"));
  EXPECT_EQ(read_all(folder / "a"), "after a skippable frame");
  write_file(folder / "a", "");
  EXPECT_EQ(read_all(folder / "a"), "");
  write_file(folder / "a", "\x1f");
  EXPECT_EQ(read_all(folder / "a"), "\x1f");
}

TEST(ByteStream, EveryTruncationIsRefused) {
  TextFolder folder;
  const std::string text = sample_text(3);
  for (const Codec& codec : kCodecs) {
    const std::string whole = codec.compress(text);
    for (size_t size = 6; size < whole.size(); ++size) {  // a shorter file has no magic number
      write_file(folder / "cut", whole.substr(0, size));
      const std::string error = user_error_of([&] { read_all(folder / "cut"); });
      TE_EXPECT_CONTAINS(error, fmt::format("cut: the {} data ends early", codec.name));
    }
    write_file(folder / "cut", whole + whole.substr(0, whole.size() / 2));
    TE_EXPECT_CONTAINS(user_error_of([&] { read_all(folder / "cut"); }), "ends early");
  }
}

TEST(ByteStream, DamageIsRefused) {
  TextFolder folder;
  const std::string text = sample_text(3);
  for (const Codec& codec : kCodecs) {
    const std::string whole = codec.compress(text);
    int unnoticed = 0;
    for (size_t at = 6; at < whole.size(); ++at) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      write_file(folder / "bad", damaged);
      const std::string error = user_error_of([&] {
        EXPECT_EQ(read_all(folder / "bad"), text) << codec.name << " " << at;
        ++unnoticed;
      });
      if (!error.empty()) {
        TE_EXPECT_CONTAINS(error, codec.name);
      }
    }
    EXPECT_LE(unnoticed, 4) << codec.name;  // gzip's header has a timestamp and an OS byte
    write_file(folder / "bad", whole + "trailing garbage");
    TE_EXPECT_CONTAINS(user_error_of([&] { read_all(folder / "bad"); }), "is damaged near byte");
  }
}

TEST(LineReader, ReturnsLongLinesInParts) {
  TextFolder folder;
  const std::string longest(3 * text::LineReader::kPart + 5, 'x'), exact(text::LineReader::kPart - 1, 'y');
  write_file(folder / "a", "one\r\n\n" + longest + "\n" + exact + "\nlast");
  text::LineReader reader(folder / "a");
  std::vector<std::string> lines;
  text::LineReader::Line line;
  int parts = 0;
  while (reader.next(&line)) {
    if (line.begins) lines.emplace_back();
    lines.back() += line.text;
    ++parts;
    EXPECT_LE(line.text.size(), text::LineReader::kPart);
  }
  EXPECT_EQ(lines, (std::vector<std::string>{"one\r\n", "\n", longest + "\n", exact + "\n", "last"}));
  EXPECT_GE(parts, 8);
  EXPECT_EQ(reader.place(), (folder / "a") + ":5");
  EXPECT_EQ(reader.take_bytes(), static_cast<int64_t>(std::filesystem::file_size(folder / "a")));
  EXPECT_EQ(reader.take_bytes(), 0);

  text::LineReader whole(folder / "a");
  std::string_view text;
  for (const std::string& expected : lines) {
    ASSERT_TRUE(whole.next_full_line(&text));
    EXPECT_EQ(text, expected);
  }
  EXPECT_FALSE(whole.next_full_line(&text));
}

struct DocumentChunks {
  std::vector<std::string> documents;
  int64_t chunks = 0, bytes = 0, longest = 0;
};

DocumentChunks read_chunks(const std::string& path, const text::DocumentOptions& options) {
  DocumentChunks result;
  bool last = true;
  text::read_documents(path, options, [&](const text::DocumentChunk& chunk) {
    if (last) result.documents.emplace_back();
    result.documents.back() += chunk.text;
    last = chunk.last;
    ++result.chunks;
    result.bytes += chunk.bytes;
    result.longest = std::max(result.longest, static_cast<int64_t>(chunk.text.size()));
  });
  EXPECT_TRUE(last);
  return result;
}

TEST(DocumentReader, SplitsTextAtEveryBoundary) {
  TextFolder folder;
  using Texts = std::vector<std::string>;
  write_file(folder / "a", "one\ntwo\r\n\n \t\nthree\n---\nfour");
  const auto read = [&](text::DocumentBoundary boundary) {
    return read_chunks(folder / "a", {.boundary = boundary, .separator = "---"}).documents;
  };
  EXPECT_EQ(read(text::DocumentBoundary::kFile), (Texts{"one\ntwo\r\n\n \t\nthree\n---\nfour"}));
  EXPECT_EQ(read(text::DocumentBoundary::kBlankLine), (Texts{"one\ntwo\r\n", "three\n---\nfour"}));
  EXPECT_EQ(read(text::DocumentBoundary::kLine), (Texts{"one", "two", "three", "---", "four"}));
  EXPECT_EQ(read(text::DocumentBoundary::kSeparator), (Texts{"one\ntwo\r\n\n \t\nthree\n", "four"}));
}

TEST(DocumentReader, SplitsLongDocumentsIntoChunks) {
  TextFolder folder;
  std::string words, accents;
  for (int i = 0; i < 2000; ++i) words += i % 10 == 9 ? "word.\n" : "word and ";
  for (int i = 0; i < 2000; ++i) accents += "\xf0\x9f\x98\x80";  // no space: split between characters
  write_file(folder / "a", words + "\n---\nshort\n---\n" + accents);
  const text::DocumentOptions options = {
      .boundary = text::DocumentBoundary::kSeparator, .separator = "---", .max_chunk_bytes = 1000};
  const DocumentChunks result = read_chunks(folder / "a", options);
  EXPECT_EQ(result.documents, (std::vector<std::string>{words + "\n", "short\n", accents}));
  EXPECT_GT(result.chunks, 15);
  EXPECT_EQ(result.bytes, static_cast<int64_t>(std::filesystem::file_size(folder / "a")));
  bool last = true;
  text::read_documents(folder / "a", options, [&](const text::DocumentChunk& chunk) {
    if (!last) {
      const bool at_space = chunk.text.starts_with(" ") && std::isalpha(chunk.text[1]) != 0;
      EXPECT_TRUE(at_space || chunk.text.starts_with("\xf0\x9f")) << chunk.text.substr(0, 10);
    }
    last = chunk.last;
  });
}

TEST(DocumentReader, ReadsJsonListsOfAnyLayout) {
  TextFolder folder;
  write_file(
      folder / "a.json",
      "[ {\"text\": \"one }] \\\" \\\\\", \"n\": [1, {\"x\": []}]},\n\n{\"text\":\n\"two\"}, {\"text\": "
      "\"\"},{\"text\":\"three\"}\n]\n");
  const DocumentChunks result = read_chunks(folder / "a.json", {});
  EXPECT_EQ(result.documents, (std::vector<std::string>{"one }] \" \\", "two", "three"}));
  write_file(folder / "a.json", "[]");
  EXPECT_TRUE(read_chunks(folder / "a.json", {}).documents.empty());
  write_file(folder / "a.json", "{\"text\": \"alone\"}\n{\"text\": \"again\"}");
  EXPECT_EQ(read_chunks(folder / "a.json", {}).documents, (std::vector<std::string>{"alone", "again"}));

  const auto error_of = [&](const std::string& bytes) {
    write_file(folder / "a.json", bytes);
    return user_error_of([&] { read_chunks(folder / "a.json", {}); });
  };
  TE_EXPECT_CONTAINS(error_of("[{\"text\": \"x\"},\n {\"text\": \"y"),
                     "a.json:2: the object that begins on this line does not end");
  TE_EXPECT_CONTAINS(error_of("[{\"text\": \"x\"},\n"), "the list does not end");
  TE_EXPECT_CONTAINS(error_of("[{\"text\": \"x\"}]\n]"), "a.json:2: found `]` instead of");
  TE_EXPECT_CONTAINS(error_of("[\"x\"]"), "a.json:1: found `\"` instead of");
  TE_EXPECT_CONTAINS(error_of("[{\"text\": \"x\"}\n,{\"text\" 3}]"), "a.json:2: not valid JSON at byte");
  TE_EXPECT_CONTAINS(error_of("[{\"text\": ]}"), "not valid JSON");
}

TEST(TextFormat, IsDeterminedByNameOrContent) {
  using text::TextFormat;
  EXPECT_EQ(text::format_of_name("a.JsonLines.GZ"), TextFormat::kJsonl);
  EXPECT_EQ(text::format_of_name("a.json.xz"), TextFormat::kJson);
  EXPECT_EQ(text::format_of_name("a.txt.zst"), TextFormat::kText);
  EXPECT_EQ(text::format_of_name("jsonl"), TextFormat::kAuto);
  EXPECT_EQ(text::format_of_name("-"), TextFormat::kAuto);

  struct Case {
    std::string head;
    TextFormat format;
    bool like_json = false;
  };
  const std::string longest(text::kFormatHead, 'x');
  for (const Case& one : {
           Case{"", TextFormat::kText},
           {" \n", TextFormat::kText},
           {"{", TextFormat::kText, true},
           {"{x: 1}", TextFormat::kText},
           {"int f() {}", TextFormat::kText},
           {"[1]\n", TextFormat::kText},
           {"{\"text\": \"a\"}", TextFormat::kJsonl},
           {"\r\n {\"text\": \"}\\\"{\"} \n", TextFormat::kJsonl},
           {"{\"text\": 3}", TextFormat::kText, true},
           {"{\"text\": 3} {\"text\": 3}", TextFormat::kText, true},
           {"{\"body\": 3}\n\n{\"body\": 4}", TextFormat::kJsonl},
           {"{\"body\": 3}\nand text", TextFormat::kText, true},
           {"{\n\"text\": \"a\"}", TextFormat::kJson},
           {"{\n\"body\": \"a\"}\n{}", TextFormat::kText, true},
           {"[{\"text\": \"a\"},", TextFormat::kJson},
           {"[{\"body\": 1}, {\"body\": 2}]", TextFormat::kText, true},
           {"{\"id\": 1e999, \"text\": \"a\"}\n{\"text\": \"b\"}", TextFormat::kJsonl},
           {("{\"text\": \"" + longest).substr(0, text::kFormatHead), TextFormat::kJsonl},
           {"{\"text\": \"\\u00", TextFormat::kJsonl},
           {("{\"body\": \"" + longest).substr(0, text::kFormatHead), TextFormat::kText, true},
           {("{\"text\" 3" + longest).substr(0, text::kFormatHead), TextFormat::kText},
       }) {
    const text::ContentFormat format = text::format_of_content(one.head, "text");
    EXPECT_EQ(format.format, one.format) << one.head.substr(0, 50);
    EXPECT_EQ(format.like_json, one.like_json) << one.head.substr(0, 50);
  }
  EXPECT_EQ(text::format_of_content("{\"a\": {\"b\": \"c\"}}", "a.b").format, TextFormat::kJsonl);
  EXPECT_TRUE(text::is_json_list(" [{}]"));
  EXPECT_TRUE(text::is_json_list("{\n\"a\": 1}"));
  EXPECT_FALSE(text::is_json_list("{\"a\": 1}\n"));
  EXPECT_FALSE(text::is_json_list(""));
}

TEST(ByteStream, ReadReturnsPeekedBytes) {
  TextFolder folder;
  const std::string bytes = "0123456789";
  for (const std::string& content : {bytes, gzip(bytes)}) {
    write_file(folder / "a", content);
    text::ByteStream stream(folder / "a");
    EXPECT_EQ(stream.peek(4), "0123");
    EXPECT_EQ(stream.peek(2), "01");
    EXPECT_EQ(stream.peek(100), bytes);
    std::string text(20, ' ');
    size_t filled = stream.read(text.data(), 3);
    while (const size_t count = stream.read(text.data() + filled, 20 - filled)) filled += count;
    EXPECT_EQ(text.substr(0, filled), bytes);
  }
}

TEST(ByteStream, LeavesOutTheByteOrderMark) {
  TextFolder folder;
  const std::string mark = "\xef\xbb\xbf";
  for (const std::string& text : {std::string(), std::string("\xef\xbb"), std::string("one"), mark + "two"}) {
    for (const std::string& content : {mark + text, gzip(mark + text)}) {
      write_file(folder / "a", content);
      EXPECT_EQ(read_all(folder / "a", 2), text);
      EXPECT_EQ(text::ByteStream(folder / "a").peek(8), text);
    }
  }
  const auto texts = [&](const std::string& name, const std::string& content) {
    write_file(folder / name, content);
    return read_chunks(folder / name, {.boundary = text::DocumentBoundary::kLine}).documents;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts("a.txt", mark + "one\n" + mark + "two"), (Texts{"one", mark + "two"}));
  for (const char* name : {"a.json", "a.jsonl", "a"})
    EXPECT_EQ(texts(name, mark + "{\"text\": \"one\"}\n"), Texts{"one"}) << name;
  EXPECT_EQ(texts("a.json", mark + "[{\"text\": \"one\"}]"), Texts{"one"});
}

TEST(DocumentReader, FindsFieldsByDottedPath) {
  TextFolder folder;
  write_file(folder / "a.jsonl", "{\"a\": {\"b.c\": {\"d\": \"deep\"}, \"e\": 1}, \"a.e\": \"by name\"}\n");
  const auto field = [&](const std::string& path) {
    const text::DocumentOptions options = {.json_field = path};
    return read_chunks(folder / "a.jsonl", options).documents.at(0);
  };
  EXPECT_EQ(field("a.b.c.d"), "deep");
  EXPECT_EQ(field("a.e"), "by name");
  TE_EXPECT_CONTAINS(user_error_of([&] { field("a.x"); }), "no field `a.x`");
  TE_EXPECT_CONTAINS(user_error_of([&] { field("a.b"); }), "no field `a.b`");
}

TEST(InputFiles, ListsFoldersInOrderAndAddsUpTheirSizes) {
  TextFolder folder;
  std::filesystem::create_directories(folder / "in/b/.git");
  write_file(folder / "in/c.txt", "12345");
  write_file(folder / "in/b/z.jsonl.gz", gzip("{}"));
  write_file(folder / "in/b/.git/x", "hidden");
  write_file(folder / "in/a.gz", gzip(std::string("\0binary", 7)));
  write_file(folder / "single", "1");
  const text::InputFiles files = text::list_input_files({folder / "single", folder / "in"});
  EXPECT_EQ(files.paths,
            (std::vector<std::string>{folder / "single", folder / "in/b/z.jsonl.gz", folder / "in/c.txt"}));
  EXPECT_EQ(files.skipped, 1);
  EXPECT_EQ(files.bytes, static_cast<int64_t>(6 + gzip("{}").size()));
  EXPECT_EQ(text::list_input_files({"-", folder / "single"}).bytes, -1);
}

TEST(InputFiles, CountsLinksThatItDoesNotFollow) {
  TextFolder folder;
  std::filesystem::create_directories(folder / "in");
  std::filesystem::create_directories(folder / "other");
  write_file(folder / "in/a.txt", "1");
  write_file(folder / "other/b.txt", "1");
  std::filesystem::create_symlink(folder / "other/b.txt", folder / "in/file");
  std::filesystem::create_directory_symlink(folder / "other", folder / "in/folder");
  std::filesystem::create_directory_symlink(folder / "in", folder / "in/cycle");
  std::filesystem::create_symlink(folder / "none", folder / "in/nothing");
  const text::InputFiles files = text::list_input_files({folder / "in"});
  EXPECT_EQ(files.paths, (std::vector<std::string>{folder / "in/a.txt", folder / "in/file"}));
  EXPECT_EQ(files.skipped_links, 3);
  std::filesystem::create_directory_symlink(folder / "in", folder / "link");
  EXPECT_EQ(text::list_input_files({folder / "link"}).paths.size(), 2u);
}

TEST(InputFiles, FoldersThatCannotBeListedAreRefused) {
  TextFolder folder;
  std::filesystem::create_directories(folder / "in/closed");
  std::filesystem::create_directories(folder / "in/.hidden");
  write_file(folder / "in/a.txt", "1");
  // Root can list every folder, so that this part runs as another user.
  const auto as_user = [root = ::geteuid() == 0](uid_t user) { return !root || ::seteuid(user) == 0; };
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(folder / "in/.hidden", std::filesystem::perms::none);
  ASSERT_TRUE(as_user(65534));
  EXPECT_EQ(user_error_of([&] { text::list_input_files({folder / "in"}); }), "");
  ASSERT_TRUE(as_user(0));
  std::filesystem::permissions(folder / "in/closed", std::filesystem::perms::none);
  ASSERT_TRUE(as_user(65534));
  const std::string error = user_error_of([&] { text::list_input_files({folder / "in"}); });
  ASSERT_TRUE(as_user(0));
  std::filesystem::permissions(folder / "in/closed", std::filesystem::perms::owner_all);
  TE_EXPECT_CONTAINS(error, (folder / "in/closed") + ": cannot be listed (Permission denied)");
}

// on_bad gets errors of the lines; exceptions of on_chunk are passed on.
TEST(DocumentReader, OnBadGetsErrorsOfTheLinesOnly) {
  TextFolder folder;
  write_file(folder / "a.jsonl", "{\"text\": \"q\"}\n{\n{\"text\": \"r\"}\n");
  std::vector<std::string> texts, bad;
  const auto on_bad = [&](const std::string& message) { bad.push_back(message); };
  text::read_documents(
      folder / "a.jsonl", {}, [&](const text::DocumentChunk& chunk) { texts.emplace_back(chunk.text); },
      on_bad);
  EXPECT_EQ(texts, (std::vector<std::string>{"q", "r"}));
  ASSERT_EQ(bad.size(), 1u);
  TE_EXPECT_CONTAINS(bad[0], "a.jsonl:2: not valid JSON");
  bad.clear();
  const auto fail = [](const text::DocumentChunk&) { user_error("the tokenizer"); };
  EXPECT_EQ(user_error_of([&] { text::read_documents(folder / "a.jsonl", {}, fail, on_bad); }),
            "the tokenizer");
  EXPECT_TRUE(bad.empty());
}

// Skipping it would hide valid objects: it is unclear where the malformed object ends.
TEST(DocumentReader, AMalformedObjectThatContainsTheNextIsNotSkipped) {
  TextFolder folder;
  for (const char* bytes : {R"([{"text": "a 5" disk"}, {"text": "b"}, {"text": "c 5" disk"}, {"text": "d"}])",
                            "[{\"text\": \"a 5\" disk\"}, {\"text\": \"b\"},\n{\"text\": \"c\"}]",
                            "{\"text\": \"a\"\n{\"text\": \"b\"}\n{ \"text\": \"c\"}}\n"}) {
    write_file(folder / "a.json", bytes);
    const auto ignore = [](const auto&) {};
    TE_EXPECT_CONTAINS(
        user_error_of([&] { text::read_documents(folder / "a.json", {}, ignore, ignore); }),
        "a.json:1: the object that begins on this line is malformed and contains the next one");
  }
}

// A malformed object with an odd number of quotes must not hide the objects up to the next such object.
TEST(DocumentReader, OddQuotesCostOneObjectInEveryLayout) {
  TextFolder folder;
  constexpr int kObjects = 200;
  const auto objects = [](const std::string& separator, const std::string& inside = "",
                          const std::string& end = "") {
    std::string all;
    for (int i = 0; i < kObjects; ++i) {
      const char* quote = i == 0 || i == 190 ? "\"" : "";
      all +=
          fmt::format("{0}{{{1}\"text\": \"a 5{2} disk\",{1}\"tags\": [{1}  {{\"text\": \"tag\"}}{1}]{3}}}",
                      i == 0 ? "" : separator, inside, quote, end);
    }
    return all;
  };
  struct Case {
    std::string name, bytes;
  };
  const std::string lines = objects("\n");
  for (const Case& one : {Case{"a.jsonl", lines},
                          {"a.json", lines},
                          {"a.json.gz", gzip(lines)},
                          {"list.json", "[\n" + objects(",\n") + "\n]\n"},
                          {"compact.json", "[" + objects(",\n ") + "]"},
                          {"leading.json", "[ " + objects("\n, ") + "\n]"},
                          {"indented.json", "[\n  " + objects(",\n  ", "\n    ", "\n  ") + "\n]"},
                          {"joined.json", "[" + objects(", ", "\n  ", "\n") + "]"},
                          {"uneven.json", "[" + objects(",\n  ", "\n    ", "\n  ") + "]"}}) {
    SCOPED_TRACE(one.name);
    write_file(folder / one.name, one.bytes);
    int documents = 0;
    std::vector<std::string> bad;
    text::read_documents(
        folder / one.name, {},
        [&](const text::DocumentChunk& chunk) {
          EXPECT_EQ(chunk.text, "a 5 disk");
          ++documents;
        },
        [&](const std::string& message) { bad.push_back(message); });
    EXPECT_EQ(documents, kObjects - 2);
    ASSERT_EQ(bad.size(), 2u);
    TE_EXPECT_CONTAINS(bad.back(), "not valid JSON at byte");
  }
  TE_EXPECT_CONTAINS(user_error_of([&] { read_chunks(folder / "a.json", {}); }),
                     "a.json:1: not valid JSON at byte");
}

}  // namespace
}  // namespace te
