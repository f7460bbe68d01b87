"""Nothing in the repository names where its packages come from, a developer's machine, or work left for later."""

import re

import pytest

from tests.gates.repository import ROOT, tracked

# In pieces, so that this file may be searched as well.
HOSTS = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "registry.npm" + "js.org",
    "yarn" + "pkg.com",
    "deb.deb" + "ian.org",
    "security.deb" + "ian.org",
    "archive.ubu" + "ntu.com",
    "crates" + ".io",
    "proxy.gol" + "ang.org",
    "rubygems" + ".org",
    "repo.maven." + "apache.org",
    "conda.ana" + "conda.org",
]
MACHINE = ["/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "/Us" + "ers/"]
LATER = ["TO" + "DO", "FIX" + "ME", "XX" + "X"]

FORBIDDEN = re.compile(
    "|".join(
        [
            *(re.escape(host) for host in HOSTS),
            *(rf"(?<![\w.$~/-]){re.escape(place)}" for place in MACHINE),
            *(rf"\b{word}\b" for word in LATER),
        ]
    )
)

VECTORS = "protocol/vectors/"
"""Bytes of the reference implementation, which say what they say."""


def test_the_repository_has_files():
    assert len(tracked()) > 50


@pytest.mark.slow
def test_nothing_leaks():
    found = []
    for path in tracked():
        if str(path).startswith(VECTORS):
            continue
        text = (ROOT / path).read_bytes().decode("utf-8", "replace")
        found += [
            f"{path}:{number}: {line.strip()[:120]}"
            for number, line in enumerate(text.splitlines(), 1)
            if FORBIDDEN.search(line)
        ]

    assert found == []


@pytest.mark.parametrize("word", [*HOSTS, *LATER, *(place + "x" for place in MACHINE)])
def test_the_test_sees_what_it_looks_for(word):
    assert FORBIDDEN.search(f"see {word} for it")
    assert FORBIDDEN.search(f'"{word}"')
