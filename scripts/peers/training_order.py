"""The training samples of te-train in its order (src/data/corpus_view.h), for peers that must read the same tokens.

In every epoch the documents are concatenated in a new order, the tokens are divided at multiples of seq_length, and these
samples are shuffled. Both orders are Feistel permutations whose keys come from Philox4x32-10 with (training.seed, FNV-1a of
the name, epoch). Step k of a run reads the samples from k * global_batch_size on, whatever the number of ranks.
"""

import bisect
import itertools
import math
import struct
from array import array
from pathlib import Path

WORD = 0xFFFFFFFF
LONG = 0xFFFFFFFFFFFFFFFF


def philox(seed, stream, index):
    """The four 32-bit words of te::philox."""
    c = [index & WORD, index >> 32, stream & WORD, stream >> 32]
    key = [seed & WORD, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ key[0], p1 & WORD, (p0 >> 32) ^ c[3] ^ key[1], p0 & WORD]
        key = [(key[0] + 0x9E3779B9) & WORD, (key[1] + 0xBB67AE85) & WORD]
    return c


def stream_of(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & LONG
    return value


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & LONG
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & LONG
    return x ^ (x >> 31)


class Permutation:
    """te::data::Permutation with the keys of te::data::epoch_permutation, for the first dataset of a blend."""

    def __init__(self, size, seed, name, epoch):
        random = philox(seed, stream_of(name), epoch)
        key = (random[0] << 32 | random[1], random[2] << 32 | random[3])
        self.size, self.a = size, math.isqrt(size - 1) + 1
        self.b = (size + self.a - 1) // self.a
        self.shifts = []
        for r in range(8):
            words = philox(*key, r)
            base = words[0] << 32 | words[1]
            count, modulus = (self.b, self.a) if r % 2 == 0 else (self.a, self.b)
            self.shifts.append([mix((half + base) & LONG) % modulus for half in range(count)])

    def __call__(self, x):
        while True:
            right, left = divmod(x, self.a)
            for r in range(0, 8, 2):
                left = (left + self.shifts[r][right]) % self.a
                right = (right + self.shifts[r + 1][left]) % self.b
            x = right * self.a + left
            if x < self.size:
                return x


def read_index(prefix):
    """(bytes per token, number of tokens, first token of every document and the end) of PREFIX.idx."""
    data = Path(f"{prefix}.idx").read_bytes()
    if data[:9] != b"MMIDIDX\0\0":
        raise ValueError(f"{prefix}.idx: is not an index of a dataset; make one with te-data")
    token_type, sequences, documents = struct.unpack_from("<8xBQQ", data, 9)
    if token_type not in (4, 8):
        raise ValueError(f"{prefix}.idx: token type {token_type} is neither u16 (8) nor i32 (4)")
    lengths = array("i", data[34 : 34 + 4 * sequences])
    at = 34 + 12 * sequences
    first = array("q", data[at : at + 8 * documents])
    starts = list(itertools.accumulate(lengths, initial=0))
    return (4 if token_type == 4 else 2), starts[-1], [starts[sequence] for sequence in first]


class TrainingOrder:
    """Where the tokens of each sample are in PREFIX.bin."""

    def __init__(self, documents, seq_length, seed):
        self.documents, self.seq_length, self.seed = documents, seq_length, seed
        self.samples = (documents[-1] - documents[0] - 1) // seq_length
        if self.samples < 1:
            raise ValueError(f"the dataset has fewer than seq_length + 1 = {seq_length + 1} tokens; use more text")
        self.number = None

    def enter_epoch(self, number):
        self.number = number
        count = len(self.documents) - 1
        documents = Permutation(count, self.seed, "data.documents", number)
        self.order = [documents(i) for i in range(count)]
        lengths = (self.documents[i + 1] - self.documents[i] for i in self.order)
        self.starts = list(itertools.accumulate(lengths, initial=0))
        self.permuted = Permutation(self.samples, self.seed, "data.samples", number)

    def extents(self, index):
        """[(first token, end)] whose concatenation is the sample: seq_length + 1 tokens."""
        epoch, place = divmod(index, self.samples)
        if epoch != self.number:
            self.enter_epoch(epoch)
        position = self.permuted(place) * self.seq_length
        end = position + self.seq_length + 1
        found = []
        at = bisect.bisect_right(self.starts, position) - 1
        while position < end:
            begin = self.documents[self.order[at]] + position - self.starts[at]
            count = min(self.starts[at + 1], end) - position
            if count:
                found.append((begin, begin + count))
            position += count
            at += 1
        return found
