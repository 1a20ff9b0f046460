"""The prose of the project uses the nouns of the field."""

from pathlib import Path

import pytest
from house import measures

ROOT = Path(__file__).parents[2]


def test_docstrings_open_with_a_noun_or_a_verb():
    assert measures.clause_docstrings(ROOT) == []


def test_nouns_stand_where_the_field_has_them():
    """A relative clause with "what" nearly always stands for a noun that exists; the limit is 1 in 1,000."""
    n_what, n_words = measures.count_what(ROOT)
    assert n_what < n_words / 1000


@pytest.mark.parametrize("text", ["It knows what is in it.", "# What it is\n"])
def test_the_word_is_found(text, tmp_path):
    (tmp_path / "README.md").write_text(text)
    assert measures.count_what(tmp_path)[0] == 1


def test_comments_docstrings_and_messages_are_prose(tmp_path):
    path = tmp_path / "module.py"
    path.write_text('"""A docstring."""\n\n# a comment\nraise ValueError("a message")\nkey = "no_prose"\n')
    assert sorted(measures.words(measures.prose(path))) == sorted(
        ["a", "docstring", "a", "comment", "a", "message"]
    )
