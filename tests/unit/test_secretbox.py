"""Endpoint secrets are sealed where they lie, and every mistake with a key says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gatepost.errors import ConfigurationError, StoreError
from gatepost.store.secretbox import Place, SecretBox
from gatepost.testing.virtual import SeededEntropy

PLACE = Place("acme", "ep_1", "secret")


def test_what_was_sealed_opens_again_in_its_place() -> None:
    """Unicode included; sealing twice never gives the same text."""
    box = SecretBox([SecretBox.new_key()])
    sealed = box.seal("whsec_ü", PLACE)
    assert box.open(sealed, PLACE) == "whsec_ü"
    assert sealed.isascii()
    assert "whsec" not in sealed
    assert box.seal("whsec_ü", PLACE) != sealed


@pytest.mark.parametrize(
    "place", [Place("other", "ep_1", "secret"), Place("acme", "ep_2", "secret"), Place("acme", "ep_1", "headers")]
)
def test_a_value_moved_elsewhere_does_not_open(place: Place) -> None:
    """Somebody who can write rows must not be able to lend one endpoint's secret to another."""
    box = SecretBox([SecretBox.new_key()])
    with pytest.raises(StoreError, match="altered or moved"):
        box.open(box.seal("s", PLACE), place)


def test_an_altered_value_does_not_open() -> None:
    """Every byte is authenticated; a cut one is refused as well."""
    box = SecretBox([SecretBox.new_key()])
    sealed = box.seal("secret", PLACE)
    flipped = sealed[:-6] + ("A" if sealed[-6] != "A" else "B") + sealed[-5:]
    for broken in (flipped, sealed[:-8], sealed[: sealed.rindex(":") + 1], "gp1:x", "plain text", ""):
        with pytest.raises((StoreError, ConfigurationError)):
            box.open(broken, PLACE)


def test_the_first_key_seals_and_all_open() -> None:
    """Changing keys: the new one in front, the old one behind."""
    old, new = SecretBox.new_key(), SecretBox.new_key()
    sealed = SecretBox([old]).seal("s", PLACE)
    both = SecretBox([new, old])
    assert both.open(sealed, PLACE) == "s"
    assert SecretBox([new]).open(both.seal("s", PLACE), PLACE) == "s"


def test_a_missing_key_is_named_with_the_setting() -> None:
    """The operator must know which key to restore, and where."""
    sealed = SecretBox([SecretBox.new_key()]).seal("s", PLACE)
    key_id = sealed.split(":")[1]
    with pytest.raises(ConfigurationError, match=f"key '{key_id}', which is not in the setting `keys`"):
        SecretBox([SecretBox.new_key()]).open(sealed, PLACE)


@pytest.mark.parametrize("key", ["", "nocolon", "id:", "id:short", "id:%%%", f"bad id:{'A' * 43}=", f":{'A' * 43}="])
def test_a_malformed_key_is_refused_without_being_shown(key: str) -> None:
    """Which one it is, and what to write."""
    with pytest.raises(ConfigurationError, match="key 2 of the setting `keys` is malformed: write ID:BASE64") as caught:
        SecretBox([SecretBox.new_key(), key])
    assert "AAAA" not in str(caught.value)


def test_no_key_and_two_keys_of_one_id_are_refused() -> None:
    """Both would fail later, less clearly."""
    with pytest.raises(ConfigurationError, match="no key"):
        SecretBox([])
    key = SecretBox.new_key()
    with pytest.raises(ConfigurationError, match="two keys"):
        SecretBox([key, key])


def test_a_box_never_shows_its_keys() -> None:
    """In logs and tracebacks."""
    key = SecretBox.new_key(SeededEntropy(1))
    assert key.split(":")[1] not in repr(SecretBox([key]))
    assert key.split(":")[0] in repr(SecretBox([key]))


def test_a_key_file_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    """The same key comes back; a file that others may read is refused with the remedy."""
    database = tmp_path / "gatepost.db"
    sealed = SecretBox.for_sqlite(database).seal("s", PLACE)
    file = tmp_path / "gatepost.db.key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert SecretBox.for_sqlite(database).open(sealed, PLACE) == "s"
    assert [entry.name for entry in tmp_path.iterdir()] == ["gatepost.db.key"]
    file.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        SecretBox.for_sqlite(database)


def test_a_key_file_may_hold_comments_and_older_keys(tmp_path: Path) -> None:
    """It is edited by hand when keys change."""
    old, new = SecretBox.new_key(), SecretBox.new_key()
    file = tmp_path / "gatepost.db.key"
    file.write_text(f"# since may\n{new}\n\n{old}\n")
    file.chmod(0o600)
    assert SecretBox.for_sqlite(tmp_path / "gatepost.db").key_ids == (new.split(":")[0], old.split(":")[0])


def test_a_key_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """For example in a directory that is not there."""
    with pytest.raises(ConfigurationError, match="cannot create the key file"):
        SecretBox.for_sqlite(tmp_path / "missing" / "gatepost.db")


def test_without_the_package_the_extra_is_named() -> None:
    """The plain client needs no cryptography; whoever opens a store is told what to install."""
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from gatepost.store.secretbox import SecretBox\n"
        "try: SecretBox(['k:x'])\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ConfigurationError" in result.stdout
    assert "pip install 'gatepost[dispatch]'" in result.stdout
