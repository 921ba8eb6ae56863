// Definitions: SentencePiece, src/sentencepiece_model.proto (fields), bpe_model.cc (merges), normalizer.cc.
#include "text/tokenizers/sentencepiece_bpe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, which represents a space

/// Iterates over the fields of a serialized protobuf message: call next() until it returns false, then check failed().
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : rest_(bytes) {}

  bool next() {
    if (rest_.empty() || failed_) return false;
    const uint64_t tag = varint();
    field = tag >> 3;
    switch (tag & 7) {
      case 0:
        number = varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        bytes = take(varint());
        break;
      case 5:
        bytes = take(4);
        break;
      default:
        failed_ = true;
    }
    return !failed_;
  }
  bool failed() const { return failed_; }

  uint64_t field = 0, number = 0;
  std::string_view bytes;  // the value of a string, a message or a 32-bit number

 private:
  uint64_t varint() {
    uint64_t result = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      result |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return result;
    }
    failed_ = true;
    return 0;
  }
  std::string_view take(uint64_t count) {
    if (count > rest_.size()) {
      failed_ = true;
      return {};
    }
    const std::string_view result = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return result;
  }

  std::string_view rest_;
  bool failed_ = false;
};

enum PieceType : uint64_t { kNormalPiece = 1, kUnknownPiece = 2, kControlPiece = 3, kBytePiece = 6 };

struct Piece {
  std::string_view text;
  float score = 0;
  uint64_t type = kNormalPiece;
};

struct Model {
  std::vector<Piece> pieces;
  uint64_t model_type = 1;  // 1 unigram, 2 BPE
  bool byte_fallback = false, suffix = false;
  bool charsmap = false, dummy_prefix = true, remove_spaces = true, escape_spaces = true;
};

bool read_piece(std::string_view bytes, Piece& piece) {
  ProtoReader reader(bytes);
  while (reader.next()) {
    if (reader.field == 1) piece.text = reader.bytes;
    if (reader.field == 2 && reader.bytes.size() == 4) std::memcpy(&piece.score, reader.bytes.data(), 4);
    if (reader.field == 3) piece.type = reader.number;
  }
  return !reader.failed();
}

bool read_trainer(std::string_view bytes, Model& model) {
  ProtoReader reader(bytes);
  while (reader.next()) {
    if (reader.field == 3) model.model_type = reader.number;
    if (reader.field == 24) model.suffix = reader.number != 0;
    if (reader.field == 35) model.byte_fallback = reader.number != 0;
  }
  return !reader.failed();
}

bool read_normalizer(std::string_view bytes, Model& model) {
  ProtoReader reader(bytes);
  while (reader.next()) {
    if (reader.field == 2) model.charsmap = !reader.bytes.empty();
    if (reader.field == 3) model.dummy_prefix = reader.number != 0;
    if (reader.field == 4) model.remove_spaces = reader.number != 0;
    if (reader.field == 5) model.escape_spaces = reader.number != 0;
  }
  return !reader.failed();
}

std::optional<Model> read_model(std::string_view bytes) {
  Model model;
  ProtoReader reader(bytes);
  bool good = true;
  while (good && reader.next()) {
    if (reader.field == 1) good = read_piece(reader.bytes, model.pieces.emplace_back());
    if (reader.field == 2) good = read_trainer(reader.bytes, model);
    if (reader.field == 3) good = read_normalizer(reader.bytes, model);
  }
  if (!good || reader.failed()) return {};
  return model;
}

/// Calls on_boundary(offset) for the offsets of the second, third, ... character of `text`; false if it is not UTF-8.
template <class OnBoundary>
bool for_each_boundary(std::string_view text, OnBoundary on_boundary) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_sequence_length(text.substr(at));
    if (length == 0) return false;
    if (at > 0) on_boundary(at);
    at += length;
  }
  return true;
}

