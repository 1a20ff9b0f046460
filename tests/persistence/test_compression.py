"""Compression with usual words, and its refusals."""

import hashlib
import zlib

import pytest

from onnxsgd.persistence import compression
from onnxsgd.persistence.compression import LARGEST, compressed, decompressed

TEXT = b'"learning_rate_multipliers":null,"own_name":[1,2]' * 3


def test_bytes_return_as_they_were():
    assert decompressed(compressed(TEXT)) == TEXT
    assert len(compressed(TEXT)) < len(zlib.compress(TEXT))
    assert decompressed(TEXT) == TEXT
    # bytes of format 2
    assert decompressed(zlib.compress(TEXT)) == TEXT


def in_other_words(content):
    packer = zlib.compressobj(zdict=b"other words")
    return packer.compress(content) + packer.flush()


def test_the_words_of_format_3_stay_as_they_are():
    """Pickles of that format cannot be read with others."""
    digest = hashlib.sha256(compression._USUAL).hexdigest()
    assert digest == "ca61cc3316554c5e7a0e308b57b8fc98bd49b8f84e02fc90bf3b0e6b4d18aa68"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-8], f"more than {LARGEST} bytes, or fewer than its own"),
        (lambda content: content[:20] + bytes(9) + content[29:], "damaged"),
        (lambda content: zlib.compress(bytes(1 << 28)), f"more than {LARGEST} bytes"),
        (lambda content: in_other_words(TEXT), "damaged"),
    ],
    ids=["cut", "changed", "bomb", "other words"],
)
def test_damaged_bytes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        decompressed(change(compressed(bytes(range(256)))))
