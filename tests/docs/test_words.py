"""Docs, docstrings, comments, help and templates use no banned word and no banned opening (`words.py`)."""

from pathlib import Path

import pytest
from tests.docs import words


def test_the_project_uses_no_banned_words() -> None:
    found = [str(finding) for path in words.files() for finding in words.findings(path)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("# Title\n\nWhat a handle has is kept.\n", ["a sentence opens with `What`"]),
        ("What is a handle?\n", []),
        ("The server resumes. Whoever asks waits.\n", ["whoever, whatever", "a sentence opens with `Whoever`"]),
        ("There is no news; that is no error, and `news` is code.\n", ["news", "is no (is not a)"]),
        ("```\nWhatever goes on here\n```\nThe call goes on.\n", ["go on (continue, resume)"]),
    ],
)
def test_words_and_openings_are_found(tmp_path: Path, text: str, rules: list[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert sorted(finding.rule for finding in words.findings(page)) == sorted(rules)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Makefile", "lock: ## write all files anew\n"),
        ("a.js", "let url = 'https://anew'; // shown anew\n"),
        ("a.css", "a { top: 0 } /* shown\n anew */\n"),
    ],
)
def test_words_are_found_in_comments(tmp_path: Path, name: str, text: str) -> None:
    page = tmp_path / name
    page.write_text(text)
    assert [finding.rule for finding in words.findings(page)] == ["anew (again)"]