/// Whether SentencePiece does only byte pair encoding of the pieces; see read_sentencepiece_bpe().
bool is_plain(const Model& model) {
  if (model.model_type != 2 || !model.byte_fallback || model.suffix || model.charsmap ||
      model.remove_spaces || !model.escape_spaces) {
    return false;
  }
  std::set<std::string_view> all, characters;
  size_t bytes = 0;  // libsentencepiece has checked that they are <0x00> to <0xFF>
  for (const Piece& piece : model.pieces) {
    if (piece.text.empty() || !all.insert(piece.text).second || !std::isfinite(piece.score)) return false;
    const bool one = utf8_sequence_length(piece.text) == piece.text.size();
    if (piece.type == kNormalPiece) {
      if (one) characters.insert(piece.text);
    } else if (piece.type == kBytePiece) {
      const bool named = piece.text.size() == 6 && piece.text.starts_with("<0x") && piece.text.ends_with(">");
      if (!named) return false;
      ++bytes;
    } else if ((piece.type != kUnknownPiece && piece.type != kControlPiece) || one) {
      return false;
    }
  }
  return bytes == 256 && std::ranges::all_of(model.pieces, [&](const Piece& piece) {
           if (piece.type != kNormalPiece) return true;
           size_t begin = 0;
           bool known = true;
           const auto check = [&](size_t end) {
             known = known && characters.count(piece.text.substr(begin, end - begin)) > 0;
             begin = end;
           };
           if (!for_each_boundary(piece.text, check)) return false;
           check(piece.text.size());
           return known;
         });
}

/// Adds every pair of pieces whose concatenation is a piece, highest score first. Pairs of equal score get the same
/// rank, because SentencePiece merges the leftmost of them first.
void add_merges(const Model& model, BpeSpec& spec) {
  std::map<std::string_view, float> scores;
  for (const Piece& piece : model.pieces) {
    if (piece.type == kNormalPiece) scores.emplace(piece.text, piece.score);
  }
  struct Pair {
    float score;
    std::string_view left, right;
  };
  std::vector<Pair> pairs;
  for (const auto& [text, score] : scores) {
    const std::string_view whole = text;
    const float pair_score = score;  // clang 14: no binding in a lambda
    for_each_boundary(whole, [&](size_t at) {
      const std::string_view left = whole.substr(0, at), right = whole.substr(at);
      if (scores.count(left) > 0 && scores.count(right) > 0) pairs.push_back({pair_score, left, right});
    });
  }
  std::ranges::sort(pairs, std::greater<>(), &Pair::score);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const bool same = i > 0 && pairs[i].score == pairs[i - 1].score;
    spec.merges.emplace_back(pairs[i].left, pairs[i].right);
    spec.ranks.push_back(same ? spec.ranks.back() : static_cast<uint32_t>(i));
  }
}

}  // namespace

std::optional<PipelineSpec> read_sentencepiece_bpe(const std::string& bytes, bool legacy) {
  const std::optional<Model> model = read_model(bytes);
  if (!model || !is_plain(*model)) return {};
  nlohmann::json normalizers = nlohmann::json::array();
  if (model->dummy_prefix && legacy) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}});
  const nlohmann::json sequence = {{"type", "Sequence"}, {"normalizers", normalizers}}, none;
  const nlohmann::json prefix = {
      {"type", "Metaspace"}, {"replacement", kSpace}, {"prepend_scheme", "first"}, {"split", false}};
  const std::string where = "SentencePiece";
  PipelineSpec spec{
      .model = {},
      .added_tokens = {},
      .normalizer = Normalizer(JsonReader(sequence, where)),
      .pre_tokenizer = PreTokenizer(JsonReader(model->dummy_prefix && !legacy ? prefix : none, where)),
      .decoder = Decoder(JsonReader(none, where))};
  BpeSpec bpe;
  bpe.byte_fallback = true;
  for (size_t i = 0; i < model->pieces.size(); ++i) {
    bpe.vocab.emplace_back(model->pieces[i].text, static_cast<int64_t>(i));
  }
  add_merges(*model, bpe);
  spec.model = std::move(bpe);
  return spec;
}

}  // namespace te::text
