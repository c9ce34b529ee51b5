"""What a Python worker knows of archives: forgotten when they change, and only then."""

from __future__ import annotations

import zipfile
import zipimport
from pathlib import Path

from pgtide.spark.python_daemon import forget_if_changed


def archive_of(path: Path, *modules: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for module in modules:
            archive.writestr(f"{module}.py", "")


def test_an_archive_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "modules.zip"
    archive_of(path, "one")
    importer = zipimport.zipimporter(str(path))
    forget_if_changed(importer)
    known = dict(vars(importer))
    forget_if_changed(importer)
    assert all(vars(importer)[name] is value for name, value in known.items())
    assert importer.find_spec("two") is None
    archive_of(path, "one", "two")
    forget_if_changed(importer)
    assert importer.find_spec("two") is not None
    path.unlink()
    forget_if_changed(importer)
    assert importer.find_spec("one") is None
