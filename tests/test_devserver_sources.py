"""The private apt configuration, derived from sample sources files of real machines' shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_jetstream.serverbinary import (
    AptSource,
    apt_config,
    find_archive,
    parse_deb822,
    parse_one_line,
    sources_entry,
)

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

DEBIAN_DEB822 = f"""\
Types: deb
# a snapshot, commented out
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: {KEYRING}

Types: deb deb-src
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: {KEYRING}
"""

VENDOR_DEB822 = """\
Types: deb
URIs: https://vendor.example/apt
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abcd
 -----END PGP PUBLIC KEY BLOCK-----
"""

ONE_LINE = f"""\
# deb http://old.example/debian bookworm main
deb [arch=amd64 signed-by={KEYRING}] http://mirror.example/debian bookworm main contrib # why not
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian/ bookworm-updates main
deb\thttps://vendor.example/apt cloud-bookworm main
"""


def test_deb822_yields_one_entry_per_uri_and_suite() -> None:
    """Each stanza's URIs and suites are multiplied out; comments inside a stanza do not end it."""
    entries = parse_deb822(DEBIAN_DEB822)

    assert entries == [
        AptSource("http://mirror.example/debian", "bookworm", ("main",), KEYRING),
        AptSource("http://mirror.example/debian", "bookworm-updates", ("main",), KEYRING),
        AptSource("http://mirror.example/debian-security", "bookworm-security", ("main",), KEYRING),
    ]


@pytest.mark.parametrize("extra", ["Enabled: no", "types: deb-src"], ids=["disabled", "source"])
def test_deb822_skips_what_apt_would_not_install_from(extra: str) -> None:
    """Disabled stanzas and sources-only stanzas yield no entry; field names ignore case."""
    stanza = "Types: deb\nURIs: http://mirror.example/debian\nSuites: sid\nComponents: main\n"

    assert len(parse_deb822(stanza)) == 1
    assert parse_deb822(stanza + extra) == []


def test_an_inline_key_travels_into_the_new_entry() -> None:
    """A key written into the stanza itself comes out again as a valid continuation."""
    (entry,) = parse_deb822(VENDOR_DEB822)
    rewritten = sources_entry(entry, "newer", "main")

    assert rewritten.splitlines()[1:3] == ["URIs: https://vendor.example/apt", "Suites: newer"]
    assert [each.signed_by for each in parse_deb822(rewritten)] == [entry.signed_by]
    assert "\n .\n abcd\n" in rewritten


def test_one_line_entries_with_and_without_options() -> None:
    """Options, tabs and trailing comments are understood; comments and deb-src are left out."""
    assert parse_one_line(ONE_LINE) == [
        AptSource("http://mirror.example/debian", "bookworm", ("main", "contrib"), KEYRING),
        AptSource("http://mirror.example/debian/", "bookworm-updates", ("main",)),
        AptSource("https://vendor.example/apt", "cloud-bookworm", ("main",)),
    ]


@pytest.mark.parametrize(
    ("text", "codename", "uri"),
    [
        (VENDOR_DEB822 + "\n" + DEBIAN_DEB822, "bookworm", "http://mirror.example/debian"),
        (
            DEBIAN_DEB822.replace("/debian\n", "/mirror\n"),
            "bookworm",
            "http://mirror.example/mirror",
        ),
        (DEBIAN_DEB822.replace("bookworm", "testing"), "forky", "http://mirror.example/debian"),
        (VENDOR_DEB822, "bookworm", None),
        ("", "bookworm", None),
    ],
    ids=["beside-a-vendor", "any-path", "suite-alias", "vendor-only", "nothing"],
)
def test_the_distributions_archive_is_told_from_a_vendors(
    text: str, codename: str, uri: str | None
) -> None:
    """A vendor's suite of the same name is never taken for the distribution's archive."""
    archive = find_archive(parse_deb822(text), "debian", codename)

    assert (archive and archive.uri) == uri


def test_a_bare_one_line_mirror_is_recognised() -> None:
    """A sources.list of one line without keyring is known by its path."""
    entries = parse_one_line("deb http://mirror.example/debian bookworm main\n")

    assert find_archive(entries, "debian", "bookworm") == entries[0]
    assert find_archive(entries, "ubuntu", "noble") is None


def test_the_new_entry_keeps_uri_and_key() -> None:
    """Only suite and component change: same mirror, same trust."""
    archive = AptSource("http://mirror.example/debian", "bookworm", ("main",), KEYRING)

    assert sources_entry(archive, "forky", "main") == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: forky\nComponents: main\n"
        f"Signed-By: {KEYRING}\n"
    )


def test_the_private_configuration_keeps_the_proxy_and_drops_hooks() -> None:
    """How to fetch is inherited; hooks, index targets and every system path are not."""
    machine = "\n".join(
        [
            'Acquire::http::Proxy "http://proxy.example:3142";',
            'Acquire::IndexTargets::deb::DEP-11::MetaKey "x";',
            'APT::Update::Post-Invoke:: "rm -f /var/cache/apt/*.bin";',
            'Dir::Etc "etc/apt";',
        ]
    )
    lines = apt_config(Path("/work dir"), machine).splitlines()

    assert lines[0] == 'Acquire::http::Proxy "http://proxy.example:3142";'
    assert not [line for line in lines if "Post-Invoke" in line or "IndexTargets" in line]
    directories = [line for line in lines if line.startswith("Dir::")]
    assert len(directories) == 10
    assert all('"/work dir/' in line for line in directories)
    assert 'APT::Sandbox::User "root";' in lines
